"""A probe of whatever data a user has, and what it reads at most."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from small import random_tokens
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from transformers import DataCollatorForLanguageModeling

from repdyn import Probe
from repdyn.data.tokens import byte_tokenizer
from repdyn.probe.bounds import bounded_windows
from repdyn.probe.design import DENSE, INDEPENDENT

IDS = random_tokens(600, 20, seed=0)
ROWS = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": 1} for row in IDS]
SETTINGS: dict[str, Any] = {"max_vectors": 256, "n_windows": 64}


class Stream(IterableDataset):
    def __iter__(self):
        yield from ({"input_ids": row} for row in IDS)


class Rows(Dataset):
    """A data set of torch that draws random numbers, as augmentations do."""

    def __len__(self) -> int:
        return len(IDS)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        random.random()
        np.random.rand()
        torch.rand(1)
        return IDS[index], index % 2


def columns() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"input_ids": IDS.tolist(), "label": [0 for _ in IDS]})


def padded() -> list[dict[str, torch.Tensor]]:
    """Batches with padding on the left, whose mask says so."""
    ids = torch.cat([torch.zeros(600, 3, dtype=torch.long), IDS], dim=1)
    mask = (torch.arange(23) >= 3).long().expand(600, 23)
    return [
        {"input_ids": a, "attention_mask": b}
        for a, b in zip(ids.split(32), mask.split(32), strict=True)
    ]


def masking() -> DataLoader:
    collator = DataCollatorForLanguageModeling(byte_tokenizer("bert"), mlm_probability=0.9)
    data: Any = ROWS
    return DataLoader(data, batch_size=8, shuffle=True, collate_fn=collator)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: IDS, id="tensor"),
        pytest.param(lambda: IDS.tolist(), id="lists"),
        pytest.param(lambda: {"input_ids": IDS}, id="one batch"),
        pytest.param(lambda: list(IDS.split(32)), id="batches"),
        pytest.param(padded, id="padded batches"),
        pytest.param(columns, id="datasets"),
        pytest.param(lambda: TensorDataset(IDS, torch.ones_like(IDS), IDS[:, 0]), id="tuples"),
        pytest.param(Rows, id="torch"),
        pytest.param(lambda: DataLoader(Rows(), batch_size=7, shuffle=True), id="loader"),
        pytest.param(lambda: DataLoader(Rows(), batch_size=7, num_workers=2), id="workers"),
        pytest.param(masking, id="masking collator"),
    ],
)
def test_the_same_rows_are_the_same_probe(make: Callable[[], Any]):
    """Catches padding taken for tokens, masked tokens, and shuffled rows."""
    rows = IDS[np.linspace(0, 599, 64).round().astype(int)]
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    probe = Probe.from_dataset(make(), **SETTINGS)
    assert probe.hash == Probe.from_tokens(rows, max_vectors=256, n_windows=64).hash
    assert random.getstate() == before[0]
    assert (np.random.get_state()[1] == before[1]).all()
    assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.parametrize("make", [Stream, lambda: columns().to_iterable_dataset()])
def test_a_stream_is_read_from_its_beginning(make):
    probe = Probe.from_dataset(make(), **SETTINGS)
    assert probe.hash == Probe.from_tokens(IDS[:64], max_vectors=256, n_windows=64).hash


def test_texts():
    texts = [f"A sentence about number {number}. " * 5 for number in range(200)]
    tokenizer = byte_tokenizer()
    named = datasets.Dataset.from_dict({"text": texts})
    expected = Probe.from_texts(texts, tokenizer, max_vectors=256).hash
    loader: Any = DataLoader(texts, shuffle=True)  # type: ignore[arg-type]
    for data in (texts, named, named.to_iterable_dataset(), loader):
        assert Probe.from_dataset(data, tokenizer, max_vectors=256).hash == expected


def test_images_become_a_probe_of_inputs():
    images = TensorDataset(torch.randn(40, 3, 8, 8), torch.zeros(40, dtype=torch.long))
    probe = Probe.from_dataset(DataLoader(images, batch_size=4), max_vectors=64)
    assert probe.design.name == "images"
    assert len(probe.lengths) == 40
    named = [{"pixel_values": torch.randn(4, 3, 8, 8), "labels": torch.zeros(4)} for _ in range(3)]
    inputs = Probe.from_dataset(named, max_vectors=64).inputs
    assert inputs is not None
    assert all(list(batch) == ["pixel_values"] for batch in inputs.batches)


def test_empty_and_short_rows_are_no_windows():
    """Of Wikipedia as it is published every second row is empty."""
    rows = [row.tolist() if number % 3 == 0 else [] for number, row in enumerate(IDS.repeat(6, 1))]
    probe = Probe.from_dataset(rows)
    assert len(probe.lengths) == 512
    assert set(probe.lengths.tolist()) == {20}


@pytest.mark.parametrize(
    ("n_rows", "length", "n_windows", "size"),
    [(512, 80, 512, 80), (5000, 80, 512, 80), (700, 1024, 512, 128), (3000, 5, 1280, 5)],
)
def test_what_is_read_is_bounded_whatever_is_given(n_rows, length, n_windows, size):
    ids = random_tokens(n_rows, length, seed=1)
    with pytest.warns(UserWarning, match="cut") if length > 128 else nullcontext():
        of_tokens = Probe.from_tokens(ids)
        of_dataset = Probe.from_dataset(ids)
    for probe in (of_tokens, of_dataset):
        assert len(probe.lengths) == n_windows
        assert set(probe.lengths.tolist()) == {size}
        assert len(probe.tokens) <= 65_536
        assert probe.batch_vectors * probe.n_batches == 4096
        whole = f"{n_windows * size:,} tokens in {n_windows:,} windows; a measurement reads all"
        assert whole in repr(probe)


def test_what_is_read_of_a_probe_is_said_once():
    """The text named all windows twice, and in the same words where only some of them are read."""
    probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=96)
    assert repr(probe).count("24 windows") == 1
    some = Probe.from_tokens(random_tokens(24, 12), max_vectors=4)
    assert "a measurement reads 48 tokens of 4 windows" in repr(some)


def test_long_rows_are_cut_where_they_are_few_and_that_is_said():
    with pytest.warns(UserWarning, match="rows of up to 1,024 tokens are cut into windows of 128"):
        probe = Probe.from_dataset(random_tokens(64, 1024, seed=1))
    assert probe.lengths.tolist() == [128] * 512
    # the first window of the second row begins where that does
    assert probe.tokens[1024:1028].tolist() == random_tokens(64, 1024, seed=1)[1, :4].tolist()


def test_more_is_read_where_it_is_asked_for():
    ids = random_tokens(1500, 200, seed=1)
    assert Probe.from_tokens(ids, n_windows=700).lengths.tolist() == [200] * 700
    assert Probe.from_dataset(ids, n_windows=700).lengths.tolist() == [200] * 700
    with pytest.warns(UserWarning, match="cut"):
        assert len(Probe.from_dataset(ids, max_vectors=8192).lengths) == 1024
    cut = Probe.from_dataset(ids, sequence_length=50)
    assert set(cut.lengths.tolist()) == {50}
    with pytest.raises(ValueError, match="n_windows >= 1"):
        Probe.from_tokens(ids, n_windows=-1)


def test_windows_of_one_length_for_models_that_take_no_mask():
    """Catches sequence_length= alone, which cuts rows into equal parts of several lengths."""
    rows = [row[: 6 + number % 15] for number, row in enumerate(IDS)]
    assert len(set(Probe.from_dataset(rows, sequence_length=8).lengths.tolist())) > 1
    with pytest.warns(UserWarning, match="cut"):
        probe = Probe.from_dataset(rows, equal_lengths=True)
    assert set(probe.lengths.tolist()) == {13}
    of_eight = Probe.from_dataset(rows, equal_lengths=True, sequence_length=8)
    assert set(of_eight.lengths.tolist()) == {8}
    # whole windows from the beginning of a row, two of those that are long enough
    assert of_eight.tokens[:8].tolist() == rows[2][:8].tolist()
    # rows of one length would be cut in half
    alike = Probe.from_dataset([row[:9] for row in IDS], equal_lengths=True, sequence_length=8)
    assert set(alike.lengths.tolist()) == {8}
    whole = Probe.from_dataset(IDS, equal_lengths=True)
    assert whole.hash == Probe.from_dataset(IDS).hash
    with pytest.raises(ValueError, match="smaller sequence_length"):
        Probe.from_dataset(rows, equal_lengths=True, sequence_length=64)


def test_what_a_row_says_beside_its_tokens():
    """Catches numbers of positions that are taken for tokens, and a source for a text."""
    rows = [
        {"source": "web", "weight": 0.5, "document": 7, "order": torch.arange(20), "ids": row}
        for row in IDS
    ]
    assert Probe.from_dataset(rows).hash == Probe.from_dataset(IDS).hash


def test_numbers_before_the_tokens_are_no_tokens():
    """Catches the numbers of users, one for each row of a batch, that are measured as a text: rows
    of salesforce/ICLRec, src/datasets.py.
    """
    rows = TensorDataset(torch.arange(len(IDS)), IDS, IDS.roll(1))
    numbered: Any = [(number, row) for number, row in enumerate(IDS)]
    expected = Probe.from_dataset(IDS).hash
    for data in (rows, DataLoader(rows, batch_size=8), numbered):
        assert Probe.from_dataset(data).hash == expected


def test_captions_beside_inputs_are_no_texts():
    """Catches a caption that is tokenized, or asks for a tokenizer, where pixels and tokens are."""
    rows: Any = [
        {"image": torch.randn(3, 8, 8), "text": row, "caption": f"picture {number}"}
        for number, row in enumerate(IDS[:40])
    ]
    pairs: Any = [{"left": row, "right": row.roll(1), "caption": "a pair"} for row in IDS[:40]]
    for tokenizer in (None, byte_tokenizer()):
        probe = Probe.from_dataset(DataLoader(rows), tokenizer, accepted=["image", "text"])
        assert sorted(probe.inputs.batches[0]) == ["image", "text"]
        of_pairs = Probe.from_dataset(DataLoader(pairs), tokenizer, accepted=["left", "right"])
        assert sorted(of_pairs.inputs.batches[0]) == ["left", "right"]


def test_a_decoder_beside_inputs_reads_the_labels():
    """Catches a speech recogniser that cannot run, as its trainer gives the decoder labels alone:
    huggingface/transformers, examples/pytorch/speech-recognition.
    """
    rows: Any = [
        {"input_features": torch.randn(20, 8), "labels": row.where(torch.arange(20) < 12, -100)}
        for row in IDS[:40]
    ]
    accepted = ["input_features", "decoder_input_ids", "labels"]
    (first, *_) = Probe.from_dataset(DataLoader(rows), accepted=accepted).inputs.batches
    assert first["decoder_input_ids"].tolist() == [row[:12].tolist() for row in IDS[:16]]
    without = ["input_features", "labels"]
    (first, *_) = Probe.from_dataset(DataLoader(rows), accepted=without).inputs.batches
    assert sorted(first) == ["input_features"]


def test_rows_of_one_length_are_cut_into_windows_of_one_length():
    """A model without an attention mask takes no others."""
    windows = bounded_windows(np.full(100, 257), INDEPENDENT, fills=True)
    assert set(windows.lengths) == {85}
    assert windows.starts[:4].tolist() == [0, 85, 170, 257]


def test_whole_rows_are_left_out_where_all_tokens_of_a_window_are_taken():
    windows = bounded_windows(np.full(1000, 256), DENSE)
    assert set(windows.lengths) == {256}
    assert 200 < len(windows.lengths) <= 256


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ([], "empty"),
        ("a text", "list"),
        ([[], []], "empty"),
        ([1, 2, 3], "rows"),
        (["a text"], "tokenizer"),
        ({"train": columns(), "test": columns()}, "train"),
        ([object()], "from_inputs"),
    ],
)
def test_what_is_no_data_is_refused_with_what_to_pass(data, word):
    with pytest.raises((ValueError, TypeError), match=word):
        Probe.from_dataset(data)
    with pytest.raises(ValueError, match="column"):
        Probe.from_dataset(columns(), column="tokens")


def test_inputs_are_bounded_and_shrink_to_what_there_is():
    many = Probe.from_inputs([torch.randn(100, 4, 2) for _ in range(7)])
    assert len(many.lengths) == 512
    assert many.batch_vectors == 4096
    with pytest.warns(UserWarning, match="1 x 80 are measured"):
        few = Probe.from_inputs([torch.randn(10, 4, 2)])
    assert few.batch_vectors == 80
    assert "reads all 10 inputs" in repr(few)
