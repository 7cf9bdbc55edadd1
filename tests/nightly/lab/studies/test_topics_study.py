"""``repdyn study topics``: what its control takes away, and from a saved model to tables and
figures.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from studying import run_study

from repdyn.lab.studies.topic_measurements import PAIRS, TABLE

THEMES = [[f"{consonant}olo{letter}" for letter in "abcdefghij"] for consonant in "bdfghklmnp"]


@pytest.fixture
def text(tmp_path):
    """30 documents of two themes each, with short ones between that are none."""
    random = np.random.RandomState(0)
    documents = []
    for number in range(30):
        own = THEMES[number % 10] + THEMES[(number + 1 + number // 10) % 10]
        documents += ["A title", " ".join(random.choice(own, 120))]
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(documents))
    return path


def short(text, output):
    options = [
        "--topics",
        "5",
        "--sequences",
        "8",
        "--sequence-length",
        "64",
        "--tokens-of-words",
        "last",
    ]
    return ["--text", text, "-o", output, *options]


def test_from_saved_models_to_tables_and_figures(text, tmp_path, save_model, capsys):
    pytest.importorskip("sklearn")
    encoder = save_model("encoder")
    decoder = save_model("decoder", "gpt_neox")
    run_study("topics", encoder, decoder, *short(text, tmp_path / "out"))
    embeddings, attention, topics = (
        pd.read_csv(tmp_path / "out" / f"{name}.csv")
        for name in ("embeddings", "attention", "topics")
    )
    assert list(embeddings.columns) == [
        "layer",
        "product",
        *PAIRS,
        "gap",
        "control",
        "control_std",
        "model",
    ]
    assert set(embeddings["layer"]) == {TABLE, "0", "1", "2"}
    assert len(embeddings) == 2 * 4 * 2
    assert list(attention.columns)[2:] == [
        *PAIRS,
        "gap",
        "control",
        "difference",
        "standard_error",
        "evenness",
        "model",
    ]
    assert len(attention) == 2 * 2 * 3
    assert attention["head"].isna().sum() == 4
    of_layer = attention[(attention["model"] == "encoder") & (attention["layer"] == 2)]
    assert of_layer["gap"].iloc[-1] == pytest.approx(of_layer["gap"].iloc[:-1].mean())
    assert len(topics) == 5
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"depth.png", "blocks.csv", "encoder_blocks.png", "decoder_heads.svg"} <= written
    said = capsys.readouterr().out
    assert "30 documents" in said
    assert "even attention (a weight of 1 / 64)" in said.replace("\n", " ")


def test_the_same_command_writes_the_same(text, tmp_path, save_model):
    pytest.importorskip("sklearn")
    model = save_model()
    for folder in ("first", "second"):
        run_study("topics", model, *short(text, tmp_path / folder))
    for name in ("embeddings.csv", "attention.csv", "topics.csv", "depth.png"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
