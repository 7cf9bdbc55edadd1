"""What is said of a dimension on two clouds: all vectors, and one vector of each distinct input."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from synthetic_runs import fill, make_row

import repdyn

PAGE = (Path(__file__).parents[1] / "docs" / "neighbours.md").read_text()
STEPS = tuple(range(0, 240, 10))


def block(name: str) -> str:
    """Return the code of the page between two comments of this name."""
    found = re.search(rf"<!-- {name} -->\n```python\n(.*?)```\n<!-- /{name} -->", PAGE, re.DOTALL)
    assert found, name
    return found.group(1)


def clouds(
    on_all, on_distinct=None, same_input: float | None = 0.8, steps=STEPS, reason=None, **more
):
    """Return rows of five layers; each curve is a function of step and layer, with 0.9 or none of
    the nearest neighbours the same token."""
    rows = []
    for step in steps:
        for layer in range(5):
            for subset, curve in (("all", on_all), ("distinct_inputs", on_distinct)):
                if curve is None and not (subset == "distinct_inputs" and reason):
                    continue
                fields = {"value": float("nan"), "std": float("nan"), "reason": reason}
                if curve is not None:
                    fields = {"value": float(curve(step, layer)), "std": 0.01}
                is_all = subset == "all"
                of_inputs = same_input if is_all or same_input is None else 0.0
                row = make_row(
                    step=step,
                    layer=layer,
                    depth=layer / 4,
                    metric="two_nn",
                    subset=subset,
                    same_token_fraction=None if same_input is None else 0.9,
                    same_input_fraction=of_inputs,
                    **fields | more,
                )
                rows.append(row)
    return rows


def test_the_page_checks_a_store_as_printed(tmp_path, monkeypatch, capsys):
    """The code of the page fails on a column that is not there, or prints one curve alone."""
    rows = clouds(lambda step, layer: 2 + step, lambda step, layer: 300 - step)
    fill(tmp_path / "runs" / "mine", rows)
    monkeypatch.chdir(tmp_path)
    given = {"repdyn": repdyn}
    exec(compile(block("check a store"), "neighbours.md", "exec"), given)
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("distinct_inputs", "same_input_fraction", "n_vectors"))
    assert len(block("check a store").splitlines()) == 3
    means = given["rows"].groupby(["step", "subset"])["value"].mean().unstack()
    assert means.loc[[0, 230]].to_numpy().tolist() == [[2, 300], [232, 70]]


@pytest.mark.filterwarnings("ignore:.*windows")
def test_the_page_checks_a_model_as_printed(hand_written, capsys):
    """The code of the page asks for a metric or a column that is not there."""
    from small import random_tokens

    probe = repdyn.Probe.from_tokens(random_tokens(64, 12), max_vectors=256)
    given = {"repdyn": repdyn, "model": hand_written, "probe": probe}
    exec(compile(block("check a model"), "neighbours.md", "exec"), given)
    frame = given["frame"]
    assert isinstance(frame, pd.DataFrame)
    assert set(frame["subset"]) == {"all", "distinct_inputs", "types"}
    assert "same_token_fraction" in capsys.readouterr().out
