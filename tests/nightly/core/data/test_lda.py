"""Documents that a topic model wrote: the distributions they are drawn from, and what becomes of
them on the way.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from repdyn.data.datamodule import TextDataModule
from repdyn.data.topic_datamodule import TopicDataModule, draw_documents, word_tokenizer

CONFIGS = Path(__file__).parents[4] / "configs"
SMALL = {"sequence_length": 12, "n_documents": 40, "max_vectors": 64, "batch_vectors": 32}


# the topic model


def test_topics_that_share_no_word():
    words, topics = draw_documents(200, 50, n_topics=3, n_words=12, alpha=0.5, seed=0)
    assert words.shape == topics.shape == (200, 50)
    assert (words // 4 == topics).all()
    counts = np.bincount(words.ravel(), minlength=12)
    for topic in range(3):
        of_topic = counts[4 * topic :][:4]
        assert np.abs(of_topic / of_topic.sum() - 0.25).max() < 0.03


@pytest.mark.parametrize("alpha", [0.02, 1.0])
def test_shares_of_topics_have_the_spread_of_their_dirichlet_distribution(alpha):
    n_topics, length = 5, 400
    _, of_words = draw_documents(
        2000, length, n_topics=n_topics, n_words=n_topics, alpha=alpha, seed=0
    )
    shares = np.stack([np.bincount(topics, minlength=n_topics) for topics in of_words]) / length
    assert np.abs(shares.mean(axis=0) - 1 / n_topics).max() < 0.05
    of_dirichlet = (1 / n_topics) * (1 - 1 / n_topics) / (n_topics * alpha + 1)
    of_drawing = (1 / n_topics) * (1 - 1 / n_topics) / length
    assert shares.var(axis=0).mean() == pytest.approx(of_dirichlet + of_drawing, rel=0.1)


# the data module


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_each_sequence_is_a_document(objective):
    data = TopicDataModule(objective=objective, **SMALL)
    batches = list(data.train_dataloader())
    assert sum(len(batch["input_ids"]) for batch in batches) == 40
    for batch in batches:
        assert {key: value.dtype for key, value in batch.items()} == dict.fromkeys(
            ("input_ids", "attention_mask", "labels"), torch.int64
        )
        ids = batch["input_ids"]
        labels = batch["labels"]
        assert ids.shape[1] == 12
        assert ids.max() < data.vocab_size == 104
        if objective == "causal":
            assert ids.min() >= 4
            assert torch.equal(ids, labels)
        else:
            assert (ids[:, 0] == 1).all()
            assert (ids[:, -1] == 2).all()
            assert (labels[:, [0, -1]] == -100).all()


def test_training_documents_are_shuffled_and_validation_is_always_the_same():
    data = TopicDataModule(objective="masked", **SMALL)
    epochs = [torch.cat([batch["labels"] for batch in data.train_dataloader()]) for _ in range(2)]
    loader = data.train_dataloader()
    first, second = (torch.cat([batch["input_ids"] for batch in loader]) for _ in range(2))
    assert torch.equal(*epochs)
    assert not torch.equal(first, second)
    validation = [
        torch.cat([batch["input_ids"] for batch in data.val_dataloader()]) for _ in range(2)
    ]
    assert torch.equal(*validation)
    assert len(validation[0]) == 4


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_the_probe_knows_the_topic_of_each_word(objective):
    data = TopicDataModule(objective=objective, **SMALL)
    probe = data.probe()
    assert (probe.topics < 0).tolist() == (probe.tokens < 4).tolist()
    is_word = probe.topics >= 0
    words = probe.tokens[is_word] - 4
    topics = probe.topics[is_word]
    assert torch.equal(words // 10, topics)
    assert probe.hash == TopicDataModule(objective=objective, **SMALL).probe().hash
    assert probe.hash != TopicDataModule(objective=objective, seed=1, **SMALL).probe().hash


def test_the_probe_is_of_documents_that_are_not_trained_on():
    data = TopicDataModule(**SMALL)
    trained_on = {
        tuple(ids.tolist()) for batch in data.train_dataloader() for ids in batch["input_ids"]
    }
    assert not trained_on & {tuple(ids.tolist()) for ids in data.probe().tokens.view(-1, 12)}


def test_the_tokenizer_reads_what_the_documents_are_made_of(tmp_path):
    from transformers import AutoTokenizer

    data = TopicDataModule(objective="masked", **SMALL)
    data.tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids = data.probe().tokens[:12].tolist()
    assert loaded(loaded.decode(ids[1:-1])).input_ids == ids
    assert data.pad_token_id == loaded.pad_token_id == 0
    assert word_tokenizer(5)("w0 w4").input_ids == [4, 8]


# train.py


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], TextDataModule),
        (["fit", "--config", str(CONFIGS / "topics_lda.yaml")], TopicDataModule),
        (["fit", "-c", str(CONFIGS / "quickstart.yaml"), "--data.text=lda"], TopicDataModule),
        (["fit", "-c", str(CONFIGS / "topics_lda.yaml"), "--data.text", "builtin"], TextDataModule),
        (["fit", "-c", "no_such_file.yaml"], TextDataModule),
    ],
)
def test_the_last_source_that_is_named_decides(arguments, expected):
    from repdyn.cli.train import data_module

    assert data_module(arguments) is expected
