"""Values that others published beside one's own, and scores of tasks beside metrics."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from synthetic_runs import fill, make_published, make_row

from repdyn.cli.main import main
from repdyn.lab.recipes import published
from repdyn.metrics import resolve
from repdyn.probe.design import SUBSETS
from repdyn.views.judging.scores import read_scores

PYTHIA = "EleutherAI/pythia-6.9b"
OURS = {"run": PYTHIA, "step": 512, "layer": 1, "subset": "last_token", "n_vectors": 10_000}


def compare(capsys, *arguments):
    status = 0
    try:
        main(["compare", *map(str, arguments)])
    except SystemExit as stop:
        status = stop.code
    return status, capsys.readouterr().out


def test_what_agrees_is_drawn_whatever_its_name_and_the_rest_says_why_not(tmp_path, capsys):
    """A last layer after the final norm, or a count that is one less, would pass for a difference
    of the models.
    """
    values = published.published_values().query("model == 'pythia-6.9b' and revision == 'step512'")
    values = pd.concat([values.query("layer == 1").assign(layer=0), values])
    rows = []
    for layer, name, value in values[["layer", "metric", "value"]].itertuples(index=False):
        own = published.QUANTITIES[name].metric.format(k=32).replace("gride_32", "gride_2")
        (request,) = resolve([own], subsets=SUBSETS)
        row = {
            "metric": request.name,
            "settings": request.settings_json,
            "value": value + (name == "pca99"),
        }
        rows.append(make_row(**OURS | row | {"layer": layer, "depth": layer / 32, "std": 0.01}))
    status, out = compare(capsys, fill(tmp_path / "store", rows).path, "-o", tmp_path / "out")
    assert status == 0
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".png", ".svg", ".csv"}
    table = pd.read_csv(tmp_path / "out" / "EleutherAI_pythia-6.9b.csv")
    assert table.groupby("metric")["layer"].agg(["min", "max"]).to_numpy().tolist() == 3 * [[1, 31]]
    np.testing.assert_allclose(table["value"], table["value_published"])
    assert (
        "gride of BIA is not drawn elsewhere: checkpoint step4000 was not measured (4 such "
        "checkpoints)."
    ) in out


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"n_vectors": 4096},
            "the vectors in a batch differ at step512: 4096 measured, 10000 published",
        ),
        ({"subset": "all"}, "the tokens differ at step512: all measured, last_token published"),
        (
            {"settings": '{"k": 8}'},
            'the quantities differ at step512: gride {"k": 8} measured, gride {"k": 32}',
        ),
        ({"step": 513}, "checkpoint step512 was not measured"),
    ],
)
def test_what_does_not_agree_is_not_drawn_and_a_command_measures_it(
    changes, reason, tmp_path, capsys
):
    rows = [make_row(**OURS | {"metric": "gride_32", "settings": '{"k": 32}'} | changes)]
    status, out = compare(capsys, fill(tmp_path / "store", rows).path, "-o", tmp_path / "out")
    assert status == 1
    assert f"gride of BIA is not drawn: {reason}" in out
    assert re.search(
        rf"repdyn sweep {PYTHIA} --revisions step512,\S+ --metrics .*gride_32\[k=128\]@last_token",
        out,
    )
    assert out.rstrip().endswith("--max-vectors 80000 --batch-vectors 80000 --text FILE")


def test_every_published_quantity_is_judged_by_a_metric_or_a_reason():
    values = published.published_values()
    assert set(values["metric"]) == set(published.QUANTITIES)
    for quantity in published.QUANTITIES.values():
        assert bool(quantity.differs) != bool(quantity.refused)
        assert quantity.refused or resolve([quantity.metric.format(k=32)], subsets=SUBSETS)
    assert Path(published.__file__).with_name("published.parquet").stat().st_size < 50_000


STEPS = tuple(range(0, 240, 10))


def test_a_metric_that_precedes_a_score_is_found_at_its_lag(tmp_path, capsys):
    """A score read beside the checkpoint before or after would move every lag by one."""
    course = np.random.default_rng(0).normal(size=len(STEPS)).cumsum() + 20
    at = dict(zip(STEPS, course, strict=True))
    store = fill(
        tmp_path / "store",
        make_published("lab/a", steps=STEPS, dimension=lambda step, depth: at[step]),
    )
    scores = pd.DataFrame(
        {"step": STEPS[2:], "task": "sciq", "metric": "acc", "value": course[:-2] + 1}
    )
    scores.to_csv(tmp_path / "scores.csv", index=False)
    status, out = compare(
        capsys, store.path, "--with", tmp_path / "scores.csv", "-o", tmp_path / "out"
    )
    assert status == 0
    assert "12 correlations were tried" in out
    assert "arXiv 2604.20276" in out
    correlations = pd.read_csv(tmp_path / "out" / "correlations.csv")
    best = correlations.iloc[0]
    assert best["metric"] == "two_nn"
    assert best["lag"] == 2
    assert best["changes_correlation"] == pytest.approx(1)
    plain = correlations.query("metric == 'two_nn' and lag == 0").iloc[0]
    assert plain["correlation"] == pytest.approx(spearmanr(course[2:], course[:-2])[0])
    assert plain["low"] < plain["correlation"] < plain["high"]


def test_scores_of_lm_evaluation_harness(tmp_path):
    content = {"results": {"sciq": {"acc,none": 0.5, "acc_stderr,none": 0.1, "alias": "sciq"}}}
    (tmp_path / "step1000.json").write_text(json.dumps(content))
    content |= {"config": {"model_args": f"pretrained={PYTHIA},revision=step8"}}
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert read_scores(tmp_path).to_numpy().tolist() == [
        ["", 1000, "sciq", "acc", 0.5],
        [PYTHIA, 8, "sciq", "acc", 0.5],
    ]
    (tmp_path / "scores.csv").write_text("step,task,value\n1,a,1\n")
    with pytest.raises(ValueError, match="got no metric"):
        read_scores(tmp_path / "scores.csv")


@pytest.mark.parametrize(
    ("arguments", "folder", "expected"),
    [
        ("pretrained=lab/a,revision=step-5K,dtype=float32", "", ("lab/a", 5000)),
        ({"pretrained": "lab/a", "revision": "iter_0010000"}, "", ("lab/a", 10000)),
        ("pretrained=runs/a/checkpoint-500", "", ("runs/a/checkpoint-500", 500)),
        ("pretrained=lab/step-a,revision=5k", "", ("lab/step-a", 5000)),
        ("pretrained=lab/a,revision=1M", "step7", ("lab/a", 1_000_000)),
        ("pretrained=lab/a", "global_step1000", ("lab/a", 1000)),
        ("pretrained=lab/a-7b,revision=main", "step2", ("lab/a-7b", 2)),
    ],
)
def test_the_step_of_scores_is_read_as_that_of_a_checkpoint(tmp_path, arguments, folder, expected):
    """step-5K was step 5."""
    content = {"results": {"sciq": {"acc": 0.5}}, "config": {"model_args": arguments}}
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "results_2026-10-10T12.json").write_text(json.dumps(content))
    scores = read_scores(tmp_path)
    assert tuple(scores.loc[0, ["model", "step"]]) == expected


def test_scores_of_another_model_stay_out_of_a_correlation(tmp_path, capsys):
    """Those of one model were correlated with the geometry of every run."""
    rows = [row for name in "ab" for row in make_published(f"lab/{name}", steps=STEPS)]
    store = fill(tmp_path / "store", rows)
    values = np.random.default_rng(0).normal(size=len(STEPS))
    scores = pd.DataFrame({"step": STEPS, "task": "sciq", "metric": "acc", "value": values})
    path = tmp_path / "scores.csv"
    arguments = (store.path, "--with", path, "-o", tmp_path / "out")

    scores.assign(model="org/other").to_csv(path, index=False)
    assert compare(capsys, *arguments)[0] != 0
    assert not (tmp_path / "out").exists()

    scores.assign(model="b", step=[f"step-{step}" for step in STEPS]).to_csv(path, index=False)
    assert compare(capsys, *arguments)[0] == 0
    assert set(pd.read_csv(tmp_path / "out" / "correlations.csv")["run"]) == {"b"}

    scores.to_csv(path, index=False)
    assert compare(capsys, *arguments)[0] == 2
    assert compare(capsys, *arguments, "--run", "lab/a")[0] == 0
    assert set(pd.read_csv(tmp_path / "out" / "correlations.csv")["run"]) == {"a"}
