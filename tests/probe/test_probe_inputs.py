"""What people have at hand for a probe: corpora in one row, lists of several lengths, mapped files, other tokenizers."""

import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from repdyn import Probe


def test_lists_of_several_lengths_are_sequences():
    rows = [[3, 4, 5, 6], [7, 8], [9, 10, 11]]
    probe = Probe.from_tokens(rows, max_vectors=6)
    assert probe.tokens.tolist() == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert probe.lengths.tolist() == [4, 2, 3]
    tensors = Probe.from_tokens([torch.tensor(row) for row in rows], max_vectors=6)
    assert tensors.hash == probe.hash


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.uint32, np.int64])
def test_a_file_that_is_mapped_read_only(tmp_path, dtype):
    ids = np.arange(96, dtype=dtype).reshape(8, 12)
    ids.tofile(tmp_path / "train.bin")
    mapped = np.memmap(tmp_path / "train.bin", dtype=dtype, mode="r", shape=(8, 12))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probe = Probe.from_tokens(mapped, max_vectors=64, batch_vectors=16)
    assert probe.hash == Probe.from_tokens(torch.arange(96).view(8, 12), max_vectors=64, batch_vectors=16).hash


def test_unsigned_tensors():
    ids = torch.arange(96).view(8, 12)
    assert Probe.from_tokens(ids.to(torch.uint16), max_vectors=64).hash == Probe.from_tokens(ids, max_vectors=64).hash


@pytest.mark.parametrize("corpus", [np.arange(960, dtype=np.uint16), torch.arange(960), list(range(960))])
def test_a_corpus_in_one_row(corpus):
    with pytest.raises(ValueError, match="expected input_ids of shape") as caught:
        Probe.from_tokens(corpus)
    assert "cut a corpus into windows, input_ids[: len(input_ids) // 80 * 80].reshape(-1, 80)" in str(caught.value)


def test_a_tokenizer_of_another_library():
    class Encoding:  # as that of tiktoken
        def encode(self, text):
            return [ord(letter) for letter in text]

    with pytest.raises(
        ValueError, match="expected a tokenizer of transformers, got Encoding; .*Probe.from_tokens"
    ) as caught:
        Probe.from_texts(["a text"], Encoding())  # pyright: ignore[reportArgumentType]
    assert "[tokenizer.encode(text) for text in texts]" in str(caught.value)
    assert (
        len(Probe.from_tokens([Encoding().encode(text) for text in ("a text", "another")], max_vectors=6).lengths) == 2
    )


def test_a_loader_is_refused_before_it_draws():
    loader = DataLoader(TensorDataset(torch.arange(96).view(8, 12)), shuffle=True)
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="got DataLoader .*; of a DataLoader take some rows of its dataset"):
        Probe.from_tokens(loader)
    assert torch.equal(state, torch.get_rng_state())
