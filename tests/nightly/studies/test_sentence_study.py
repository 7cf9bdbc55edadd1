"""``repdyn study sentences``: its files, its vectors, and the study from saved models to tables and figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, T5Config, T5Model

from repdyn.cli.main import main
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.studies.sentences.inputs import read_changes, read_groups
from repdyn.studies.sentences.tables import ALL_KINDS
from repdyn.studies.sentences.vectors import FIRST, LAST, MEAN

GROUPS = {"cats": ["a cat", "one cat sat", "cats"], "dogs": ["a dog", "the dog"], "rain": ["it rains", "wet", "rain"]}


CHANGED = {"more": [["a cat", "cats"], ["a dog", "dogs"]], "not": [["he runs", "he runs not"], ["i eat", "i eat not"]]}


def ran(*arguments):
    main(["study", "sentences", *map(str, arguments)])


@pytest.fixture
def files(tmp_path) -> list[str | Path]:
    """Options for small inputs."""
    groups, changes, text = (tmp_path / name for name in ("groups.json", "changes.json", "text.txt"))
    groups.write_text(json.dumps(GROUPS))
    changes.write_text(json.dumps(CHANGED))
    text.write_text("\n\n".join(f"paragraph {n} of {n * n}" for n in range(20)))
    return ["--groups", groups, "--changes", changes, "--text", text, "--texts", "8"]


@pytest.fixture
def drawn(monkeypatch) -> list[set[str]]:
    """Names of the figures of each model, which take longer to write than all else."""
    names: list[set[str]] = []
    monkeypatch.setattr("repdyn.studies.output.save", lambda figures, folder: names.append(set(figures)) or [])
    return names


@pytest.mark.parametrize("shape", ["json", "csv"])
def test_changes_of_a_file(shape, tmp_path):
    path = tmp_path / f"changes.{shape}"
    if shape == "csv":
        lines = [(kind, *pair) for kind, pairs in CHANGED.items() for pair in pairs]
        pd.DataFrame(lines, columns=["kind", "before", "after"]).to_csv(path, index=False)
    else:
        path.write_text(json.dumps(CHANGED))
    found = read_changes(path)
    assert found["before"].tolist() == ["a cat", "a dog", "he runs", "i eat"]
    assert found["after"].tolist() == ["cats", "dogs", "he runs not", "i eat not"]
    assert found["kind"].tolist() == ["more", "more", "not", "not"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected {path} to be JSON, or CSV by a name that ends in .csv: "),
        ('{"a": "text"}', "expected groups of sentences in {path}, "),
        ('{"a": ["text", " "]}', "expected groups of sentences in {path}, "),
        ('"text"', "expected groups of sentences in {path}, "),
    ],
    ids=["no json", "no lists", "an empty text", "a text"],
)
def test_other_files_than_groups(content, message, tmp_path):
    path = tmp_path / "groups.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="^" + re.escape(message.format(path=path))):
        read_groups(path)


@pytest.mark.parametrize(
    "content", ['{"a": [["one"]]}', '{"a": ["one", "two"]}', "[]"], ids=["one", "no pairs", "a list"]
)
def test_other_files_than_changes(content, tmp_path):
    path = tmp_path / "changes.json"
    path.write_text(content)
    with pytest.raises(
        ValueError, match=r"^expected changed sentences in .*; give pairs of texts, none of them empty$"
    ):
        read_changes(path)


def test_the_tables_hold_the_model_s_own_numbers(save_model, files, tmp_path, drawn):
    folder = save_model("small")
    ran(folder, *files, "-o", tmp_path / "out")
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    vectors_ = []
    for group in GROUPS.values():
        for text in group:
            with torch.no_grad():
                states = model(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
            vectors_.append(states.double().mean(0).numpy())
    unit = np.stack(vectors_) / np.linalg.norm(vectors_, axis=1, keepdims=True)
    names = [name for name, group in GROUPS.items() for _ in group]
    within = [unit[a] @ unit[b] for a in range(8) for b in range(a) if names[a] == names[b]]
    table = pd.read_csv(tmp_path / "out" / "small" / "separation.csv")
    [found] = table.query(f"layer == 2 and vector == '{MEAN}'")["within"]
    assert found == pytest.approx(np.mean(within), rel=1e-4)


def test_each_stack_of_an_encoder_decoder(files, tmp_path, drawn, capsys):
    torch.manual_seed(0)
    T5Model(
        T5Config(
            **{"vocab_size": 300, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_decoder_layers": 1},
            **{"num_heads": 2, "decoder_start_token_id": 0},
        )
    ).save_pretrained(tmp_path / "t5")
    byte_tokenizer().save_pretrained(tmp_path / "t5")
    ran(tmp_path / "t5", *files, "-o", tmp_path / "out")
    [names] = drawn
    assert {"separation_encoder", "separation_decoder", "changes_encoder", "collection_decoder"} <= names
    table = pd.read_csv(tmp_path / "out" / "t5" / "separation.csv")
    assert set(table.query("stack == 'encoder'")["vector"]) == {FIRST, MEAN, LAST}
    assert set(table.query("stack == 'decoder'")["vector"]) == {MEAN, LAST}


def test_the_same_model_gives_the_same_tables(save_model, files, tmp_path, drawn):
    folder = save_model("small")
    for name in ("one", "other"):
        ran(folder, *files, "-o", tmp_path / name)
    for path in (tmp_path / "one" / "small").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / "small" / path.name).read_bytes(), path.name


def test_the_built_in_sentences_reach_the_end(save_model, tmp_path, drawn):
    ran(save_model("small", context_length=128), "--texts", "3", "-o", tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "small" / "changes.csv")
    last = table.query(f"layer == 2 and vector == '{MEAN}'").set_index("change")["n"].to_dict()
    assert last == {ALL_KINDS: 48, "singular to plural": 12, "negated": 12, "present to past": 12, "he to she": 12}
