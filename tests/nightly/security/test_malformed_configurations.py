"""Configurations, names and options of any content: understood, or refused with the file or the option in the message."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small import HandWritten
from sweeping import attempt

from repdyn.capture.blocks import find_blocks
from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.loading import Loading
from repdyn.checkpoints.local import find_checkpoints
from repdyn.checkpoints.options import n_bytes, parser
from repdyn.checkpoints.probes import ProbeText
from repdyn.checkpoints.revisions import (
    compile_pattern,
    match_revisions,
    parse_revision,
    select_revisions,
    whole_number,
)
from repdyn.checkpoints.suites import find_models, read_suite
from repdyn.checkpoints.weights import load_model
from repdyn.cli.train import TrainCLI
from repdyn.metrics import resolve
from repdyn.tracking.schedule import Schedule

FUZZ = settings(
    deadline=None, max_examples=100, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MODEL = {"name": "m", "repository": "lab/m", "revisions": r"step(?P<step>\d+)"}
SUITE = {"title": "T", "card": "https://c", "models": [MODEL]}
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def suite(path: Path, content: object) -> Path:
    path = path / "mine.yaml"
    path.write_text(
        content if isinstance(content, str) else yaml.safe_dump(content, allow_unicode=True), encoding="utf-8"
    )
    return path


@pytest.mark.slow
@pytest.mark.parametrize("key", [*SUITE, "more"])
@settings(FUZZ, max_examples=25)
@given(ANY)
def test_a_suite_with_a_field_of_any_kind(tmp_path, key, value):
    path = suite(tmp_path, SUITE | {key: value})
    found, refusal = attempt(lambda: read_suite(path))
    assert found is not None if refusal is None else str(path) in refusal


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    [
        "name",
        "for",
        "repository",
        "revisions",
        "subfolders",
        "commits",
        "branch",
        "checkpoints",
        "checked_against",
        "unverified",
        "tokens_per_step",
        "expected",
        "tokenizer",
        "run",
    ],
)
@settings(FUZZ, max_examples=25)
@given(ANY)
def test_a_model_with_a_field_of_any_kind(tmp_path, key, value):
    path = suite(tmp_path, SUITE | {"models": [MODEL | {key: value}]})
    found, refusal = attempt(lambda: read_suite(path))
    assert found is not None if refusal is None else str(path) in refusal or "expected " in refusal


@FUZZ
@given(st.text(st.sampled_from("abc:-[]{}&*!|>'\"#%@`, \n\t?<1.\x00é"), max_size=60))
def test_a_suite_of_any_text(tmp_path, content):
    path = suite(tmp_path, content)
    _, refusal = attempt(lambda: read_suite(path))
    assert str(path) in str(refusal)


LAUGHS = "a0: &a0 [ha]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 20)}]\n" for n in range(1, 30))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LAUGHS, r"expected no aliases, got \*a0"),
        ("a: &a {b: 1}\nc: {<<: *a}", r"expected no aliases, got \*a"),
        ("&a [*a]", r"expected no aliases, got \*a"),
        ("title: &t {x: *t}", r"expected no aliases, got \*t"),
        ("[" * 30 + "]" * 30, "expected at most 20 levels, got more"),
        ("[" * 100_000, "expected at most 20 levels, got more"),
        ("title: a\ntitle: b", "expected each key once, got 'title' more often"),
        ("!!python/object/apply:os.system [ls]", "could not determine a constructor for the tag"),
        ("!!python/name:os.system", "could not determine a constructor"),
        ("!!int ''", "got something that does not parse"),
        ("!!float x", "got something that does not parse"),
        ("!!bool x", "got something that does not parse"),
        ("!!timestamp x", "got something that does not parse"),
        ("!!binary x", "got something that does not parse"),
        ("2026-13-45", "got something that does not parse"),
        ("9" * 5000, "got something that does not parse"),
        ("? [a]\n: b", "got something that does not parse"),
        ("title: a\n---\ntitle: b", "got something that does not parse"),
        ("5", "expected a mapping with keys among title, card, models"),
        ("", "expected a mapping with keys among title, card, models"),
    ],
    ids=lambda value: None if value.startswith(("expected", "got", "could")) else repr(value[:20]),
)
def test_yaml_that_is_more_than_a_suite(tmp_path, content, message):
    start = time.process_time()
    with pytest.raises(ValueError, match=message) as refusal:
        read_suite(suite(tmp_path, content))
    assert "mine.yaml" in str(refusal.value)
    assert len(str(refusal.value)) < 2000
    assert time.process_time() - start < 5


def test_yaml_that_is_no_utf_8(tmp_path):
    (tmp_path / "mine.yaml").write_bytes(b"title: \xff\xfe")
    with pytest.raises(ValueError, match="expected YAML in .*mine.yaml, got something that does not parse"):
        find_models([str(tmp_path / "mine.yaml")])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expected": ["0..999999999999"]}, "expected a range of at most 100000 values"),
        ({"expected": [f"0..{'9' * 5000}"]}, "expected a whole number such as"),
        (
            {"for": {"a": ["0..9999"], "b": ["0..9999"]}, "name": "m{a}-{b}"},
            "expected at most 100000 combinations under",
        ),
        ({"revisions": "(?P<step>a{99999999999})"}, "expected a regular expression, got "),
        ({"revisions": "(" * 500 + "(?P<step>1)" + ")" * 500}, "expected a regular expression, got |more than"),
        ({"tokens_per_step": 1 << 70}, "expected at most 9223372036854775807 as tokens_per_step"),
    ],
    ids=["range", "digits", "combinations", "repetition", "nesting", "tokens"],
)
def test_a_model_that_asks_for_too_much(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        read_suite(suite(tmp_path, SUITE | {"models": [MODEL | changes]}))


@pytest.mark.parametrize(
    "text", ["9" * 30, "9223372036854775808", "10000000T", "9" * 10_000, "1." + "0" * 10_000, "٣", "1e5", ""]
)
def test_numbers_that_no_store_holds(text):
    with pytest.raises(ValueError, match="as step, got "):
        whole_number(text, "step")


@FUZZ
@given(st.lists(st.text(st.sampled_from("step-_=./0123456789kMBTtokensagecheckpoint٣é \n"), max_size=60), max_size=6))
def test_names_of_any_kind_are_sorted_out(names):
    names = list(dict.fromkeys(names))
    found, refusal = attempt(lambda: match_revisions(names))
    if refusal is None:
        places, others = found
        assert sorted([place.name for place in places] + others) == sorted(names)
        assert all(0 <= place.step < 1 << 63 for place in places)
    else:
        assert refusal.startswith("expected ")


@pytest.mark.parametrize("name", ["stage1" + "-step" * 20_000, "step" * 50_000, "tokens" * 40_000, "1" * 100_000 + "x"])
def test_a_name_without_end_is_no_checkpoint_and_takes_no_time(name):
    start = time.process_time()
    assert parse_revision(name) is None
    assert time.process_time() - start < 1


@FUZZ
@given(st.text(max_size=20))
def test_a_choice_of_revisions_of_any_kind(spec):
    places, _ = match_revisions(["step1", "step2"])
    chosen, refusal = attempt(lambda: select_revisions(places, spec))
    assert set(chosen) <= set(places) if refusal is None else refusal.startswith("expected ")


@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
@FUZZ
@given(st.text(st.sampled_from("()[]{}?P<step>tokens*+.|\\d^$a1"), max_size=30))
def test_a_pattern_of_any_kind(pattern):
    _, refusal = attempt(lambda: compile_pattern(pattern))
    assert refusal is None or refusal.startswith("expected ")


@FUZZ
@given(st.text(max_size=12) | st.sampled_from(["9" * 400, "9" * 5000 + "T", "1." + "9" * 500, "-1GB", "nan", "inf"]))
def test_a_size_of_any_kind(text):
    size, refusal = attempt(lambda: n_bytes(text), argparse.ArgumentTypeError)
    assert size > 0 if refusal is None else refusal.startswith("expected a size such as 20GB")


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [
        "--max-disk",
        "--shard",
        "--timeout",
        "--workers",
        "--device",
        "--dtype",
        "--engine",
        "--max-vectors",
        "--sequence-length",
        "--tokens-per-forward",
    ],
)
@pytest.mark.parametrize("value", ["", "-1", "x", "\0", "9" * 5000, "1/0", "٣/٢", "\udcff"], ids=ascii)
def test_an_option_of_any_kind(option, value, capsys):
    with pytest.raises(SystemExit) as stop:
        parser("sweep").parse_args(["lab/m", f"{option}={value}"])
    assert stop.value.code == 2
    assert f"argument {option}: " in capsys.readouterr().err


@pytest.mark.slow
@FUZZ
@given(st.lists(st.text(max_size=12), max_size=3))
def test_metrics_and_layers_of_any_name(names):
    assert attempt(lambda: resolve(names))[1].startswith("expected ")
    for name in names:
        found, refusal = attempt(lambda name=name: find_blocks(HandWritten(1), name))
        assert found if refusal is None else refusal.startswith("expected ")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(SCALARS.filter(lambda key: key == key), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@FUZZ
@given(ANYTHING)
def test_arguments_of_any_type(value):
    """From a configuration or by mistake: what is no schedule, no metrics, no layers says what would be one."""
    model = HandWritten(1)
    for take in (Schedule.parse, resolve, lambda layers: find_blocks(model, layers)):
        found, refusal = attempt(lambda take=take: take(value))
        assert refusal is None or refusal.startswith("expected "), refusal
        assert found or refusal


CONFIGS: dict[str, Any] = {
    "a list": "[]", "a number": "5", "null": "null", "cut short": '{"model_type": "gpt_neox"', "empty": "", "nothing": "{}",
    "no UTF-8": "\xff", "nested": "[" * 100_000, "no model_type": {"model_type": None}, "a list as model_type": {"model_type": ["a"]},
    "another model_type": {"model_type": "../../x"}, "a negative size": {"hidden_size": -1}, "a size of text": {"hidden_size": "x"},
    "a size of 0": {"hidden_size": 0}, "no heads": {"num_attention_heads": 0}, "half a layer": {"num_hidden_layers": 1.5},
    "layers without end": {"num_hidden_layers": 10**9}, "another width": {"intermediate_size": 17}, "a vocabulary of 10^12": {"vocab_size": 10**12},
    "an activation of nowhere": {"hidden_act": "os.system"}, "a type of nowhere": {"dtype": "os.system"}, "a map of code": {"auto_map": 3},
    "quantised by nothing": {"quantization_config": 5}, "rope of lists": {"rope_scaling": [1]},
}  # fmt: skip


def configure(folder: Path, content: Any) -> None:
    path = folder / "config.json"
    if isinstance(content, dict):
        path.write_text(json.dumps(json.loads(path.read_text()) | content))
    else:
        path.write_text(content, encoding="latin-1")


@pytest.mark.slow
@pytest.mark.parametrize("content", CONFIGS.values(), ids=CONFIGS)
def test_a_configuration_that_is_malformed(family, content):
    configure(family[8], content)
    start = time.process_time()
    with pytest.raises(CheckpointError):
        load_model(family[8], Loading())
    assert time.process_time() - start < 10


@pytest.mark.slow
@pytest.mark.parametrize("share", [0, 0.0005, 0.1, 0.6, 0.999])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_weights_that_are_cut_short(family, share, name):
    import torch
    from safetensors.torch import load_file

    tensors = load_file(family[8] / "model.safetensors")
    (family[8] / "model.safetensors").unlink()
    shutil.copy(family[0] / "model.safetensors", family[8] / name) if "safe" in name else torch.save(
        tensors, family[8] / name
    )
    content = (family[8] / name).read_bytes()
    (family[8] / name).write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match="the checkpoint does not load"):
        load_model(family[8], Loading())


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [{"model_max_length": "x"}, {"model_max_length": [5]}, {"model_max_length": 7.9}, {"model_max_length": -5}],
    ids=str,
)
def test_a_tokenizer_whose_limit_is_no_number(family, content):
    from transformers import AutoConfig

    path = family[8] / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | content))
    probe, refusal = attempt(
        lambda: ProbeText("builtin", max_vectors=64).probe("m", family[8], AutoConfig.from_pretrained(family[8])),
        CheckpointError,
    )
    assert len(probe.tokens) > 0 if refusal is None else refusal.startswith("the tokenizer of m does not load")


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04", b"\x80\x04.", bytes(500)], ids=["empty", "zip", "pickle", "zeros"]
)
def test_a_lightning_file_that_is_damaged(tmp_path, content):
    (tmp_path / "last.ckpt").write_bytes(content)
    with pytest.raises(ValueError, match="expected Lightning checkpoints, got a damaged one without a step in its"):
        find_checkpoints(tmp_path, "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            LAUGHS + "data: {text: *a29}",
            "expected YAML in mine.yaml, got something that does not parse: expected no aliases",
        ),
        ("model: {n_layers: many}", "n_layers"),
        ("model: {hidden_size: [1]}", "hidden_size"),
        ("model: 5", "model"),
        ("run: {name: [a]}", "name"),
        ("run: {loggers: [nobody]}", "loggers"),
        ("trainer: {max_steps: soon}", "max_steps"),
        ("data: &a {text: *a}", "expected no aliases, got *a"),
        ("!!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("run: {name: a}\nrun: {name: b}", "expected each key once, got 'run' more often"),
        ("[" * 2000, "expected at most 20 levels, got more"),
        ("nothing: 1", "nothing"),
    ],
    ids=lambda value: repr(value[:30]),
)
def test_a_configuration_of_a_training_that_is_malformed(tmp_path, monkeypatch, capsys, given, said):
    (tmp_path / "mine.yaml").write_text(given)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py", "fit", "--config", "mine.yaml"])
    with pytest.raises(SystemExit) as stop:
        TrainCLI()
    assert stop.value.code == 2
    assert said in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"branches": 5}',
        b'{"branches": [{}], "tags": [], "converts": []}',
        b"\xff",
        b"<html>",
        b"[" * 200_000 + b"]" * 200_000,
    ],
    ids=lambda body: repr(body[:60]),
)
def test_a_hub_that_answers_with_something_else(hub, family, monkeypatch, body):
    hub.publish("lab/model", "step8", family[8])
    monkeypatch.setattr(
        hub.repositories["lab/model"], "refs", lambda: (200, body, {"Content-Type": "application/json"})
    )
    with pytest.raises(CheckpointError, match="the answer made no sense while lab/model was fetched"):
        Hub().refs("lab/model")
