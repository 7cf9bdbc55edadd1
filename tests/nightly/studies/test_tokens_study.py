"""``repdyn study tokens`` from a saved model to its files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from transformers import (
    AlbertConfig,
    AlbertModel,
    GPT2Config,
    GPT2Model,
)

from repdyn.cli.main import main
from repdyn.data.byte_tokenizer import byte_tokenizer

pytestmark = pytest.mark.slow


SENTENCE = "The £1 coin"


def ran(*arguments):
    main(["study", "tokens", *map(str, arguments)])


@pytest.fixture
def text(tmp_path):
    """Function words and content words."""
    path = tmp_path / "text.txt"
    words = ["the", "of", "and", "river", "stone", "walk", "green", "because", "under", "house"]
    path.write_text(" ".join(np.random.default_rng(0).choice(words, 2000)))
    return path


def test_two_models(save_model, tmp_path, capsys):
    out = tmp_path / "out"
    ran(save_model("a"), save_model("b", "gpt_neox"), "--sentence", SENTENCE, "--nearest", 2, "-o", out)
    figures = {f"{name}.{kind}" for name in ("cosine", "rank", "heatmap") for kind in ("png", "svg")}
    for name in ("a", "b"):
        assert {path.name for path in (out / name).iterdir()} == figures | {"tokens.csv", "nearest.csv"}
    tokens = pd.read_csv(out / "b" / "tokens.csv")
    n_tokens = tokens["position"].nunique()
    assert tokens.groupby(["state", "layer"], sort=False).size().to_dict() == {
        ("block", 0): n_tokens,
        ("attention", 1): n_tokens,
        ("block", 1): n_tokens,
        ("attention", 2): n_tokens,
        ("block", 2): n_tokens,
    }
    assert tokens.loc[tokens["layer"] == 0, "rank"].eq(0).all()
    assert len(pd.read_csv(out / "b" / "nearest.csv")) == 2 * len(tokens)
    printed = capsys.readouterr().out
    assert "a: rank of each token's own embedding among the input embeddings" in printed
    assert "token  layer 0  layer 1  layer 2" in printed


def test_a_text(save_model, text, tmp_path, capsys):
    out = tmp_path / "out"
    given = ["--text", text, "--sequence-length", 32, "--max-vectors", 512]
    ran(save_model("a"), *given, "--sentence", SENTENCE, "-o", out)
    names = ["cosine", "rank", "heatmap", "classes", "steps", "density"]
    tables = {"tokens.csv", "nearest.csv", "classes.csv", "steps.csv", "density.csv"}
    figures = {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert {path.name for path in (out / "a").iterdir()} == tables | figures
    classes = pd.read_csv(out / "a" / "classes.csv")
    assert classes["class"].tolist() == ["function", "content"] * 5
    assert classes["cosine"].between(-1, 1).all()
    steps = pd.read_csv(out / "a" / "steps.csv")
    assert steps["layer"].tolist() == [0, 1]
    crowded = pd.read_csv(out / "a" / "density.csv")
    assert crowded["density"].between(-1, 1).all()
    printed = capsys.readouterr().out
    assert "mean cosine of two tokens' steps: of one sequence " in printed
    assert "the embedding of a function word is in the denser place in " in printed


def test_again_gives_the_same_files(save_model, text, tmp_path):
    folder = save_model("a")
    for name in ("one", "two"):
        ran(folder, "--text", text, "--sequence-length", 32, "--max-vectors", 128, "-o", tmp_path / name)
    for path in (tmp_path / "one" / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / "a" / path.name).read_bytes(), path.name


def test_without_the_mask_there_is_a_second_folder(save_model, tmp_path):
    out = tmp_path / "out"
    ran(save_model("a", "llama"), "--no-causal-mask", "--sentence", SENTENCE, "-o", out)
    with_mask, without = (pd.read_csv(out / name / "tokens.csv") for name in ("a", "a-no-causal-mask"))
    last = with_mask["position"].max()
    same = with_mask["cosine"] == without["cosine"]
    # the last token sees all tokens either way, in the first block; the first one does not
    assert same[(with_mask["position"] == last) & (with_mask["layer"] == 1) & (with_mask["state"] == "attention")].all()
    assert not same[(with_mask["position"] == 0) & (with_mask["layer"] == 1)].any()


@pytest.mark.real_data
def test_a_trained_decoder_leaves_its_tokens(tmp_path):
    folder = Path(os.environ.get("REPDYN_DATA", "")) / "stories260K-hf"
    if not folder.is_dir():
        pytest.skip("no trained weights; set REPDYN_DATA")
    ran(folder, "-o", tmp_path)
    tokens = pd.read_csv(tmp_path / "stories260K-hf" / "tokens.csv")
    blocks = tokens[tokens["state"] == "block"]
    medians = blocks.groupby("layer")["rank"].median().tolist()
    assert medians == sorted(medians)
    assert medians[:3] == [0, 0, 0]
    assert medians[-1] > 10
    # the two bytes of a character that its stories lack
    assert blocks.loc[(blocks["layer"] == 2) & blocks["token"].str.startswith("<0x"), "rank"].tolist() == [225, 254]
    nearest = pd.read_csv(tmp_path / "stories260K-hf" / "nearest.csv")
    last = nearest[(nearest["layer"] == 5) & (nearest["state"] == "block") & (nearest["place"] == 1)]
    assert last.loc[last["token"] == "<s>", "nearest"].tolist() == ["▁Once"]


def saved(model, folder):
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def albert():
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return AlbertModel(AlbertConfig(**sizes, embedding_size=8, vocab_size=260, max_position_embeddings=64))


def gpt2():
    return GPT2Model(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=260, n_positions=12))


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (
            albert,
            [],
            "expected vectors that can be compared with the input embeddings of model, but the input embeddings have 8 dimensions, the vectors 16",
        ),
        (gpt2, ["--sentence", ""], "expected a sentence of 2 or more tokens for model, got 0"),
        (gpt2, ["--sentence", "much too long a sentence"], "expected a sentence of 2 to 12 tokens for model, got 24"),
        (
            gpt2,
            ["--nearest", 1000, "--sentence", "abc"],
            "expected k from 1 to the 260 rows that are not zero, got 1000",
        ),
    ],
    ids=["dimensions", "nothing", "too long", "too many"],
)
def test_mistakes_are_refused_by_name(make, given, message, tmp_path, capsys):
    folder = saved(make(), tmp_path / "model")
    with pytest.raises(SystemExit):
        ran(folder, *given, "-o", tmp_path / "out")
    assert message in capsys.readouterr().err
