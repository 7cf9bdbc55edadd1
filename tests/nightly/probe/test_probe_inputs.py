"""What people have at hand for a probe: corpora in one row, lists of several lengths, mapped files, other tokenizers."""

import warnings

import numpy as np
import pytest
import torch

from repdyn import Probe


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.uint32, np.int64])
def test_a_file_that_is_mapped_read_only(tmp_path, dtype):
    ids = np.arange(96, dtype=dtype).reshape(8, 12)
    ids.tofile(tmp_path / "train.bin")
    mapped = np.memmap(tmp_path / "train.bin", dtype=dtype, mode="r", shape=(8, 12))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probe = Probe.from_tokens(mapped, max_vectors=64, batch_vectors=16)
    assert probe.hash == Probe.from_tokens(torch.arange(96).view(8, 12), max_vectors=64, batch_vectors=16).hash
