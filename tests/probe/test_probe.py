"""The probe: same tokens, same sample, whatever the padding, the batch size or the machine."""

import doctest
import importlib
import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from small import random_tokens
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from repdyn import Probe
from repdyn.probe.design import DENSE, INDEPENDENT, Design

# of a probe of 40 sequences of 30 tokens, three batches of 300: the first vectors of the first batch
PINNED = [45, 1107, 952, 858, 5]
RAGGED = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]


def padded(side: str, pad: int = 0):
    ids, mask = [], []
    for sequence in RAGGED:
        filler = [pad] * (6 - len(sequence))
        ids.append(filler + sequence if side == "left" else sequence + filler)
        mask.append(
            [0] * len(filler) + [1] * len(sequence) if side == "left" else [1] * len(sequence) + [0] * len(filler)
        )
    return ids, mask


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """Words to ids, with a prefix and a suffix as BERT has."""
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[CLS]", "[SEP]", *"abcdefghij"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")


def test_padding_side_and_padding_id_do_not_matter():
    probes = [Probe.from_tokens(*padded(side, pad), max_vectors=6) for side in ("left", "right") for pad in (0, 3)]
    assert len({probe.hash for probe in probes}) == 1
    assert probes[0].tokens.tolist() == [5, 6, 7, 8, 9, 10, 11, 12, 13]
    assert probes[0].lengths.tolist() == [4, 2, 3]


@pytest.mark.parametrize("n_sequences", [1, 2, 3, 50])
def test_batches_hold_every_token_once_in_order(n_sequences):
    probe = Probe.from_tokens(*padded("left"), max_vectors=6, pad_id=3)
    seen = []
    for batch in probe.batches(n_sequences):
        assert batch.tokens.tolist() == list(range(len(seen), len(seen) + len(batch.tokens)))
        flat = batch.input_ids.flatten()
        assert (flat[batch.attention_mask.flatten() == 0] == 3).all()
        seen += flat[torch.from_numpy(batch.positions)].tolist()
    assert seen == probe.tokens.tolist()


@pytest.mark.parametrize(
    ("design", "pinned"),
    [("dense", [198, 328, 45, 263, 621]), ("independent", PINNED)],
)
def test_sample_is_seeded_disjoint_and_pinned(design, pinned):
    settings = {"max_vectors": 900, "batch_vectors": 300, "design": design}
    sample = Probe.from_tokens(random_tokens(40, 30), **settings).sample("all")
    assert sample.shape == (3, 300)
    assert len(np.unique(sample)) == 900
    # The stream of numpy's RandomState is frozen: these numbers may never change, or stored runs stop comparing.
    assert sample[0, :5].tolist() == pinned
    other = Probe.from_tokens(random_tokens(40, 30), **settings, seed=1)
    assert not np.array_equal(sample, other.sample("all"))


