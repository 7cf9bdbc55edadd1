"""What a view says of a run in words: its sampling and intervals, its cost, checkpoints that failed
or are copies, the loss on the probe."""

import textwrap

import numpy as np
import pandas as pd

from repdyn.probe.design import INPUT_DESIGNS
from repdyn.store.schema import (
    PROBE_ACCURACY,
    PROBE_BITS_PER_BYTE,
    PROBE_CALIBRATION_ERROR,
    PROBE_LOSS,
)
from repdyn.utils.numbers import number_text
from repdyn.utils.printing import gigabytes, plural
from repdyn.views.tables.frames import (
    LOSS_TITLES,
    design_names,
    distinct_texts,
    failures,
    has_text,
    is_finished,
    kinds_of_text,
    scalar,
    scalar_rows,
)
from repdyn.views.tables.words import steps_in_words

_WINDOW_COLUMNS = (
    "n_vectors",
    "n_windows",
    "vectors_per_window",
    "window_tokens",
    "own_window_excluded",
)


def sampling(rows: pd.DataFrame) -> str:
    """Describe how many vectors each value of measurements rests on, and by which design they were
    drawn.

    >>> counts = {"n_batches": [4], "n_vectors": [4096], "design": ["independent"]}
    >>> windows = {"n_windows": [342], "vectors_per_window": [12], "window_tokens": [96]}
    >>> rows = pd.DataFrame(counts | windows | {"own_window_excluded": [True]})
    >>> print(sampling(rows))  # doctest: +NORMALIZE_WHITESPACE
    independent design: 4 batches of 4,096 vectors, 12 of each of 342 windows of 96 tokens,
    own window's neighbours left out
    """
    designed = rows.loc[rows["design"].notna(), ["design", *_WINDOW_COLUMNS]]
    batches = "batches" if bool((rows["n_batches"] != 1).any()) else "batch"
    size = f"{_span(rows, 'n_batches')} {batches} of {_span(rows, 'n_vectors')} vectors"
    if designed.empty:
        return f"{size}, sampling design not recorded"
    names = design_names(rows)
    is_of_inputs = names[0] in INPUT_DESIGNS
    window = INPUT_DESIGNS.get(names[0], "window")
    designs = names[0]
    if not is_of_inputs:
        designs = f"{' and '.join(names)} {'designs' if len(names) > 1 else 'design'}"
    n_windows = designed["n_windows"]
    most = designed["vectors_per_window"]
    as_even_as_possible = bool((n_windows * most < designed["n_vectors"] + n_windows).all())
    up_to = "" if as_even_as_possible else "up to "
    windows = f"{up_to}{_span(designed, 'vectors_per_window')} of each of "
    windows += f"{_span(designed, 'n_windows')} {window}s"
    # how many positions an image or waveform has differs between layers
    if not is_of_inputs:
        windows += f" of {_span(designed, 'window_tokens')} tokens"
    text = f"{designs}: {size}, {windows}"
    # in metrics that look at neighbours
    left_out = set(designed["own_window_excluded"].dropna().astype(bool))
    if not left_out:
        return text
    what = "left out" if left_out == {True} else "counted"
    if len(left_out) > 1:
        what = "in part left out"
    return f"{text}, own {window}'s neighbours {what}"


def brief_sampling(rows: pd.DataFrame) -> str:
    """Return the number of vectors of measurements and their designs in a few words.

    >>> brief_sampling(pd.DataFrame({"n_batches": [4], "n_vectors": [4096],
    ...     "design": ["independent"]}))
    '4 x 4,096 vectors (independent)'
    """
    n_batches = _span(rows, "n_batches")
    names = design_names(rows.loc[rows["design"].notna(), ["design"]])
    size = f"{_span(rows, 'n_vectors')} vectors"
    if n_batches != "1":
        size = f"{n_batches} x {size}"
    return f"{size} ({', '.join(names)})" if names else size


def _span(rows: pd.DataFrame, column: str) -> str:
    """Return the smallest and the largest number of a column, once where they are the same."""
    numbers = rows[column].to_numpy(float, na_value=np.nan)
    numbers = numbers[~np.isnan(numbers)]
    if not len(numbers):
        return "?"
    low = int(numbers.min())
    high = int(numbers.max())
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


PHASES = ("download", "load", "forward", "kernels")
"""Phases of the measurement of a swept checkpoint, stored as the scalars "seconds/PHASE"."""
DOWNLOADED = "bytes/download"

_MAX_KINDS = 2
_MAX_REASON = 72


