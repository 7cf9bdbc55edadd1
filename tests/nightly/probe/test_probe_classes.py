"""Classes and topics of a probe's tokens."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from distinct_tokens import first_tokens, make_probe

from repdyn import Probe


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
