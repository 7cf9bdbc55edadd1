"""Classes and topics of a probe's tokens."""

import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from distinct_tokens import first_tokens, make_probe

from repdyn import Probe


def test_classes_are_subsets():
    probe = make_probe().with_classes({"verbs_2": first_tokens(500), "nouns": ~first_tokens(500)})
    assert probe.subsets == ("all", "no_sink", "nouns", "verbs_2")
    assert list(probe.classes) == ["nouns", "verbs_2"]
    assert make_probe().subsets == ("all", "no_sink")
    assert set(probe.sample("verbs_2").ravel()) <= set(range(500))


@pytest.mark.parametrize(("members", "size"), [(1200, 300), (1000, 300), (900, 300), (899, 299), (100, 33), (9, 3)])
def test_batch_sizes_of_a_class(members, size):
    probe = make_probe(design="dense").with_classes({"some": first_tokens(members)})
    sample = probe.sample("some")
    assert sample.shape == (3, size)
    in_order = [token for token in probe.sample("all").ravel() if token < members]
    # the batches of "all" use only the beginning of the permutation
    assert sample.ravel().tolist()[: len(in_order)] == in_order[: 3 * size]
    assert len(np.unique(sample)) == 3 * size


def test_a_class_of_all_tokens_but_sinks_equals_no_sink():
    probe = make_probe(special_ids=[7, 9])
    assert probe.is_sink.sum() == 42
    copy = probe.with_classes({"copy": ~probe.is_sink})
    assert np.array_equal(copy.sample("copy"), copy.sample("no_sink"))


def test_classes_are_added_and_replaced_by_name():
    probe = (
        make_probe()
        .with_classes({"a": first_tokens(50), "b": first_tokens(60)})
        .with_classes({"b": first_tokens(70).numpy(), "c": first_tokens(80).tolist()})
    )
    assert {name: int(members.sum()) for name, members in probe.classes.items()} == {"a": 50, "b": 70, "c": 80}


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


def test_the_hash_does_not_depend_on_the_order_of_classes():
    a, b = {"a": first_tokens(50)}, {"b": first_tokens(60)}
    assert make_probe().with_classes(a | b).hash == make_probe().with_classes(b).with_classes(a).hash


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
