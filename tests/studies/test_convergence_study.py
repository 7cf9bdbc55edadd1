"""``repdyn study convergence`` from a saved model to its tables and figures."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from synthetic_runs import fill, make_row, make_scalar
from transformers import AutoModel, AutoTokenizer, T5Config, T5Model

from repdyn import measure
from repdyn.capture.capture import capture
from repdyn.capture.prepared_model import prepare
from repdyn.cli.main import main
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.studies.convergence import study
from repdyn.studies.convergence.generated_sentences import sentence_probe
from repdyn.studies.convergence.profiles import estimate_change, measure_convergence, token_cosines
from repdyn.studies.models import LoadedModel

LONG = {"context_length": 256}


@pytest.fixture
def text(tmp_path):
    """Words of every class, often enough."""
    path = tmp_path / "text.txt"
    random = np.random.default_rng(0)
    words = ["the", "of", "and", "river", "stone", "walk", "green", *(f"{a}{b}ord" for a in "bcdfgw" for b in "aeiou")]
    chosen = random.choice(words, 3000, p=(shares := 1 / np.arange(1, len(words) + 1)) / shares.sum())
    path.write_text(" ".join(chosen))
    return path


def ran(*arguments):
    main(["study", "convergence", *map(str, arguments)])


def short(text, output, *more):
    given = ["--text", text, "--sequence-length", 32, "--max-vectors", 512, "--resamples", 50, "-o", output]
    return [*given, *more] if "--sentences" in more else [*given, "--sentences", 20, *more]


# cosines


def test_cosines_against_the_states_themselves(hand_written, small_probe):
    states = capture(prepare(hand_written), small_probe, ["all", "no_sink"])
    [found] = token_cosines(hand_written, small_probe, ["all", "no_sink"])
    last = states.layers[-1].states.double()
    for layer, cosines in zip(states.layers, found.cosines, strict=True):
        expected = torch.nn.functional.cosine_similarity(layer.states.double(), last)
        np.testing.assert_allclose(cosines, expected.numpy(), rtol=1e-12)
    np.testing.assert_allclose(found.cosines[-1], 1, atol=1e-12)


def test_sums_are_by_sequence(hand_written, small_probe):
    [found] = token_cosines(hand_written, small_probe, ["all"])
    tokens = small_probe.sample("all").ravel()
    sums = found.sum_by_sequence(tokens)
    for sequence in range(24):
        members = [token for token in tokens if token // 12 == sequence]
        assert sums.counts[sequence] == len(members)
        expected = found.cosines[:, found.rows[members]].sum(1)
        np.testing.assert_allclose(sums.sums[sequence], expected, rtol=1e-12)


@pytest.mark.parametrize("subset", ["all", "no_sink"])
def test_the_alignment_is_the_metric(subset, hand_written, small_probe):
    [found] = token_cosines(hand_written, small_probe, ["all", "no_sink"])
    rows = measure(hand_written, small_probe, [f"alignment@{subset}"]).to_pandas()
    np.testing.assert_allclose(found.sum_by_sequence(small_probe.sample(subset)).alignment, rows["value"], rtol=1e-12)


def test_states_without_a_direction_are_refused(hand_written, small_probe):
    with torch.no_grad():
        hand_written.token.weight.zero_()
        hand_written.position.weight.zero_()
    message = r"expected states with a direction at layer 0 \(.*\) and at the last layer, got some without: .* are zero"
    with pytest.raises(ValueError, match=message):
        token_cosines(hand_written, small_probe, ["all"])


def test_each_stack_has_a_last_layer_of_its_own(small_probe):
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 32}
    model = T5Model(T5Config(**sizes, num_layers=2, num_decoder_layers=3, decoder_start_token_id=0)).eval()
    found = {one.stack: one for one in token_cosines(model, small_probe, ["all"])}
    assert {stack: len(one.cosines) for stack, one in found.items()} == {"encoder": 3, "decoder": 4}
    for one in found.values():
        np.testing.assert_allclose(one.cosines[-1], 1, atol=1e-12)
        assert one.cosines[0].max() < 0.999


@pytest.mark.real_data
def test_a_trained_decoder_on_made_up_sentences():
    folder = Path(os.environ.get("REPDYN_DATA", "")) / "stories260K-hf"
    if not folder.is_dir():
        pytest.skip("no trained weights; set REPDYN_DATA")
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    probe = sentence_probe(tokenizer, 100)
    [found] = token_cosines(model, probe, ["all"])
    alignment = found.sum_by_sequence(probe.sample("all")).alignment
    # torch 2.13.0, transformers 5.23.0, 2026-11-21
    np.testing.assert_allclose(alignment, [0.2158, 0.4656, 0.5967, 0.7317, 0.8611, 1], atol=1e-4)


# the command


@pytest.mark.slow
def test_two_models(save_model, text, tmp_path, capsys):
    ran(save_model("a", **LONG), save_model("b", "gpt_neox", n_layers=3, **LONG), *short(text, tmp_path / "out"))
    out = tmp_path / "out"
    figures = ["profiles", "a/gradient", "a/gaps", "b/gradient", "b/gaps"]
    expected = {f"{name}.{kind}" for name in figures for kind in ("png", "svg")}
    found = {str(path.relative_to(out)) for path in out.rglob("*.*")}
    assert found == expected | {"profiles.csv", "classes.csv", "gaps.csv"}
    profiles = pd.read_csv(out / "profiles.csv").set_index(["model", "layer"])
    assert [len(profiles.loc[name]) for name in ("a", "b")] == [3, 4]
    assert profiles["alignment_low"].le(profiles["alignment"] + 1e-12).all()
    assert profiles.loc["a", "gradient"].to_numpy()[:-1] == pytest.approx(np.diff(profiles.loc["a", "alignment"]))
    classes = pd.read_csv(out / "classes.csv")
    named = ["all", "no_sink", "function", "content", "frequent", "rare", "simple", "complex"]
    assert classes["class"].unique().tolist() == named
    gaps = pd.read_csv(out / "gaps.csv")
    assert gaps.groupby(["model", "first", "second"], sort=False).size().tolist() == [2, 2, 2, 3, 3, 3]
    assert gaps["test"].unique().tolist() == ["paired t-test", "Welch's t-test"]
    printed = capsys.readouterr().out
    assert printed.startswith("a  512 tokens of ")
    assert "layer alignment             95 % gradient             95 % isotonic envelope" in printed
    assert "frequent against rare (paired t-test, " in printed


@pytest.mark.slow
def test_again_gives_the_same_files(save_model, text, tmp_path):
    folder = save_model("a", **LONG)
    for name in ("one", "two"):
        ran(folder, *short(text, tmp_path / name))
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*")]
    assert len(files) == 9
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


@pytest.mark.slow
def test_the_text_alone(save_model, text, tmp_path):
    ran(save_model("a"), *short(text, tmp_path / "out", "--sentences", 0, "--classes", "none"))
    assert {path.name for path in (tmp_path / "out").glob("*.csv")} == {"profiles.csv", "classes.csv"}
    assert not (tmp_path / "out" / "a" / "gaps.png").exists()
    assert pd.read_csv(tmp_path / "out" / "classes.csv")["class"].unique().tolist() == ["all", "no_sink"]


def test_sentences_that_do_not_fit(save_model, text, tmp_path, capsys):
    with pytest.raises(SystemExit):
        ran(save_model("a"), *short(text, tmp_path / "out"))
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: a cannot read generated sentences: expected ")


@pytest.mark.slow
def test_before_and_after(save_model, text, tmp_path, capsys):
    before, after = (save_model(name, seed=seed) for seed, name in enumerate(("before", "after")))
    ran(before, after, *short(text, tmp_path / "out", "--before-after", "--sentences", 0))
    table = pd.read_csv(tmp_path / "out" / "change.csv")
    profiles = pd.read_csv(tmp_path / "out" / "profiles.csv").set_index("model")
    expected = profiles.loc["after", "alignment"].to_numpy() - profiles.loc["before", "alignment"].to_numpy()
    np.testing.assert_allclose(table["alignment"], expected, atol=1e-12)
    assert table["model"].unique().tolist() == ["after minus before"]
    assert table["alignment_low"].le(table["alignment"]).all()
    assert (tmp_path / "out" / "after minus before" / "change.png").exists()
    assert "after minus before\n" in capsys.readouterr().out


def subject(folder, name="a", **tokenizer):
    return LoadedModel(name, AutoModel.from_pretrained(folder).eval(), byte_tokenizer(**tokenizer))


def settings(text, **given):
    asked = {
        "text": str(text),
        "sequence_length": 32,
        "max_vectors": 512,
        "classes": "none",
        "sentences": 0,
        "layers": None,
    }
    return argparse.Namespace(**asked | given)


def test_a_checkpoint_and_itself_do_not_differ(save_model, text):
    [result] = measure_convergence(subject(save_model()), settings(text))
    found = estimate_change(result, result, 50)
    assert found.table.drop(columns="layer").fillna(0).eq(0).all(axis=None)
    assert found.rate == 0


def test_changes_need_the_same_tokens_and_layers(save_model, text):
    folder = save_model()
    [result] = measure_convergence(subject(folder), settings(text))
    [others] = measure_convergence(subject(folder, "b", for_encoder=True), settings(text))
    with pytest.raises(
        ValueError, match="expected two models that read the same tokens, but a and b cut the text diff"
    ):
        estimate_change(result, others, 10)
    [deeper] = measure_convergence(subject(save_model("deep", n_layers=3), "deep"), settings(text))
    with pytest.raises(ValueError, match="same number of layers, got a with 2 blocks and deep with 3; compare"):
        estimate_change(result, deeper, 10)


def test_a_context_that_is_short(save_model, text):
    [result] = measure_convergence(subject(save_model(context_length=16)), settings(text))
    assert result.all_tokens.counts.max() <= 16


# the loss


def checkpoints(run="lab/a", steps=(0, 1, 2, 4, 8), metric="alignment", loss=True):
    profiles = [
        make_row(run=run, step=step, layer=layer, depth=layer / 2, metric=metric, value=value)
        for number, step in enumerate(steps)
        for layer, value in enumerate((0.1 * number, 0.5, 1.0))
    ]
    return [*profiles, *(make_scalar(step, 6.0 - number, run=run) for number, step in enumerate(steps) if loss)]


@pytest.mark.slow
def test_a_store(tmp_path, capsys):
    store = fill(tmp_path / "store", checkpoints())
    ran("--store", store.path, "-o", tmp_path / "out")
    printed = capsys.readouterr().out
    assert printed.startswith("lab/a  5 checkpoints; correlation with the training loss\n")
    assert re.search(r"^mean alignment +-1.000 +-1.000$", printed, re.MULTILINE)
    assert re.search(r"^average rate +1.000 +1.000$", printed, re.MULTILINE)
    table = pd.read_csv(tmp_path / "out" / "loss.csv")
    assert table["step"].tolist() == [0, 1, 2, 4, 8]
    assert table["loss"].tolist() == [6, 5, 4, 3, 2]
    assert (tmp_path / "out" / "lab%2Fa" / "loss_3f2ab1c0.png").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            checkpoints(steps=(0, 1, 2)),
            "lab/a on the probe 3f2ab1c0: expected at least 4 checkpoints with both an align",
        ),
        (
            checkpoints(loss=False),
            "lab/a on the probe 3f2ab1c0: expected at least 4 checkpoints with both an alignment",
        ),
        (checkpoints(metric="two_nn"), "lab/a on the probe 3f2ab1c0: expected a measured metric, got 'alignment'"),
    ],
    ids=["three", "no loss", "no alignment"],
)
def test_stores_that_do_not_tell(rows, message, tmp_path, capsys):
    store = fill(tmp_path / "store", rows)
    with pytest.raises(SystemExit) as stopped:
        ran("--store", store.path, "-o", tmp_path / "out")
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "expected a model or --store RUN, got neither; see --help"),
        (["a", "--before-after"], "expected two models with --before-after, got 1; name first and second"),
        (["a", "--run", "x"], "expected --run with --store, got it alone; name the store that holds the run"),
    ],
    ids=["nothing", "one model", "a run"],
)
def test_contradictions(given, message, capsys, tmp_path):
    with pytest.raises(SystemExit):
        ran(*given, "-o", tmp_path / "out")
    assert capsys.readouterr().err == f"error: {message}\n"


def test_every_example_is_understood():
    for line in study.STUDY.examples.splitlines()[1:]:
        command, *_ = re.split(r"\s{2,}", line.strip())
        assert command.startswith("repdyn study convergence ")
        study.STUDY.parser("study").parse_args(command.split()[3:])
