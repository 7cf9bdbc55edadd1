"""``repdyn study tokens`` from a saved model to its files."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest
from studying import run_study

SENTENCE = "The £1 coin"


def test_two_models(save_model, tmp_path, capsys):
    out = tmp_path / "out"
    run_study(
        "tokens",
        save_model("a"),
        save_model("b", "gpt_neox"),
        "--sentence",
        SENTENCE,
        "--nearest",
        2,
        "-o",
        out,
    )
    figures = {f"{name}.{kind}" for name in ("cosine", "rank") for kind in ("png", "svg")}
    for name in ("a", "b"):
        assert {path.name for path in (out / name).iterdir()} == figures | {
            "tokens.csv",
            "nearest.csv",
        }
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
    assert "layer 0  layer 1  layer 2" in printed


@pytest.mark.real_data
def test_a_trained_decoder_leaves_its_tokens(tmp_path):
    folder = Path(os.environ.get("REPDYN_DATA", "")) / "stories260K-hf"
    if not folder.is_dir():
        pytest.skip("no trained weights; set REPDYN_DATA")
    run_study("tokens", folder, "-o", tmp_path)
    tokens = pd.read_csv(tmp_path / "stories260K-hf" / "tokens.csv")
    blocks = tokens.query("state == 'block'")
    medians = blocks.groupby("layer")["rank"].median().tolist()
    assert medians == sorted(medians)
    assert medians[:3] == [0, 0, 0]
    assert medians[-1] > 10
    # the two bytes of a character that its stories lack
    assert blocks.loc[
        (blocks["layer"] == 2) & blocks["token"].str.startswith("<0x"), "rank"
    ].tolist() == [225, 254]
    nearest = pd.read_csv(tmp_path / "stories260K-hf" / "nearest.csv")
    last = nearest[
        (nearest["layer"] == 5) & (nearest["state"] == "block") & (nearest["place"] == 1)
    ]
    assert last.loc[last["token"] == "<s>", "nearest"].tolist() == ["▁Once"]


@pytest.mark.real_data
def test_words_of_a_trained_decoder_move_and_are_attended_to(tmp_path):
    data = Path(os.environ.get("REPDYN_DATA", ""))
    if not (data / "stories260K-hf").is_dir():
        pytest.skip("no trained weights; set REPDYN_DATA")
    text = ["--text", data / "enwik8_prefix_4154399.gz", "--max-vectors", 1024]
    run_study("tokens", data / "stories260K-hf", *text, "-o", tmp_path)
    tables = {
        name: pd.read_csv(tmp_path / "stories260K-hf" / f"{name}.csv")
        for name in ("jumps", "attention")
    }
    jumps = tables["jumps"].query("state == 'block' and quantity == 'log_rank'").set_index("class")
    assert jumps.loc[["function", "content"], "jump"].between(0.4, 0.7).all()
    assert jumps.loc[["function", "content"], "returned"].eq(0).all()
    beyond = tables["attention"].query(
        "`class` == 'function minus content' and layer >= 4 and head.isna()"
    )
    assert (beyond["beyond_low"] > 0.4).all()
