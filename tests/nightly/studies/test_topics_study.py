"""``repdyn study topics``: what its control takes away, and from a saved model to tables and figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import BertConfig, BertModel, MambaConfig, MambaModel

from repdyn import Probe
from repdyn.cli.main import main
from repdyn.studies.topics.figures import depth_figure
from repdyn.studies.topics.measurements import (
    TABLE,
    attention_gaps,
    measure_topics,
    shifted_topics,
)

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


def ran(*arguments):
    main(["study", "topics", *map(str, arguments)])


def short(text, output):
    return [
        "--text",
        text,
        "--topics",
        5,
        "--sequences",
        8,
        "--sequence-length",
        64,
        "--tokens-of-words",
        "last",
        "-o",
        output,
    ]


def stretches(n_sequences=40, length=32, seed=0):
    """(n_sequences, length) topics that last for eight places."""
    random = np.random.RandomState(seed)
    return torch.from_numpy(random.randint(3, size=(n_sequences, length // 8))).repeat_interleave(8, dim=1)


def words_of(topics, seed=1):
    """Words of which each topic has ten."""
    return 10 * topics + torch.randint(10, topics.shape, generator=torch.Generator().manual_seed(seed))


def gap_of_attention(scores_of):
    topics = stretches()
    ids = words_of(topics)
    tokens = np.arange(topics.numel()).reshape(topics.shape)
    weights = [(scores_of(labels).softmax(-1)[None], numbers) for labels, numbers in zip(topics, tokens, strict=True)]
    others = [labels.flatten() for labels in shifted_topics(topics)]
    return attention_gaps(weights, ids.flatten(), topics.flatten(), *others).iloc[0]


def test_attention_that_goes_by_topic_has_none_under_the_topics_of_others():
    gap = gap_of_attention(lambda labels: (labels[:, None] == labels).double())
    assert gap.gap > 0.01
    # stretches begin at the same places in all sequences, so that some of it is left
    assert gap.difference > 0.5 * gap.gap
    assert gap.difference > 10 * gap.standard_error


def model_and_probe():
    torch.manual_seed(0)
    model = BertModel(
        BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    )
    topics = stretches(8, 32)
    ids = 3 + words_of(topics)
    ids[:, 0], topics[:, 0] = 2, -1
    probe = Probe.from_tokens(ids, special_ids=[2], max_vectors=64, batch_vectors=32)
    return model.eval(), probe.with_topics(topics.flatten())


@pytest.mark.parametrize("change", ["topics", "lengths"])
def test_another_kind_of_probe_is_refused(change):
    model, probe = model_and_probe()
    if change == "topics":
        probe = replace(probe, topics=None)
    else:
        probe = replace(probe, lengths=torch.tensor([31, 33, *[32] * 6]))
    with pytest.raises(
        ValueError, match=r"^expected a probe with topics and sequences of one length, as TextTopics.probe makes one$"
    ):
        measure_topics(model, probe)


def test_a_model_without_attention_is_drawn_without_it():
    torch.manual_seed(0)
    _, probe = model_and_probe()
    model = MambaModel(MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, state_size=4))
    [found] = measure_topics(model, probe)
    assert found.attention["reason"].str.contains("puts out attention weights").all()
    assert found.attention["gap"].isna().all()
    assert len(depth_figure({"mamba": found}).axes) == 2


def test_from_saved_models_to_tables_and_figures(text, tmp_path, save_model, capsys):
    pytest.importorskip("sklearn")
    encoder, decoder = save_model("encoder"), save_model("decoder", "gpt_neox")
    ran(encoder, decoder, *short(text, tmp_path / "out"))
    embeddings, attention, topics = (
        pd.read_csv(tmp_path / "out" / f"{name}.csv") for name in ("embeddings", "attention", "topics")
    )
    assert list(embeddings.columns) == ["layer", "product", "gap", "control", "control_std", "model"]
    assert set(embeddings["layer"]) == {TABLE, "0", "1", "2"}
    assert len(embeddings) == 2 * 4 * 2
    assert list(attention.columns) == ["layer", "head", "gap", "control", "difference", "standard_error", "model"]
    assert len(attention) == 2 * 2 * 3
    assert attention["head"].isna().sum() == 4
    of_layer = attention[(attention["model"] == "encoder") & (attention["layer"] == 2)]
    assert of_layer["gap"].iloc[-1] == pytest.approx(of_layer["gap"].iloc[:-1].mean())
    assert len(topics) == 5
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"depth.png", "encoder heads.png", "decoder heads.svg"} <= written
    said = capsys.readouterr().out
    assert "30 documents" in said
    assert "even attention (a weight of 1 / 64)" in said.replace("\n", " ")


def test_the_same_command_writes_the_same(text, tmp_path, save_model):
    pytest.importorskip("sklearn")
    model = save_model()
    for folder in ("first", "second"):
        ran(model, *short(text, tmp_path / folder))
    for name in ("embeddings.csv", "attention.csv", "topics.csv", "depth.png"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--certainty", 1.5], "expected --certainty between 0 and 1, got 1.5"),
        (["--sequences", 31], "expected 31 documents of at least 64 tokens, got 30 among 30"),
        (["--topics", 40], "expected at least 40 documents and as many words for 40 topics, got 30 documents"),
    ],
)
def test_mistakes_are_named(text, tmp_path, save_model, more, message, capsys):
    pytest.importorskip("sklearn")
    with pytest.raises(SystemExit):
        ran(save_model(), *short(text, tmp_path / "out"), *more)
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