def cost_line(frame: pd.DataFrame) -> str | None:
    """Return the median seconds of each phase of a run, and the bytes downloaded; None if none are
    stored.
    """
    seconds = {
        phase: taken.median()
        for phase in PHASES
        if not (taken := scalar(frame, f"seconds/{phase}")).empty
    }
    if not seconds:
        return None
    text = "per checkpoint: " + ", ".join(
        f"{phase} {median:,.1f} s" for phase, median in seconds.items()
    )
    total = sum(seconds.values())
    if "kernels" in seconds and len(seconds) > 1 and total > 0:
        text += f" ({seconds['kernels'] / total:.0%} of it in the kernels)"
    downloaded = scalar(frame, DOWNLOADED).sum()
    return f"{text}; {gigabytes(downloaded)} downloaded" if downloaded else text


def failure_line(frame: pd.DataFrame) -> str | None:
    """Return how many checkpoints of a run failed, at which steps and why, by kind of reason; None
    if all succeeded.
    """
    failed = failures(frame)
    if failed.empty:
        return None
    checkpoints = failed.drop_duplicates("step").sort_values("step")
    # without the commit, which differs at each step
    reasons = checkpoints["reason"].astype(str).str.replace(r"(?<=\S)@[^\s:]+", "", regex=True)
    groups = [group for _, group in reasons.groupby(kinds_of_text(reasons), sort=False)]
    parts = []
    for group in groups[:_MAX_KINDS]:
        of_kind = checkpoints.loc[group.index]
        at = "" if is_finished(of_kind) else f"{steps_in_words(of_kind['step'])}: "
        parts.append(at + textwrap.shorten(group.iloc[0], _MAX_REASON, placeholder="..."))
    if more := sum(map(len, groups[_MAX_KINDS:])):
        parts.append(f"{more} for other reasons")
    if bool(checkpoints["revision"].notna().any()):
        parts.append("--retry-failed tries again")
    noun = plural(len(checkpoints), "checkpoint")
    return f"{len(checkpoints)} {noun} failed: {'; '.join(parts)}"


def copies_line(frame: pd.DataFrame) -> str | None:
    """Return how many checkpoints of one run have the weights, or single files, of which other
    ones, and were therefore not measured; None if all have their own."""
    lines = []
    for column, what in (("same_as", "the weights"), ("mixed_with", "single files")):
        is_copy = frame[column].notna().to_numpy()
        if not is_copy.any():
            continue
        copies = frame.loc[is_copy].drop_duplicates(["run", "step", column]).sort_values("step")
        parts = [
            f"{steps_in_words(group['step'])} of {name}"
            for name, group in copies.groupby(column, sort=False, observed=True)
        ]
        verb = "checkpoint has" if len(copies) == 1 else "checkpoints have"
        of_others = f"{verb} {what} of another one and no values"
        lines.append(f"{len(copies)} {of_others}: {'; '.join(parts[:_MAX_KINDS])}")
    return "; ".join(lines) or None


def seconds_by_metric(rows: pd.DataFrame) -> pd.Series:
    """Return the median over checkpoints of the seconds each metric took on all layers and subsets
    together.
    """
    seconds = rows["seconds"].to_numpy(float)
    steps = rows["step"].to_numpy(int)
    took = {}
    for metric in distinct_texts(rows, "metric"):
        is_of_metric = has_text(rows, "metric", metric)
        _, step_of_row = np.unique(steps[is_of_metric], return_inverse=True)
        by_step = np.bincount(step_of_row, weights=np.nan_to_num(seconds[is_of_metric]))
        took[metric] = float(np.median(by_step))
    return pd.Series(took, dtype=float)


_BESIDE = {
    PROBE_BITS_PER_BYTE: "{:.3g} bits per byte",
    PROBE_ACCURACY: "accuracy {:.0%}",
    PROBE_CALIBRATION_ERROR: "calibration error {:.1%}",
}
"""Texts of the values shown next to the last loss on the probe, by the names of the scalars."""


def probe_loss_line(frame: pd.DataFrame) -> str | None:
    """Return the loss on the probe at the first and the last step in words, or why there is none.

    For example "loss on the probe 10.9 at step 0, 2.3 at step 1,000 (0.8 bits per byte, accuracy
    45%, calibration error 2%)"; None if it was not measured.
    """
    rows = scalar_rows(frame, PROBE_LOSS)
    if rows.empty:
        return None
    title = LOSS_TITLES[PROBE_LOSS]
    losses = scalar(frame, PROBE_LOSS)
    if losses.empty:
        return f"no {title}: {rows['reason'].iloc[-1]}"
    ends = list(dict.fromkeys([0, len(losses) - 1]))
    steps = losses.index.to_numpy(int)[ends]
    values = losses.to_numpy(float)[ends]
    texts = [number_text(value) for value in values]
    if not is_finished(rows):
        texts = [f"{text} at step {step:,}" for text, step in zip(texts, steps, strict=True)]
    others = {name: scalar(frame, name) for name in _BESIDE}
    beside = [
        _BESIDE[name].format(by_step.loc[steps[-1]])
        for name, by_step in others.items()
        if steps[-1] in by_step.index
    ]
    more = f" ({', '.join(beside)})" if beside else ""
    return f"{title} {', '.join(texts)}{more}"
