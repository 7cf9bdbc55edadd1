"""Probes: the sample does not depend on padding, batch size or machine; hash, texts and files."""

import contextlib
import os
from collections import UserList

import numpy as np
import pytest
import torch
from small import random_tokens

from repdyn import Probe

# first vectors of the first batch, for 40 sequences of 30 tokens and three batches of 300
PINNED = [45, 1107, 952, 858, 5]
RAGGED = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]


def padded(side: str, pad: int = 0):
    ids = []
    mask = []
    for sequence in RAGGED:
        filler = [pad for _ in range(6 - len(sequence))]
        is_filler = [0 for _ in filler]
        is_token = [1 for _ in sequence]
        ids.append(filler + sequence if side == "left" else sequence + filler)
        mask.append(is_filler + is_token if side == "left" else is_token + is_filler)
    return ids, mask


def test_padding_does_not_change_the_hash():
    probes = [
        Probe.from_tokens(*padded(side, pad), max_vectors=6)
        for side in ("left", "right")
        for pad in (0, 3)
    ]
    assert len({probe.hash for probe in probes}) == 1
    assert probes[0].tokens.tolist() == [5, 6, 7, 8, 9, 10, 11, 12, 13]
    assert probes[0].lengths.tolist() == [4, 2, 3]


@pytest.mark.parametrize("n_sequences", [1, 2, 3, 50])
def test_batches_contain_every_token_once_in_order(n_sequences):
    probe = Probe.from_tokens(*padded("left"), max_vectors=6, pad_id=3)
    seen = []
    for batch in probe.batches(n_sequences):
        assert batch.tokens.tolist() == list(range(len(seen), len(seen) + len(batch.tokens)))
        flat = batch.input_ids.flatten()
        is_padding = batch.attention_mask.flatten() == 0
        assert (flat[is_padding] == 3).all()
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
    # numpy's RandomState is frozen; if these numbers change, stored runs are no longer comparable
    assert sample[0, :5].tolist() == pinned
    other = Probe.from_tokens(random_tokens(40, 30), **settings, seed=1)
    assert not np.array_equal(sample, other.sample("all"))


