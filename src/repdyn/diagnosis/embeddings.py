"""A statement on steps whose input embeddings are out of line with those of their neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from repdyn.diagnosis.insight import Insight
from repdyn.diagnosis.training import MAX_STEPS
from repdyn.tables.continuity import embeddings_out_of_line
from repdyn.tables.numbers import number_text


def embedding_statements(frame: pd.DataFrame) -> Iterator[Insight]:
    """Yield the steps whose input embeddings are nearer to the first, or farther from them, than both neighbours'."""
    first, found = embeddings_out_of_line(frame)
    if not found:
        return
    largest, others = found[0], sorted(jump.step for jump in found[1:])
    (before, value_before), (after, value_after) = largest.before, largest.after
    listed = ", ".join(f"{step:,}" for step in others[:MAX_STEPS]) + f" .. ({len(others)})" * (len(others) > MAX_STEPS)
    also = f" So are those of step{'s' * (len(others) > 1)} {listed}." if others else ""
    sentence = (
        f"The input embeddings of step {largest.step:,} have a cosine of {number_text(largest.loss)} to those of step "
        f"{first:,}, out of line with {number_text(value_before)} at step {before:,} and {number_text(value_after)} at "
        f"step {after:,}: the weights of another step.{also}"
    )
    evidence = {"cosine": largest.loss, "before": value_before, "after": value_after, "jump": largest.size}
    steps = tuple(sorted(jump.step for jump in found))
    yield Insight("watch", "embeddings out of line", sentence, steps=steps, evidence=evidence, weight=0.75)
