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
from repdyn.studies.sentences import tables as results
from repdyn.studies.sentences import vectors
from repdyn.studies.sentences.figures import change_figure, collection_figure, separation_figure
from repdyn.studies.sentences.inputs import read_changes, read_collection, read_groups
from repdyn.studies.sentences.tables import ALL_KINDS
from repdyn.studies.sentences.vectors import FIRST, LAST, MEAN, SentenceVectors, sentence_vectors, shared_token_cosines
from repdyn.studies.states import LayerKey

GROUPS = {"cats": ["a cat", "one cat sat", "cats"], "dogs": ["a dog", "the dog"], "rain": ["it rains", "wet", "rain"]}
CHANGED = {"more": [["a cat", "cats"], ["a dog", "dogs"]], "not": [["he runs", "he runs not"], ["i eat", "i eat not"]]}


def ran(*arguments):
    main(["study", "sentences", *map(str, arguments)])


def refused(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as stopped:
        ran(*arguments)
    assert stopped.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


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


# files


@pytest.mark.parametrize("shape", ["json", "lists", "csv"])
def test_groups_of_a_file(shape, tmp_path):
    path = tmp_path / f"groups.{'csv' if shape == 'csv' else 'json'}"
    if shape == "csv":
        lines = [(name, text) for name, group in GROUPS.items() for text in group]
        pd.DataFrame(lines, columns=["group", "sentence"]).to_csv(path, index=False)
    else:
        path.write_text(json.dumps(GROUPS if shape == "json" else list(GROUPS.values())))
    found = read_groups(path)
    assert found["sentence"].tolist() == [text for group in GROUPS.values() for text in group]
    names = ["group 1", "group 2", "group 3"] if shape == "lists" else list(GROUPS)
    assert found["group"].tolist() == [name for name, group in zip(names, GROUPS.values(), strict=True) for _ in group]


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


def test_the_built_in_sentences():
    assert len(read_groups(None)) == 60
    assert len(read_changes(None)) == 48


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


def test_a_missing_column(tmp_path):
    path = tmp_path / "groups.csv"
    path.write_text("group,text\na,b\n")
    message = f"expected the columns group, sentence in {path}, found no sentence"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read_groups(path)


@pytest.mark.parametrize("between", ["\n\n", "\n"], ids=["paragraphs", "lines"])
def test_texts_are_spread_over_the_whole(between, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(between.join(f"text {number}" for number in range(101)) + between + "...")
    _, texts = read_collection(str(path), 5)
    assert texts == ["text 0", "text 25", "text 50", "text 75", "text 100"]


def test_too_few_texts(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("one\n\none\n\ntwo")
    with pytest.raises(ValueError, match=r"^expected at least 3 paragraphs in .*, got 2; give a longer text$"):
        read_collection(str(path), 5)


# vectors


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_vectors_against_the_model_s_own_states(family, save_model, monkeypatch):
    monkeypatch.setattr(vectors, "_BATCH_SENTENCES", 2)  # passes of two sentences, the last one of a single one
    model = AutoModel.from_pretrained(save_model(family=family)).eval()
    sequences = [[5, 6, 7, 8], [9, 10, 11, 12, 13, 14], [20, 21]]
    found = {(one.layer.index, one.pooling): one.vectors for one in sentence_vectors(model, sequences)}
    kinds = [FIRST, MEAN, LAST] if family == "bert" else [MEAN, LAST]
    assert set(found) == {(layer, kind) for layer in range(3) for kind in kinds}
    # the last of a decoder's hidden_states is after its final norm
    for layer in range(3 if family == "bert" else 2):
        for number, sequence in enumerate(sequences):
            with torch.no_grad():
                whole = model(torch.tensor([sequence]), output_hidden_states=True).hidden_states[layer][0].double()
            expected = {FIRST: whole[0], MEAN: whole.mean(0), LAST: whole[-1]}
            for kind in kinds:
                np.testing.assert_allclose(found[layer, kind][number], expected[kind], rtol=1e-3, atol=1e-5)


def test_tokens_in_common():
    found = shared_token_cosines([[1, 5, 6, 2], [1, 6, 6, 7, 2], [1, 8, 2], [1, 2]], ignored=(1, 2))
    np.testing.assert_allclose(found, [[1, 0.5, 0, 0], [0.5, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]])


# results


def of_layer(vectors_: np.ndarray, layer=0, kind=MEAN) -> SentenceVectors:
    return SentenceVectors(LayerKey(layer, None), kind, vectors_)


def test_a_layer_where_all_sentences_are_the_same_has_no_line():
    random = np.random.default_rng(0)
    told = [
        of_layer(np.ones((6, 4)) * (1 + 1e-8 * random.normal(size=(6, 1)))),
        of_layer(random.normal(size=(6, 4)), 1),
    ]
    table = results.separation_table(told, np.eye(6), ["a", "a", "b", "b", "c", "c"], seed=0)
    assert table["layer"].tolist()[0] == 1
    assert table["vector"].tolist() == [MEAN, results.SHARED_TOKENS]


def test_what_a_change_does_not_move_is_left_out_at_that_layer():
    random = np.random.default_rng(0)
    before, moves = random.normal(size=(2, 8, 5))
    changes = pd.DataFrame({"kind": [*"aaabbbcc"], "before": [*"stuvwxyz"]})
    moves[[0, 6]] = 0  # one of three of a, one of two of c
    table = results.change_table([of_layer(before)], [of_layer(before + moves)], changes, seed=0)
    assert table.set_index("change")["n"].to_dict() == {ALL_KINDS: 5, "a": 2, "b": 3}
    moves[3:6] = 0
    assert results.change_table([of_layer(before)], [of_layer(before + moves)], changes, seed=0).empty


def test_the_cosines_of_a_collection():
    told = [of_layer(np.array([[1.0, 0], [0, 2], [-1, -1], [1, 1]]))]
    [line] = results.collection_table(told).to_dict("records")
    half = np.sqrt(0.5)
    cosines = np.array([0, -half, half, -half, half, -1])
    assert line["n"] == 6
    assert line["mean"] == pytest.approx(cosines.mean())
    assert (line["min"], line["max"]) == pytest.approx((-1, half))
    assert line["positive"] == pytest.approx(2 / 6)
    histogram = results.collection_histograms(told)
    assert histogram["count"].sum() == 6
    assert histogram.loc[(histogram["low"] <= half) & (half < histogram["high"]), "count"].tolist() == [2]


# the whole


@pytest.mark.slow
def test_an_encoder_from_files_to_figures(save_model, files, tmp_path, capsys):
    ran(save_model("small"), *files, "-o", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out" / "small").iterdir()} == {
        *("separation.csv", "changes.csv", "collection.csv", "collection_histograms.csv"),
        *(f"{name}.{end}" for name in ("separation", "changes", "collection") for end in ("png", "svg")),
    }
    separation = pd.read_csv(tmp_path / "out" / "small" / "separation.csv")
    assert separation["vector"].value_counts().to_dict() == {MEAN: 3, LAST: 3, FIRST: 3, results.SHARED_TOKENS: 1}
    collection = pd.read_csv(tmp_path / "out" / "small" / "collection.csv")
    assert (collection["n"] == 8 * 7 / 2).all()
    text = " ".join(capsys.readouterr().out.split())
    assert "paraphrases at the last layer: vector within between effect 95 % closer nearest first token" in text
    assert "cosine of two differences at the last layer: vector change n within across p length" in text
    assert f"tables and figures: {tmp_path / 'out' / 'small'} (10 files)" in text


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_decoder_has_no_vector_of_its_first_token(save_model, files, tmp_path, drawn):
    ran(save_model("small", family="llama"), *files, "-o", tmp_path / "out")
    separation = pd.read_csv(tmp_path / "out" / "small" / "separation.csv")
    assert set(separation["vector"]) == {MEAN, LAST, results.SHARED_TOKENS}


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_same_model_gives_the_same_tables(save_model, files, tmp_path, drawn):
    folder = save_model("small")
    for name in ("one", "other"):
        ran(folder, *files, "-o", tmp_path / name)
    for path in (tmp_path / "one" / "small").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / "small" / path.name).read_bytes(), path.name


@pytest.mark.slow
def test_the_built_in_sentences_reach_the_end(save_model, tmp_path, drawn):
    ran(save_model("small", context_length=128), "--texts", "3", "-o", tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "small" / "changes.csv")
    last = table.query(f"layer == 2 and vector == '{MEAN}'").set_index("change")["n"].to_dict()
    assert last == {ALL_KINDS: 48, "singular to plural": 12, "negated": 12, "present to past": 12, "he to she": 12}


@pytest.mark.slow
def test_long_texts_are_cut_to_the_context(save_model, files, tmp_path, drawn):
    (tmp_path / "text.txt").write_text("\n\n".join(f"{n} " + "long " * 100 for n in range(8)))
    ran(save_model("small"), *files, "-o", tmp_path / "out")
    assert (tmp_path / "out" / "small" / "collection.csv").exists()


def test_a_sentence_without_tokens(save_model, files, tmp_path, capsys):
    files[1].write_text(json.dumps({**GROUPS, "more": ["", ""]}))
    message = refused(capsys, save_model("small"), *files, "-o", tmp_path / "out")
    assert message.startswith("error: expected groups of sentences in ")


def test_a_missing_file(save_model, tmp_path, capsys):
    message = refused(capsys, save_model("small"), "--groups", tmp_path / "none.json", "-o", tmp_path / "out")
    assert "No such file" in message


# figures


def tables() -> tuple[pd.DataFrame, pd.DataFrame, list[SentenceVectors]]:
    random = np.random.default_rng(0)
    told = [of_layer(random.normal(size=(8, 6)), layer, kind) for layer in range(3) for kind in (MEAN, LAST)]
    moved = [of_layer(one.vectors + random.normal(size=(8, 6)), one.layer.index, one.pooling) for one in told]
    separation = results.separation_table(told, np.eye(8), [*"aabbccdd"], seed=0)
    changes = pd.DataFrame({"kind": [*"ppppqqqq"], "before": [*"stuvwxyz"]})
    return separation, results.change_table(told, moved, changes, seed=0), told


def test_the_picture_of_paraphrases():
    figure = separation_figure("model", tables()[0])
    assert [axes.get_title() for axes in figure.axes] == [
        *(f"cosine: {MEAN}", f"cosine: {LAST}", "paraphrases are closer: how often"),
    ]
    assert [len(axes.lines) for axes in figure.axes] == [2, 2, 3]
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), [0, 1, 2])
    assert figure.get_suptitle().startswith("model: paraphrases against other sentences")


def test_the_picture_of_changes_hollows_what_is_not_larger_than_across():
    table = tables()[1]
    table["p"] = np.where(table["layer"] == 1, 0.001, 0.5)
    figure = change_figure("model", table)
    assert [axes.get_title() for axes in figure.axes] == [MEAN, LAST]
    line, filled, hollow = figure.axes[0].lines[:3]
    assert len(np.asarray(line.get_ydata())) == 3
    np.testing.assert_array_equal(np.isnan(np.asarray(filled.get_ydata(), dtype=float)), [True, False, True])
    np.testing.assert_array_equal(np.isnan(np.asarray(hollow.get_ydata(), dtype=float)), [False, True, False])
    assert hollow.get_markerfacecolor() == "white"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["p", "q", "different kinds"]


def test_the_picture_of_a_collection():
    told = tables()[2]
    figure = collection_figure(
        "model", "some text", results.collection_table(told), results.collection_histograms(told)
    )
    assert [axes.get_title() for axes in figure.axes] == [f"cosine: {MEAN}", f"cosine: {LAST}", "the last layer"]
    assert figure.axes[-1].get_xlabel() == "cosine at layer 2"
    assert figure.get_suptitle().splitlines()[1].startswith("some text; 28 pairs of texts")
