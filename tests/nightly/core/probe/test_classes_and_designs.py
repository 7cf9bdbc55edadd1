"""Classes and topics of tokens, sampling designs, the shuffled one, and windows that are measured
as a whole.
"""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from distinct_tokens import first_tokens, make_probe
from small import random_tokens

from repdyn import Probe
from repdyn.data.tokens import byte_tokenizer
from repdyn.probe.design import INDEPENDENT, Design


@pytest.mark.parametrize(("members", "size"), [(1200, 300), (900, 300), (899, 299), (9, 3)])
def test_batch_sizes_of_a_class(members, size):
    probe = make_probe(design="dense").with_classes({"some": first_tokens(members)})
    sample = probe.sample("some")
    assert sample.shape == (3, size)
    in_order = [token for token in probe.sample("all").ravel() if token < members]
    # the batches of "all" use only the beginning of the permutation
    assert sample.ravel().tolist()[: len(in_order)] == in_order[: 3 * size]
    assert len(np.unique(sample)) == 3 * size


@pytest.mark.parametrize(
    "change",
    [
        lambda probe: probe.with_classes({"a": first_tokens(51)}),
        lambda probe: probe.with_classes({"b": first_tokens(50)}),
        lambda probe: replace(probe, classes={"b": first_tokens(50)}),
        lambda probe: replace(probe, classes={}),
        lambda probe: probe.with_topics(torch.arange(1200)),
    ],
    ids=["members", "another", "name", "none", "topics"],
)
def test_the_hash_depends_on_classes_and_topics(change):
    probe = make_probe().with_classes({"a": first_tokens(50)})
    assert change(probe).hash != probe.hash


def test_classes_and_topics_are_saved_and_loaded(tmp_path):
    """A class of the name topics is none of the topics."""
    probe = make_probe().with_classes({"rare": first_tokens(50), "topics": first_tokens(70)})
    probe = probe.with_topics(torch.arange(1200) % 7 - 1)
    path = tmp_path / "probe.safetensors"
    probe.save(path)
    loaded = Probe.load(path)
    assert loaded.hash == probe.hash
    assert loaded.subsets == probe.subsets
    assert np.array_equal(loaded.sample("rare"), probe.sample("rare"))
    assert torch.equal(loaded.topics, probe.topics)
    assert pickle.loads(pickle.dumps(loaded)).hash == probe.hash


def window_counts(probe: Probe, batch: np.ndarray) -> np.ndarray:
    return np.unique(probe.window_of_token[batch], return_counts=True)[1]


@pytest.mark.parametrize("subset", ["all", "no_sink"])
def test_batches_use_disjoint_windows_and_equally_many_vectors_of_each(subset):
    probe = Probe.from_tokens(random_tokens(96, 32), max_vectors=900, batch_vectors=300)
    assert probe.has_disjoint_batches(subset)
    windows = [set(probe.window_of_token[batch].tolist()) for batch in probe.sample(subset)]
    assert [len(batch) for batch in windows] == [32, 32, 32]
    assert not windows[0] & windows[1]
    assert not (windows[0] | windows[1]) & windows[2]
    for batch in probe.sample(subset):
        assert len(np.unique(batch)) == 300
        assert set(window_counts(probe, batch)) == {9, 10}


def test_one_vector_of_each_window_if_there_are_enough_windows():
    tokens = random_tokens(600, 8)
    probe = Probe.from_tokens(tokens, max_vectors=600, batch_vectors=300, n_windows=600)
    for batch in probe.sample("all"):
        assert window_counts(probe, batch).tolist() == [1] * 300
    offsets = probe.sample("all").ravel() % 8
    assert (
        np.bincount(offsets, minlength=8).min() > 50
    )  # 75 expected: all positions are equally likely


def test_a_class_in_too_few_windows_does_not_change_other_subsets():
    plain = make_probe()
    probe = plain.with_classes({"some": first_tokens(60)})
    assert np.array_equal(probe.sample("all"), plain.sample("all"))
    assert probe.has_disjoint_batches("all")
    assert not probe.has_disjoint_batches("some")
    assert probe.sample("some").shape == (3, 20)