@pytest.mark.parametrize(("design", "least"), [("dense", 60), ("independent", 40)])
def test_a_batch_is_spread_over_the_whole_probe(design, least):
    probe = Probe.from_tokens(random_tokens(400, 30), max_vectors=3000, batch_vectors=1000, design=design)
    for batch in probe.sample("all"):
        tenth = np.bincount(batch * 10 // len(probe.tokens), minlength=10)
        assert tenth.min() > least  # 100 expected; a contiguous batch would leave nine of them empty
        assert np.abs(np.diff(np.sort(batch))).mean() > 5


def test_no_sink_leaves_out_first_positions_and_special_tokens():
    probe = Probe.from_tokens(random_tokens(40, 30), special_ids=[7, 9], max_vectors=900)
    chosen = probe.sample("no_sink").ravel()
    starts = np.arange(0, 1200, 30)
    assert not np.isin(chosen, starts).any()
    assert not np.isin(probe.tokens.numpy()[chosen], [7, 9]).any()
    everything = probe.sample("all").ravel()
    assert np.isin(everything, starts).any()
    assert np.isin(probe.tokens.numpy()[everything], [7, 9]).any()


@pytest.mark.parametrize(
    "changed",
    [{"seed": 1}, {"special_ids": [4]}, {"max_vectors": 800}, {"batch_vectors": 450}, {"design": "dense"}],
    ids=lambda changed: next(iter(changed)),
)
def test_hash_names_tokens_and_plan(changed):
    tokens = random_tokens(40, 30)
    settings = {"special_ids": [3], "max_vectors": 900, "batch_vectors": 300}
    probe = Probe.from_tokens(tokens, **settings)
    assert probe.hash == Probe.from_tokens(tokens.clone(), **settings, name="another name").hash
    assert probe.hash != Probe.from_tokens(tokens, **settings | changed).hash
    tokens[0, 0] += 1
    assert probe.hash != Probe.from_tokens(tokens, **settings).hash


def test_hash_tells_where_sequences_end():
    flat = torch.arange(12)
    assert (
        Probe.from_tokens(flat.view(2, 6), max_vectors=9).hash != Probe.from_tokens(flat.view(3, 4), max_vectors=9).hash
    )


def test_from_texts_adds_the_tokenizers_affixes_to_every_window(tokenizer):
    probe = Probe.from_texts(["a b c d e f g", "h i j"], tokenizer, sequence_length=5, max_vectors=9)
    sequences = [s.tolist() for s in probe.tokens.split(probe.lengths.tolist())]
    assert sequences == [[1, 3, 4, 5, 2], [1, 6, 7, 8, 2], [1, 9, 2], [1, 10, 11, 12, 2]]
    assert probe.special_ids == (0, 1, 2)
    assert not np.isin(probe.tokens.numpy()[probe.sample("no_sink")], [0, 1, 2]).any()


def test_from_texts_keeps_no_more_than_it_needs_spread_over_all(tokenizer):
    text = " ".join("abcdefghij"[i % 10] for i in range(3000))
    probe = Probe.from_texts([text], tokenizer, sequence_length=12, max_vectors=400, design="dense")
    assert 500 <= len(probe.tokens) - 2 * len(probe.lengths) <= 510
    whole = Probe.from_texts([text], tokenizer, sequence_length=12, max_vectors=2900)
    assert len(whole.tokens) == 3600


def test_save_and_load(tmp_path):
    probe = Probe.from_tokens(*padded("left"), special_ids=[9], max_vectors=5, batch_vectors=5, pad_id=3, name="ragged")
    probe.save(tmp_path / "probe.safetensors")
    loaded = Probe.load(tmp_path / "probe.safetensors")
    assert (loaded.hash, loaded.name, loaded.pad_id) == (probe.hash, "ragged", 3)
    assert np.array_equal(loaded.sample("no_sink"), probe.sample("no_sink"))


def test_load_refuses_other_files(tmp_path):
    from safetensors.torch import load_file, save_file

    save_file({"tokens": torch.arange(3)}, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match=r"expected a probe written by Probe.save, got .*weights.safetensors"):
        Probe.load(tmp_path / "weights.safetensors")

    from safetensors import safe_open

    Probe.from_tokens(random_tokens(5, 6), max_vectors=20).save(tmp_path / "probe.safetensors")
    with safe_open(tmp_path / "probe.safetensors", "pt") as file:
        metadata = file.metadata()
    tensors = load_file(tmp_path / "probe.safetensors")
    tensors["tokens"][0] += 1
    save_file(tensors, tmp_path / "probe.safetensors", metadata)
    with pytest.raises(ValueError, match="claims the hash .* but its content has"):
        Probe.load(tmp_path / "probe.safetensors")


def test_defaults_are_four_batches_of_4096():
    probe = Probe.from_tokens(random_tokens(200, 100))
    assert probe.sample("all").shape == probe.sample("no_sink").shape == (4, 4096)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Probe.from_tokens(random_tokens(10, 100)),
            r"the probe is too small: 4 batches of 4096 vectors need 16384 tokens, but the subset 'all' has 1000 of its "
            r"1000; give 15384 tokens of this subset more, or ask for fewer vectors with max_vectors=1000, batch_vectors=1000",
        ),
        (
            lambda: Probe.from_tokens(random_tokens(10, 100), max_vectors=1000),
            r"the subset 'no_sink' has 990 of its 1000; give 10 tokens of this subset more, .* max_vectors=990, batch_vectors=990",
        ),
        (lambda: Probe.from_tokens(torch.arange(5)), r"expected input_ids of shape .* got \(5,\) of torch.int64"),
        (lambda: Probe.from_tokens(torch.rand(2, 3)), r"integer type, got \(2, 3\) of torch.float32"),
        (lambda: Probe.from_tokens([[1, 2, 3]], [[1, 1]]), r"of the shape of input_ids, \(1, 3\), got \(1, 2\)"),
        (
            lambda: Probe.from_tokens([[1, 2, 3], [4, 5, 6]], [[1, 1, 1], [1, 0, 1]]),
            "masked positions between the tokens of sequence 1",
        ),
        (lambda: Probe.from_tokens(random_tokens(5, 6), max_vectors=2), "expected batch_vectors >= 3"),
        (
            lambda: Probe.from_tokens(random_tokens(5, 6), max_vectors=5, batch_vectors=8),
            "got batch_vectors=8 and 0 batches; raise max_vectors or lower batch_vectors",
        ),
        (
            lambda: Probe.from_tokens(random_tokens(5, 6), max_vectors=9).sample("sinks"),
            "expected a subset among all, no_sink",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_from_texts_refuses_a_bare_string_and_a_window_of_special_tokens(tokenizer):
    with pytest.raises(ValueError, match=r"got a single string; pass \[text\]"):
        Probe.from_texts("a b c", tokenizer)
    with pytest.raises(ValueError, match="expected sequence_length > 2, the special tokens this tokenizer adds, got 2"):
        Probe.from_texts(["a b c"], tokenizer, sequence_length=2)


def test_enwik8_takes_the_held_out_end_of_the_text(tokenizer, tmp_path):
    (tmp_path / "text.txt").write_text("a b c d " * 950 + "e f g h " * 50)
    probe = Probe.enwik8(tokenizer, path=str(tmp_path / "text.txt"), sequence_length=10, max_vectors=150)
    words = set(probe.tokens.tolist()) - {1, 2}
    assert words == {tokenizer.convert_tokens_to_ids(word) for word in "efgh"}
    assert "sha256" in probe.name


def test_too_small_by_less_than_a_batch_advises_what_works():
    tokens = random_tokens(10, 100)
    with pytest.raises(ValueError, match=r"with max_vectors=900$"):
        Probe.from_tokens(tokens, max_vectors=1200, batch_vectors=300)
    assert Probe.from_tokens(tokens, max_vectors=900, batch_vectors=300).n_batches == 3


@pytest.mark.parametrize("n_sequences", [1, 5, 12, 16, 100])
def test_no_batch_is_square(n_sequences):
    probe = Probe.from_tokens(random_tokens(28, 12), max_vectors=300)
    shapes = [tuple(batch.input_ids.shape) for batch in probe.batches(n_sequences)]
    assert sum(rows for rows, _ in shapes) == 28
    assert all(rows != length for rows, length in shapes)


# classes and topics of tokens


def numbered(**settings) -> Probe:
    """40 sequences of 30 tokens, no two tokens alike; three batches."""
    return Probe.from_tokens(torch.arange(1200).view(40, 30), **{"max_vectors": 900, "batch_vectors": 300} | settings)


def first(count: int) -> torch.Tensor:
    return torch.arange(1200) < count


def test_dense_probes_keep_the_hash_they_had_before_designs_were_named():
    assert numbered(special_ids=[3], design="dense").hash == "26ec1158c8852b05"
    assert numbered().with_classes({}).hash == numbered().hash
    from repdyn.data.byte_tokenizer import byte_tokenizer

    # windows at the end of a text, shorter than the others, are left out since
    texts = ["the dog sees it; " * 40, "and 3 birds don't. " * 30]
    probe = Probe.from_texts(
        texts, byte_tokenizer(for_encoder=True), sequence_length=32, max_vectors=384, design="dense"
    )
    assert probe.hash == "fab6ceb0a89865db"


def test_classes_are_subsets_beside_the_others():
    probe = numbered().with_classes({"verbs_2": first(500), "nouns": ~first(500)})
    assert probe.subsets == ("all", "no_sink", "nouns", "verbs_2")
    assert list(probe.classes) == ["nouns", "verbs_2"]
    assert numbered().subsets == ("all", "no_sink")
    assert set(probe.sample("verbs_2").ravel()) <= set(range(500))


@pytest.mark.parametrize(("members", "size"), [(1200, 300), (1000, 300), (900, 300), (899, 299), (100, 33), (9, 3)])
def test_batches_of_a_class_are_as_many_and_as_large_as_it_has_tokens_for(members, size):
    probe = numbered(design="dense").with_classes({"some": first(members)})
    sample = probe.sample("some")
    assert sample.shape == (3, size)
    in_order = [token for token in probe.sample("all").ravel() if token < members]
    # the permutation goes on beyond what "all" takes of it
    assert sample.ravel().tolist()[: len(in_order)] == in_order[: 3 * size]
    assert len(np.unique(sample)) == 3 * size


def test_a_class_of_all_tokens_without_sinks_is_no_sink():
    probe = numbered(special_ids=[7, 9])
    assert probe.is_sink.sum() == 42
    copy = probe.with_classes({"copy": ~probe.is_sink})
    assert np.array_equal(copy.sample("copy"), copy.sample("no_sink"))


def test_classes_are_added_and_replaced_by_name():
    probe = (
        numbered()
        .with_classes({"a": first(50), "b": first(60)})
        .with_classes({"b": first(70).numpy(), "c": first(80).tolist()})
    )
    assert {name: int(members.sum()) for name, members in probe.classes.items()} == {"a": 50, "b": 70, "c": 80}


def test_what_was_given_can_be_changed_without_changing_the_probe():
    members, topics = first(50), torch.arange(1200)
    probe = numbered().with_classes({"a": members}).with_topics(topics)
    before = probe.hash
    members[:] = True
    topics[:] = 0
    assert replace(probe).hash == before
    with pytest.raises(FrozenInstanceError):
        probe.topics = None  # pyright: ignore


@pytest.mark.parametrize(
    "change",
    [
        lambda probe: probe.with_classes({"a": first(51)}),
        lambda probe: probe.with_classes({"b": first(50)}),
        lambda probe: replace(probe, classes={"b": first(50)}),
        lambda probe: replace(probe, classes={}),
        lambda probe: probe.with_topics(torch.arange(1200)),
    ],
    ids=["members", "another", "name", "none", "topics"],
)
def test_the_hash_names_classes_and_topics(change):
    probe = numbered().with_classes({"a": first(50)})
    assert change(probe).hash != probe.hash


def test_a_class_and_topics_of_the_same_bytes_are_told_apart():
    probes = [numbered(), numbered().with_topics(torch.arange(1200))]
    probes += [numbered().with_classes({name: first(50)}) for name in ("topics", "a", "b")]
    assert len({probe.hash for probe in probes}) == len(probes)


def test_the_order_in_which_classes_are_given_does_not_matter():
    a, b = {"a": first(50)}, {"b": first(60)}
    assert numbered().with_classes(a | b).hash == numbered().with_classes(b).with_classes(a).hash


@pytest.mark.parametrize("whole", [True, False], ids=["both", "one"])
def test_classes_and_topics_are_saved_and_loaded(tmp_path, whole):
    probe = numbered().with_classes({"rare": first(50), "topics": first(70)})
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


def test_topics_are_whole_numbers_of_any_kind():
    assert numbered().topics is None
    for topics in (np.arange(1200, dtype=np.int16), list(range(1200)), torch.arange(1200, dtype=torch.int32)):
        given = numbered().with_topics(topics).topics
        assert given is not None
        assert given.dtype == torch.int64
        assert given.tolist() == list(range(1200))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: numbered().with_classes({"all": first(50)}),
            "expected a class named in lower case, such as 'rare' or 'verbs_2', and not 'all', 'no_sink' or 'no_massive', got 'all'; rename it",
        ),
        (
            lambda: numbered().with_classes({"no_sink": first(50)}),
            "and not 'all', 'no_sink' or 'no_massive', got 'no_sink'",
        ),
        (lambda: numbered().with_classes({"Rare": first(50)}), "got 'Rare'; rename it"),
        (lambda: numbered().with_classes({"": first(50)}), "got ''; rename it"),
        (lambda: numbered().with_classes({"2nd": first(50)}), "got '2nd'; rename it"),
        (lambda: numbered().with_classes({"a-b": first(50)}), "got 'a-b'; rename it"),
        (lambda: numbered().with_classes({"rare\n": first(50)}), r"got 'rare\\n'; rename it"),
        (lambda: numbered().with_classes({5: first(50)}), "got 5; rename it"),
        (
            lambda: numbered().with_classes({"a": first(50)[:-1]}),
            r"expected the class 'a' as torch.bool of shape \(1200,\), got \(1199,\) of torch.bool; give True or False for each token, in the order of probe.tokens",
        ),
        (lambda: numbered().with_classes({"a": first(50).view(40, 30)}), r"got \(40, 30\) of torch.bool"),
        (lambda: numbered().with_classes({"a": first(50).long()}), r"got \(1200,\) of torch.int64"),
        (lambda: numbered().with_classes({"a": []}), r"got \(0,\) of torch.float32"),
        (lambda: replace(numbered(), classes={"a": [True] * 1200}), "got a list; give True or False for each token"),
        (
            lambda: numbered().with_classes({"a": first(0)}),
            "the class 'a' is too small: 3 batches of at least 3 vectors need 9 tokens, but 0 of the 1200 are in it; give 9 tokens of this class more, or leave it out",
        ),
        (
            lambda: numbered().with_classes({"a": first(8)}),
            "give 1 tokens of this class more, or ask for fewer batches with max_vectors=600, or leave it out",
        ),
        (
            lambda: numbered().with_topics(torch.arange(1199)),
            r"expected topics as torch.int64 of shape \(1200,\), got \(1199,\) of torch.int64; give the number of each token's topic, in the order of probe.tokens, -1 where it has none",
        ),
        (lambda: numbered().with_topics(torch.rand(1200)), r"expected topics as .*, got \(1200,\) of torch.float32"),
        (lambda: numbered().with_topics(first(50)), r"expected topics as .*, got \(1200,\) of torch.bool"),
        (lambda: replace(numbered(), topics=[0] * 1200), "expected topics as .*, got a list"),
        (
            lambda: numbered().with_topics(torch.arange(1200) - 2),
            "expected topics >= -1, got -2; number them from 0, with -1 for none",
        ),
        (
            lambda: numbered().with_topics(torch.full((1200,), -1)),
            "expected topics of some tokens, got -1 for all of them; leave topics out",
        ),
        (
            lambda: numbered().with_classes({"mine": first(50)}).sample("rare"),
            r"expected a subset among all, no_sink, mine, got 'rare'; classes of words come with Probe.from_texts\(..., classes=...\), or --classes words in a sweep, others with Probe.with_classes",
        ),
    ],
)
def test_classes_and_topics_that_are_none(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_fewer_batches_are_enough_for_a_small_class_as_the_refusal_says():
    with pytest.raises(ValueError, match="max_vectors=600"):
        numbered().with_classes({"a": first(8)})
    assert numbered(max_vectors=600).with_classes({"a": first(8)}).sample("a").shape == (2, 4)


# sampling designs


def counts_of(probe: Probe, batch: np.ndarray) -> np.ndarray:
    return np.unique(probe.window_of_token[batch], return_counts=True)[1]


@pytest.mark.parametrize("subset", ["all", "no_sink"])
def test_batches_take_disjoint_windows_and_an_equal_share_of_each(subset):
    probe = Probe.from_tokens(random_tokens(96, 32), max_vectors=900, batch_vectors=300)
    assert probe.has_disjoint_batches(subset)
    windows = [set(probe.window_of_token[batch].tolist()) for batch in probe.sample(subset)]
    assert [len(of_batch) for of_batch in windows] == [32, 32, 32]
    assert not windows[0] & windows[1]
    assert not (windows[0] | windows[1]) & windows[2]
    for batch in probe.sample(subset):
        assert len(np.unique(batch)) == 300
        assert set(counts_of(probe, batch)) == {9, 10}


def test_every_window_gives_one_vector_where_there_are_as_many_windows():
    probe = Probe.from_tokens(random_tokens(600, 8), max_vectors=600, batch_vectors=300)
    for batch in probe.sample("all"):
        assert counts_of(probe, batch).tolist() == [1] * 300
    offsets = probe.sample("all").ravel() % 8
    assert np.bincount(offsets, minlength=8).min() > 50  # 75 expected: all positions are equally likely


def test_windows_of_unequal_length_are_dealt_out_evenly():
    mask = torch.arange(40) < torch.randint(2, 41, (120, 1), generator=torch.Generator().manual_seed(0))
    probe = Probe.from_tokens(torch.ones(120, 40, dtype=torch.long), mask, max_vectors=1200, batch_vectors=400)
    sample = probe.sample("all")
    assert probe.has_disjoint_batches()
    windows = [set(probe.window_of_token[batch].tolist()) for batch in sample]
    assert not windows[0] & windows[1] | windows[1] & windows[2] | windows[0] & windows[2]


@pytest.mark.parametrize("make", [lambda: random_tokens(1, 900), lambda: random_tokens(2, 450)], ids=["one", "two"])
def test_too_few_windows_are_shared_by_the_batches(make):
    probe = Probe.from_tokens(make(), max_vectors=800, batch_vectors=200)
    assert not probe.has_disjoint_batches()
    assert len(np.unique(probe.sample("all"))) == 800


def test_a_class_that_cannot_be_dealt_out_leaves_the_others_alone():
    plain = numbered()
    probe = plain.with_classes({"some": first(60)})
    assert np.array_equal(probe.sample("all"), plain.sample("all"))
    assert probe.has_disjoint_batches("all")
    assert not probe.has_disjoint_batches("some")
    assert probe.sample("some").shape == (3, 20)


def test_from_texts_cuts_as_many_windows_as_the_design_asks_for(tokenizer):
    text = " ".join("abcdefghij"[i % 10] for i in range(30_000))
    probe = Probe.from_texts([text], tokenizer, max_vectors=400, batch_vectors=200)
    assert probe.lengths.unique().tolist() == [INDEPENDENT.window_tokens]
    assert len(probe.lengths) == 2 * -(-200 // INDEPENDENT.vectors_per_window)
    two = Probe.from_texts([text], tokenizer, max_vectors=400, sequence_length=32, vectors_per_window=2)
    assert (len(two.lengths), two.lengths[0]) == (200, 32)
    assert max(counts_of(two, batch).max() for batch in two.sample("all")) == 2
    # a text too short for it gives what it has
    few = Probe.from_texts([text[:4000]], tokenizer, max_vectors=400, batch_vectors=200)
    assert few.has_disjoint_batches()
    assert len(few.lengths) == -(-2000 // (INDEPENDENT.window_tokens - 2))


def test_the_published_protocol_takes_all_tokens_of_128_windows_of_512_characters(tokenizer):
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
    for design in ("independent", "dense", "paper", own):
        probe = Probe.from_tokens(random_tokens(40, 30), max_vectors=900, batch_vectors=300, design=design)
        probe.save(tmp_path / "probe.safetensors")
        loaded = Probe.load(tmp_path / "probe.safetensors")
        assert loaded.hash == probe.hash
        assert loaded.design.rule == probe.design.rule
        assert np.array_equal(loaded.sample("all"), probe.sample("all"))


def test_a_file_from_before_designs_were_named_is_dense(tmp_path):
    import json

    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = tmp_path / "probe.safetensors"
    probe = numbered(design="dense")
    probe.save(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    plan = json.loads(metadata["repdyn_probe"])
    del plan["design"]
    save_file(load_file(path), path, {**metadata, "repdyn_probe": json.dumps(plan)})
    assert Probe.load(path).design == DENSE
    for wrong in ("independent", {"design": "mine"}, {**DENSE.rule, "exclude_own_window": "1"}):
        save_file(load_file(path), path, {**metadata, "repdyn_probe": json.dumps({**plan, "design": wrong})})
        with pytest.raises(ValueError, match="expected a probe written by Probe.save, .* sampling design"):
            Probe.load(path)


def test_an_unknown_design_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="expected a design among .*, got 'papre'; did you mean 'paper'"):
        numbered(design="papre")


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_is_read_as_far_as_it_is_needed(causal):
    probe = Probe.from_tokens(random_tokens(30, 12), max_vectors=300)
    sampled = np.array([3, 1, 12 * 5 + 11, 12 * 7, 12 * 9 + 4])
    read = probe.tokens_needed(sampled, causal)
    wanted = {0: 4, 5: 12, 7: 1, 9: 5} if causal else dict.fromkeys((0, 5, 7, 9), 12)
    assert {number: int(count) for number, count in enumerate(read) if count} == wanted
    batches = list(probe.batches(2, read))
    assert set(sampled) <= {int(token) for batch in batches for token in batch.tokens}
    for batch in batches:
        assert batch.attention_mask.all()  # cutting brings no padding about
        assert torch.equal(batch.input_ids.flatten(), probe.tokens[torch.from_numpy(batch.tokens)])
    assert [batch.input_ids.shape[1] for batch in batches] == ([4, 12] if causal else [12, 12])


def test_examples_in_docstrings_hold():
    results = doctest.testmod(importlib.import_module("repdyn.probe.design"))
    assert results.attempted > 0
    assert results.failed == 0
