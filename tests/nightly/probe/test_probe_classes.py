"""Classes and topics of a probe's tokens."""

import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from distinct_tokens import first_tokens, make_probe

from repdyn import Probe


@pytest.mark.parametrize(("members", "size"), [(1200, 300), (1000, 300), (900, 300), (899, 299), (100, 33), (9, 3)])
def test_batch_sizes_of_a_class(members, size):
    probe = make_probe(design="dense").with_classes({"some": first_tokens(members)})
    sample = probe.sample("some")
    assert sample.shape == (3, size)
    in_order = [token for token in probe.sample("all").ravel() if token < members]
    # the batches of "all" use only the beginning of the permutation
    assert sample.ravel().tolist()[: len(in_order)] == in_order[: 3 * size]
    assert len(np.unique(sample)) == 3 * size


def test_a_probe_copies_its_arguments():
    members, topics = first_tokens(50), torch.arange(1200)
    probe = make_probe().with_classes({"a": members}).with_topics(topics)
    before = probe.hash
    members[:] = True
    topics[:] = 0
    assert replace(probe).hash == before
    with pytest.raises(FrozenInstanceError):
        probe.topics = None  # pyright: ignore


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


def test_the_hash_distinguishes_classes_and_topics_of_equal_bytes():
    probes = [make_probe(), make_probe().with_topics(torch.arange(1200))]
    probes += [make_probe().with_classes({name: first_tokens(50)}) for name in ("topics", "a", "b")]
    assert len({probe.hash for probe in probes}) == len(probes)


@pytest.mark.parametrize("whole", [True, False], ids=["both", "one"])
def test_classes_and_topics_are_saved_and_loaded(tmp_path, whole):
    probe = make_probe().with_classes({"rare": first_tokens(50), "topics": first_tokens(70)})
    if whole:
        probe = probe.with_topics(torch.arange(1200) % 7 - 1)
    path = tmp_path / "probe.safetensors"
    probe.save(path)
    loaded = Probe.load(path)
    assert loaded.hash == probe.hash
    assert loaded.subsets == probe.subsets
    assert np.array_equal(loaded.sample("rare"), probe.sample("rare"))
    assert (loaded.topics is None) == (probe.topics is None)
    if probe.topics is not None:
        assert torch.equal(loaded.topics, probe.topics)
    assert pickle.loads(pickle.dumps(loaded)).hash == probe.hash

    from safetensors.torch import load_file

    tensors = load_file(path)
    assert tensors["class.rare"].dtype == torch.uint8
    assert set(tensors) == {"tokens", "lengths", "class.rare", "class.topics"} | ({"topics"} if whole else set())
