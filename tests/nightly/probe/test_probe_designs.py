"""Sampling designs: windows of a batch, windows cut from text, files."""

import warnings

import numpy as np
import pytest
import torch
from distinct_tokens import first_tokens, make_probe
from small import random_tokens

from repdyn import Probe
from repdyn.probe.design import INDEPENDENT, Design


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
    probe = Probe.from_tokens(random_tokens(600, 8), max_vectors=600, batch_vectors=300)
    for batch in probe.sample("all"):
        assert window_counts(probe, batch).tolist() == [1] * 300
    offsets = probe.sample("all").ravel() % 8
    assert np.bincount(offsets, minlength=8).min() > 50  # 75 expected: all positions are equally likely


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
    two = Probe.from_texts([text], tokenizer, max_vectors=400, sequence_length=32, vectors_per_window=2)
    assert (len(two.lengths), two.lengths[0]) == (200, 32)
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
    assert (probe.n_batches, probe.batch_vectors) == (8, 4128)
    assert len(np.unique(probe.sample("all"))) == 128 * 258
    assert not probe.design.exclude_own_window
    assert not probe.has_disjoint_batches()
    assert probe.sample("no_sink").shape == (8, 128 * 256 // 8)
    cut = Probe.from_texts([text], tokenizer, design="paper", sequence_length=100)
    assert set(cut.lengths.tolist()) == {100}


def test_designs_are_saved_and_loaded(tmp_path):
    own = Design("mine", exclude_own_window=False, metric_settings={"two_nn": {"discard": 0.5}})
    for design in ("independent", "dense", "paper", "shuffled", own):
        probe = Probe.from_tokens(random_tokens(40, 30), max_vectors=900, batch_vectors=300, design=design)
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
    assert probe.hash == Probe.from_tokens(torch.arange(96).view(8, 12), max_vectors=64, batch_vectors=16).hash