def test_from_texts_uses_as_many_windows_as_the_design_requires(tokenizer):
    text = " ".join("abcdefghij"[i % 10] for i in range(30_000))
    probe = Probe.from_texts([text], tokenizer, max_vectors=400, batch_vectors=200)
    assert probe.lengths.unique().tolist() == [INDEPENDENT.window_tokens]
    assert len(probe.lengths) == 2 * -(-200 // INDEPENDENT.vectors_per_window)
    two = Probe.from_texts(
        [text], tokenizer, max_vectors=400, sequence_length=32, vectors_per_window=2
    )
    assert len(two.lengths) == 200
    assert two.lengths[0] == 32
    assert max(window_counts(two, batch).max() for batch in two.sample("all")) == 2
    # a shorter text has fewer windows
    few = Probe.from_texts([text[:4000]], tokenizer, max_vectors=400, batch_vectors=200)
    assert few.has_disjoint_batches()
    assert len(few.lengths) == -(-2000 // (INDEPENDENT.window_tokens - 2))


def test_the_published_protocol(tokenizer):
    text = " ".join("abcdefghij"[i % 10] for i in range(60_000))  # 256 tokens in 512 characters
    probe = Probe.from_texts([text], tokenizer, design="paper")
    assert len(probe.lengths) == 128
    assert set(probe.lengths.tolist()) == {258}
    assert probe.n_batches == 8
    assert probe.batch_vectors == 4128
    assert len(np.unique(probe.sample("all"))) == 128 * 258
    assert not probe.design.exclude_own_window
    assert not probe.has_disjoint_batches()
    assert probe.sample("no_sink").shape == (8, 128 * 256 // 8)
    cut = Probe.from_texts([text], tokenizer, design="paper", sequence_length=100)
    assert set(cut.lengths.tolist()) == {100}


def test_designs_are_saved_and_loaded(tmp_path):
    own = Design("mine", exclude_own_window=False, metric_settings={"two_nn": {"discard": 0.5}})
    for design in ("independent", "dense", "paper", "shuffled", own):
        probe = Probe.from_tokens(
            random_tokens(40, 30), max_vectors=900, batch_vectors=300, design=design
        )
        probe.save(tmp_path / "probe.safetensors")
        loaded = Probe.load(tmp_path / "probe.safetensors")
        assert loaded.hash == probe.hash
        assert loaded.design.rule == probe.design.rule
        assert loaded.tokens.equal(probe.tokens)
        assert np.array_equal(loaded.sample("all"), probe.sample("all"))


@pytest.mark.parametrize("dtype", [np.uint16, np.int64])
def test_a_file_that_is_mapped_read_only(tmp_path, dtype):
    np.arange(96, dtype=dtype).tofile(tmp_path / "train.bin")
    mapped = np.memmap(tmp_path / "train.bin", dtype=dtype, mode="r", shape=(8, 12))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probe = Probe.from_tokens(mapped, max_vectors=64, batch_vectors=16)
    assert (
        probe.hash
        == Probe.from_tokens(torch.arange(96).view(8, 12), max_vectors=64, batch_vectors=16).hash
    )


def in_windows(probe: Probe) -> list[list[int]]:
    return [window.tolist() for window in probe.tokens.split(probe.lengths.tolist())]


def test_each_window_keeps_its_tokens():
    sane = make_probe()
    shuffled = make_probe(design="shuffled")
    assert sane.lengths.equal(shuffled.lengths)
    assert [sorted(window) for window in in_windows(shuffled)] == in_windows(sane)
    # of 30 distinct tokens, one place in thirty is the same by chance
    assert (sane.tokens == shuffled.tokens).float().mean() < 0.1
    assert all((np.diff(window) != 1).any() for window in in_windows(shuffled))


def test_the_same_vectors_are_sampled_and_the_hash_differs():
    sane = make_probe()
    shuffled = make_probe(design="shuffled")
    assert np.array_equal(sane.sample("all"), shuffled.sample("all"))
    assert sane.hash != shuffled.hash
    assert shuffled.hash == make_probe(design="shuffled").hash
    assert shuffled.tokens.ne(make_probe(design="shuffled", seed=1).tokens).any()


@pytest.mark.parametrize("special", [[0], [0, 9], []])
def test_special_tokens_and_padding_stay_where_they_are(special):
    tokens = random_tokens(50, 30).clamp(min=10)
    tokens[:, 0], tokens[:, 7] = 0, 9
    mask = torch.arange(30) < torch.arange(12, 62)[:, None]
    settings = {"special_ids": special, "max_vectors": 600, "batch_vectors": 200}
    sane, shuffled = (
        Probe.from_tokens(tokens, mask, design=name, **settings)
        for name in ("independent", "shuffled")
    )
    is_special = torch.isin(sane.tokens, torch.tensor(special, dtype=torch.long))
    assert shuffled.tokens[is_special].equal(sane.tokens[is_special])
    assert [sorted(window) for window in in_windows(shuffled)] == [
        sorted(window) for window in in_windows(sane)
    ]
    assert shuffled.is_sink.equal(sane.is_sink) or not special


def test_words_stay_with_their_tokens():
    texts = ["the dog sees it and 3 birds do not. a cat of the house saw them too; " * 80]
    settings = {
        "sequence_length": 40,
        "max_vectors": 300,
        "batch_vectors": 100,
        "classes": ["function", "content"],
    }
    sane, shuffled = (
        Probe.from_texts(texts, byte_tokenizer(for_encoder=True), design=name, **settings)
        for name in ("independent", "shuffled")
    )
    assert sane.classes.keys() == shuffled.classes.keys()
    for name, members in shuffled.classes.items():
        in_order = zip(
            sane.tokens[sane.classes[name]].tolist(),
            sane.window_of_token[sane.classes[name].numpy()].tolist(),
            strict=True,
        )
        in_shuffled_order = zip(
            shuffled.tokens[members].tolist(),
            shuffled.window_of_token[members.numpy()].tolist(),
            strict=True,
        )
        assert sorted(in_order) == sorted(in_shuffled_order)


def windows_of(probe):
    """The window of each sequence, by batch; every sequence is the beginning of one window."""
    starts = np.cumsum(probe.lengths.numpy()) - probe.lengths.numpy()
    for tokens in (tokens for batch in probe.whole_windows for tokens in batch):
        window = probe.window_of_token[tokens[0]]
        assert np.array_equal(
            tokens, starts[window] + np.arange(min(256, int(probe.lengths[window])))
        )
    return [
        [int(probe.window_of_token[tokens[0]]) for tokens in batch] for batch in probe.whole_windows
    ]


@pytest.mark.parametrize("design", ["independent", "dense", "paper"])
def test_sixteen_windows_of_each_batch_evenly_spaced(design):
    ids = random_tokens(200, 12)
    probe = Probe.from_tokens(ids, max_vectors=600, batch_vectors=200, design=design)
    batches = windows_of(probe)
    assert [len(batch) for batch in batches] == [16] * 3
    chosen = sorted(chain.from_iterable(batches))
    assert len(set(chosen)) == 48
    assert set(np.diff([*chosen, 200]).tolist()) == {4, 5}
    assert (
        windows_of(Probe.from_tokens(ids, max_vectors=600, batch_vectors=200, design=design))
        == batches
    )


def test_fewer_windows_are_shared_out_equally():
    probe = Probe.from_tokens(random_tokens(23, 12), max_vectors=192, batch_vectors=48)
    assert [len(batch) for batch in windows_of(probe)] == [5] * 4
    assert len(set(chain.from_iterable(windows_of(probe)))) == 20


def test_long_windows_are_cut_and_those_of_one_token_left_out():
    lengths = torch.tensor([300, 1, 40, 2, 1, 257, 256, 1, 9])
    mask = torch.arange(300) < lengths[:, None]
    probe = Probe.from_tokens(
        torch.ones(mask.shape, dtype=torch.long), mask, max_vectors=200, batch_vectors=100
    )
    assert windows_of(probe) == [[0, 3, 6], [2, 5, 8]]
    assert [len(tokens) for batch in probe.whole_windows for tokens in batch] == [
        256,
        2,
        256,
        40,
        256,
        9,
    ]
