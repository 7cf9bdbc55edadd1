from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from repdyn.data.datamodule import TextDataModule
from repdyn.data.tokens import byte_tokenizer
from repdyn.probe.design import CLASSES, DENSE, INDEPENDENT

# position i of the text can be read off bytes i to i + 4
TEXT = "".join(f"{number:05d}" for number in range(8000)).encode()


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "numbers.txt"
    path.write_bytes(TEXT)
    return str(path)


def batches(loader: Any) -> list[dict[str, torch.Tensor]]:
    return list(loader)


def text_of(loader: Any) -> bytes:
    return b"".join(bytes(row) for batch in loader for row in batch["labels"].tolist())


def test_the_text_is_split_in_order_90_5_5(source: str):
    data = TextDataModule(source, sequence_length=50)
    assert text_of(data.val_dataloader()) == TEXT[36_000:38_000]
    train = [bytes(row) for batch in data.train_dataloader() for row in batch["labels"].tolist()]
    assert b"".join(sorted(train)) == TEXT[:36_000]


def test_training_windows_are_shuffled_anew_each_epoch_and_alike_in_each_run(source: str):
    first, second = (
        TextDataModule(source, sequence_length=50).train_dataloader() for _ in range(2)
    )
    epochs = [text_of(first), text_of(first)]
    assert epochs[0] != epochs[1]
    assert epochs == [text_of(second), text_of(second)]
    assert epochs[0] != text_of(
        TextDataModule(source, sequence_length=50, seed=1).train_dataloader()
    )


def test_masked_windows_stand_between_cls_and_sep(source: str):
    data = TextDataModule(source, objective="masked", sequence_length=52)
    batch = batches(data.val_dataloader())[0]
    assert batch["input_ids"].shape == (32, 52)
    assert set(batch["input_ids"][:, 0].tolist()) == {257}
    assert set(batch["input_ids"][:, -1].tolist()) == {258}


def test_validation_is_the_same_every_time_whatever_the_batch_size(source: str):
    def validation(batch_size: int) -> list[torch.Tensor]:
        data = TextDataModule(source, objective="masked", sequence_length=52, batch_size=batch_size)
        runs = [
            torch.cat([batch[key] for batch in data.val_dataloader()])
            for key in ("input_ids", "labels")
        ]
        again = [
            torch.cat([batch[key] for batch in data.val_dataloader()])
            for key in ("input_ids", "labels")
        ]
        assert all(torch.equal(a, b) for a, b in zip(runs, again, strict=True))
        return runs

    assert all(torch.equal(a, b) for a, b in zip(validation(3), validation(16), strict=True))


def test_any_hugging_face_tokenizer_will_do(source: str, tmp_path: Path, cache: Path):
    folder = tmp_path / "tokenizer"
    byte_tokenizer(for_encoder=True).save_pretrained(folder)
    ours, theirs = (
        TextDataModule(source, tokenizer=name, objective="masked", sequence_length=52)
        for name in ("bytes", str(folder))
    )
    assert theirs.vocab_size == ours.vocab_size
    for a, b in zip(ours.train_dataloader(), theirs.train_dataloader(), strict=True):
        assert all(torch.equal(a[key], b[key]) for key in a)
    assert len(list((cache / "tokens").iterdir())) == 3


def test_the_probe_is_spread_over_the_validation_split(source: str):
    data = TextDataModule(
        source, sequence_length=50, max_vectors=400, batch_vectors=400, design="dense"
    )
    windows = data.probe_windows()
    starts = [TEXT.index(bytes(row.tolist())) - 36_000 for row in windows]
    # 40 windows in the split, 1.25 * 400 tokens wanted: ten of them, the first and the last among
    # them
    assert starts == [50 * index for index in (0, 4, 9, 13, 17, 22, 26, 30, 35, 39)]
    assert windows.dtype == np.int64


def test_a_small_split_is_measured_whole_and_the_test_split_too(source: str):
    windows = TextDataModule(source, sequence_length=50).probe_windows()
    assert windows.shape == (80, 50)
    starts = [TEXT.index(bytes(row.tolist())) for row in windows]
    assert starts == list(range(36_000, 40_000, 50))


def test_the_design_decides_the_windows(source: str):
    settings: dict[str, Any] = {"max_vectors": 120, "batch_vectors": 60}
    data = TextDataModule(source, sequence_length=100, **settings)
    assert data.probe_windows().shape == (16, INDEPENDENT.window_tokens)
    assert data.probe().design == INDEPENDENT
    dense = TextDataModule(source, sequence_length=100, design="dense", **settings)
    assert dense.probe_windows().shape == (2, 100)
    assert dense.probe().design == DENSE
    paper = TextDataModule(source, sequence_length=20, design="paper").probe()
    assert len(paper.lengths) == 128
    assert set(paper.lengths.tolist()) == {20}
    assert paper.n_batches == 1
    assert paper.batch_vectors == 128 * 20


def test_the_probe_carries_tokens_and_plan(source: str):
    data = TextDataModule(
        source, objective="masked", sequence_length=52, max_vectors=800, batch_vectors=400
    )
    probe = data.probe()
    assert len(probe.lengths) == len(data.probe_windows())
    assert probe.special_ids == (256, 257, 258, 259)
    assert probe.name.endswith(", validation and test split")
    assert probe.hash == data.probe().hash


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    path = tmp_path / "prose.txt"
    rare = [
        f"{one}{other}x" for one in "bcdfgklmnprstvwz" for other in ("ab", "ec", "id", "of", "ug")
    ]
    lines = [
        f"The dog, the cat and the {word} of the king don't sleep at {i}."
        for i, word in enumerate(rare * 12)
    ]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("objective", ["causal", "masked"])
@pytest.mark.parametrize("saved", [False, True], ids=["bytes", "a tokenizer's folder"])
def test_the_probe_knows_classes_of_words(prose: Path, tmp_path: Path, objective: Any, saved: bool):
    name = "bytes"
    if saved:
        name = str(tmp_path / "tokenizer")
        byte_tokenizer(for_encoder=objective == "masked").save_pretrained(name)
    data = TextDataModule(
        str(prose),
        name,
        objective=objective,
        sequence_length=52,
        max_vectors=800,
        batch_vectors=400,
    )
    plain = data.probe()
    assert plain.subsets == ("all", "no_sink")
    data.classes = CLASSES
    probe = data.probe()
    assert torch.equal(probe.tokens, plain.tokens)
    assert set(probe.subsets) == {"all", "no_sink", *CLASSES}
    shown = {
        word: bytes(token for token in probe.tokens[probe.classes[word]].tolist()).decode()
        for word in CLASSES
    }
    assert set(shown["function"].lower()) == set("theandofdon'tat")
    assert "the" in shown["frequent"]
    assert "x" in shown["rare"]
    assert "x" not in shown["frequent"]
    assert not set(shown["content"]) & set(" .,0123456789'")


def test_a_dump_is_cleaned_for_training(tmp_path: Path, make_dump: Callable[..., bytes]):
    path = tmp_path / "dump.xml"
    path.write_bytes(make_dump({"Fox": "The '''quick''' [[fox]]. " * 200}))
    cleaned, raw = (
        TextDataModule(str(path), sequence_length=16, clean=clean) for clean in (True, False)
    )
    assert b"'''" in text_of(raw.val_dataloader())
    assert b"'''" not in text_of(cleaned.val_dataloader())
    assert "cleaned" in cleaned.description