@pytest.mark.parametrize(("design", "least"), [("dense", 60), ("independent", 40)])
def test_a_batch_is_sampled_from_the_whole_probe(design, least):
    probe = Probe.from_tokens(
        random_tokens(400, 30), max_vectors=3000, batch_vectors=1000, design=design
    )
    for batch in probe.sample("all"):
        tenth = np.bincount(batch * 10 // len(probe.tokens), minlength=10)
        assert (
            tenth.min() > least
        )  # 100 expected; a contiguous batch would leave nine of them empty
        assert np.abs(np.diff(np.sort(batch))).mean() > 5


def test_no_sink_excludes_first_positions_and_special_tokens():
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
    [
        {"seed": 1},
        {"special_ids": [4]},
        {"max_vectors": 800},
        {"batch_vectors": 450},
        {"design": "dense"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_hash_depends_on_tokens_and_plan(changed):
    tokens = random_tokens(40, 30)
    settings = {"special_ids": [3], "max_vectors": 900, "batch_vectors": 300}
    probe = Probe.from_tokens(tokens, **settings)
    assert probe.hash == Probe.from_tokens(tokens.clone(), **settings, name="another name").hash
    assert probe.hash != Probe.from_tokens(tokens, **settings | changed).hash
    tokens[0, 0] += 1
    assert probe.hash != Probe.from_tokens(tokens, **settings).hash


def test_from_texts_adds_the_tokenizers_affixes_to_every_window(tokenizer):
    probe = Probe.from_texts(
        ["a b c d e f g", "h i j"], tokenizer, sequence_length=5, max_vectors=9
    )
    sequences = [s.tolist() for s in probe.tokens.split(probe.lengths.tolist())]
    assert sequences == [[1, 3, 4, 5, 2], [1, 6, 7, 8, 2], [1, 9, 2], [1, 10, 11, 12, 2]]
    assert probe.special_ids == (0, 1, 2)
    assert not np.isin(probe.tokens.numpy()[probe.sample("no_sink")], [0, 1, 2]).any()


def test_from_texts_uses_only_as_many_windows_as_required(tokenizer):
    text = " ".join("abcdefghij"[i % 10] for i in range(3000))
    probe = Probe.from_texts([text], tokenizer, sequence_length=12, max_vectors=400, design="dense")
    assert 500 <= len(probe.tokens) - 2 * len(probe.lengths) <= 510
    whole = Probe.from_texts([text], tokenizer, sequence_length=12, max_vectors=2900)
    assert len(whole.tokens) == 3600


def test_save_and_load(tmp_path):
    probe = Probe.from_tokens(
        *padded("left"), special_ids=[9], max_vectors=5, batch_vectors=5, pad_id=3, name="ragged"
    )
    probe.save(tmp_path / "probe.safetensors")
    loaded = Probe.load(tmp_path / "probe.safetensors")
    assert loaded.hash == probe.hash
    assert loaded.name == "ragged"
    assert loaded.pad_id == 3
    assert np.array_equal(loaded.sample("no_sink"), probe.sample("no_sink"))


def test_load_rejects_other_files(tmp_path):
    from safetensors.torch import load_file, save_file

    save_file({"tokens": torch.arange(3)}, tmp_path / "weights.safetensors")
    with pytest.raises(
        ValueError, match=r"expected a probe written by Probe.save, got .*weights.safetensors"
    ):
        Probe.load(tmp_path / "weights.safetensors")

    from safetensors import safe_open

    Probe.from_tokens(random_tokens(5, 6), max_vectors=20).save(tmp_path / "probe.safetensors")
    with safe_open(tmp_path / "probe.safetensors", "pt") as file:
        metadata = file.metadata()
    tensors = load_file(tmp_path / "probe.safetensors")
    tensors["tokens"][0] += 1
    save_file(tensors, tmp_path / "probe.safetensors", metadata)
    with pytest.raises(
        ValueError, match="expected content with the hash .* in .*, got .*; the file is damaged"
    ):
        Probe.load(tmp_path / "probe.safetensors")


def test_the_default_is_one_batch_of_4096():
    probe = Probe.from_tokens(random_tokens(200, 100))
    assert probe.sample("all").shape == probe.sample("no_sink").shape == (1, 4096)


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({}, (1, 990)),
        ({"max_vectors": 1000}, (1, 990)),
        ({"max_vectors": 16384}, (1, 990)),
        ({"max_vectors": 1200, "batch_vectors": 300}, (3, 300)),
        ({"max_vectors": 900, "batch_vectors": 300}, (3, 300)),
    ],
)
def test_a_probe_is_as_large_as_the_text_allows(settings, shape):
    """Refusing a short text would cost a user the whole measurement; cutting in silence would mix
    sample sizes.
    """
    fits = settings.get("max_vectors") == 900
    with (
        contextlib.nullcontext() if fits else pytest.warns(UserWarning, match="990 vectors for the")
    ):
        probe = Probe.from_tokens(random_tokens(10, 100), **settings)
    assert probe.sample("all").shape == probe.sample("no_sink").shape == shape


def test_windows_of_one_token_have_all_vectors_and_none_without_sinks():
    probe = Probe.from_tokens(random_tokens(40, 1), max_vectors=40)
    assert probe.sample("all").shape == (1, 40)
    assert probe.sample("no_sink").shape == (1, 0)


@pytest.mark.parametrize(
    "padding", [-torch.inf, -1e9, torch.finfo(torch.float16).min, -100.0, torch.nan, 2], ids=str
)
def test_a_mask_whose_meaning_is_another_is_refused(padding):
    """An additive mask is 0 at tokens: read as true and false, it would measure the padding."""
    ids = random_tokens(6, 8)
    mask = torch.zeros(6, 8) if padding != 2 else torch.ones(6, 8)
    mask[:, 5:] = padding
    with pytest.raises(ValueError, match="additive"):
        Probe.from_tokens(ids, mask, max_vectors=20)
    mask = torch.arange(8) < torch.arange(3, 9)[:, None]
    expected = Probe.from_tokens(ids, mask, max_vectors=20)
    for same in (mask.int(), mask.float(), mask.numpy(), mask.tolist()):
        assert Probe.from_tokens(ids, same, max_vectors=20).hash == expected.hash
    rows = UserList(
        row[:length] for length, row in enumerate(ids, 3)
    )  # as a column of a dataset has them
    for same in (None, UserList([1 for _ in row] for row in rows)):
        assert Probe.from_tokens(rows, same, max_vectors=20).hash == expected.hash
    assert (
        Probe.from_tokens([*ids], max_vectors=20).hash
        == Probe.from_tokens(ids, max_vectors=20).hash
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Probe.from_tokens(random_tokens(1, 2)), "the probe is too small"),
        (
            lambda: Probe.from_tokens(torch.arange(5)),
            r"expected input_ids of shape .* got \(5,\) of torch.int64",
        ),
        (
            lambda: Probe.from_tokens(torch.rand(2, 3)),
            r"integer type, got \(2, 3\) of torch.float32",
        ),
        (
            lambda: Probe.from_tokens([[1, 2, 3]], [[1, 1]]),
            r"of the shape of input_ids, \(1, 3\), got \(1, 2\)",
        ),
        (
            lambda: Probe.from_tokens([[1, 2, 3], [4, 5, 6]], [[1, 1, 1], [1, 0, 1]]),
            "masked positions between the tokens of sequence 1",
        ),
        (
            lambda: Probe.from_tokens(random_tokens(5, 6), max_vectors=2),
            "expected batch_vectors >= 3",
        ),
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
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_from_texts_rejects_a_single_string_and_a_window_of_special_tokens(tokenizer):
    with pytest.raises(ValueError, match=r"got a single string; pass \[text\]"):
        Probe.from_texts("a b c", tokenizer)
    with pytest.raises(
        ValueError,
        match="expected sequence_length > 2, the special tokens this tokenizer adds, got 2",
    ):
        Probe.from_texts(["a b c"], tokenizer, sequence_length=2)


def test_enwik8_uses_the_end_of_the_text(tokenizer, tmp_path):
    (tmp_path / "text.txt").write_text("a b c d " * 950 + "e f g h " * 50)
    probe = Probe.enwik8(
        tokenizer, path=str(tmp_path / "text.txt"), sequence_length=10, max_vectors=150
    )
    words = set(probe.tokens.tolist()) - {1, 2}
    assert words == {tokenizer.convert_tokens_to_ids(word) for word in "efgh"}
    assert "sha256" in probe.name


@pytest.mark.parametrize("n_sequences", [1, 5, 12, 16, 100])
def test_no_batch_is_square(n_sequences):
    probe = Probe.from_tokens(random_tokens(28, 12), max_vectors=300)
    shapes = [tuple(batch.input_ids.shape) for batch in probe.batches(n_sequences)]
    assert sum(rows for rows, _ in shapes) == 28
    assert all(rows != length for rows, length in shapes)


@pytest.mark.parametrize("causal", [True, False])
def test_tokens_needed(causal):
    probe = Probe.from_tokens(random_tokens(30, 12), max_vectors=300)
    sampled = np.array([3, 1, 12 * 5 + 11, 12 * 7, 12 * 9 + 4])
    needed = probe.tokens_needed(sampled, causal)
    expected = {0: 4, 5: 12, 7: 1, 9: 5} if causal else dict.fromkeys((0, 5, 7, 9), 12)
    assert {number: int(count) for number, count in enumerate(needed) if count} == expected
    batches = list(probe.batches(2, needed))
    assert set(sampled) <= {int(token) for batch in batches for token in batch.tokens}
    for batch in batches:
        assert batch.attention_mask.all()  # truncation adds no padding
        assert torch.equal(batch.input_ids.flatten(), probe.tokens[torch.from_numpy(batch.tokens)])
    assert [batch.input_ids.shape[1] for batch in batches] == ([4, 12] if causal else [12, 12])


@pytest.mark.parametrize("setting", ["true", "false", None])
def test_tokenizing_leaves_no_thread_pool_and_the_setting_of_the_user(
    setting, tokenizer, monkeypatch
):
    """A process that is forked later, as by a DataLoader, would wait for the threads of the pool
    forever.
    """
    name = "TOKENIZERS_PARALLELISM"
    monkeypatch.delenv(name, raising=False)
    if setting is not None:
        monkeypatch.setenv(name, setting)
    seen = []
    encode = type(tokenizer)._encode_plus

    def watched(*arguments, **settings):
        seen.append(os.environ.get(name))
        return encode(*arguments, **settings)

    monkeypatch.setattr(type(tokenizer), "_encode_plus", watched)
    Probe.from_texts(["a b c d e"] * 9, tokenizer, sequence_length=6, max_vectors=20)
    assert set(seen) == {"false"}
    assert os.environ.get(name) == setting


@pytest.mark.parametrize("state", ["meta", "inference", "float64"])
def test_what_a_caller_has_set_changes_no_probe(state):
    """On a default device, lengths would lie elsewhere than tokens; tensors of inference mode would
    not be written.
    """
    tokens = random_tokens(24, 12)
    classes = {"low": (tokens < 25).flatten().tolist()}
    expected = Probe.from_tokens(tokens, max_vectors=96).with_classes(classes).hash
    contexts = {"meta": lambda: torch.device("meta"), "inference": torch.inference_mode}
    torch.set_default_dtype(torch.float64 if state == "float64" else torch.float32)
    try:
        with contexts.get(state, contextlib.nullcontext)():
            probe = Probe.from_tokens(tokens.tolist(), max_vectors=96).with_classes(classes)
            assert probe.hash == expected
    finally:
        torch.set_default_dtype(torch.float32)
    assert probe.tokens.device.type == "cpu"
    assert not probe.tokens.is_inference()
