"""Trackers without a probe: it is taken from the trainer's own data, without a trace."""

from __future__ import annotations

import itertools
import random
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from hugging_face_jobs import DATA
from jobs import Job, Repeatable, batches, tiny_language_model
from jobs import trainer as lightning_trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from small import random_tokens
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, IterableDataset
from trainers_without_a_probe import trainer
from transformers import (
    DataCollatorForLanguageModeling,
    ViTConfig,
    ViTForImageClassification,
)

import repdyn
from repdyn import Probe
from repdyn.callbacks import HuggingFaceTracker, RepresentationDynamics
from repdyn.data.tokens import byte_tokenizer

pytestmark = pytest.mark.usefixtures("without_figures")


def lightning(schedule: Any = 4, **changes: Any) -> RepresentationDynamics:
    return RepresentationDynamics(schedule=schedule, **{"on_error": "raise"} | changes)


def probe_in(tracker) -> Probe:
    """Return the one probe that is stored."""
    (path,) = (tracker.store.path / "probes").iterdir()
    return Probe.load(path)


class Augmented(Dataset):
    """Rows with random changes by generators of its own, and by the global ones."""

    def __init__(self) -> None:
        self.tokens = random_tokens(48, 12, seed=1)
        self.random = random.Random(1)
        self.torch = torch.Generator().manual_seed(1)
        self.first = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        shift = int(torch.randint(3, (), generator=self.torch)) + self.random.randrange(3)
        row = self.tokens[index].roll(shift + int(torch.randint(3, ())))
        return {"input_ids": row, "labels": row}


class Numbered(IterableDataset):
    """A stream that remembers how far it was read, as those do that can be resumed."""

    def __init__(self) -> None:
        self.n_read = 0

    def __iter__(self):
        for row in itertools.cycle(random_tokens(48, 12, seed=1)):
            self.n_read += 1
            yield {"input_ids": row.roll(self.n_read), "labels": row}


@pytest.mark.parametrize(
    ("loaders", "changes", "name", "n_windows"),
    [
        ((batches(), batches(n=20)), {}, "the validation data (20 rows)", 20),
        (
            (batches(), [batches(n=20), batches()]),
            {"limit_val_batches": 0},
            "the validation data (20 rows)",
            20,
        ),
        (
            (batches(), batches(n=20)),
            {"check_val_every_n_epoch": 9, "num_sanity_val_steps": 0},
            "the validation data (20 rows)",
            20,
        ),
        (
            (batches(),),
            {},
            "the training data, as there are no validation data (48 rows)",
            48,
        ),
        (
            (DataLoader(Numbered(), batch_size=4), DataLoader(Numbered(), batch_size=4)),
            {"limit_val_batches": 2},
            "the validation data (its first rows)",
            512,
        ),
    ],
    ids=["validation", "several", "late", "training alone", "streams"],
)
def test_lightning_takes_held_out_data(tmp_path, capsys, loaders, changes, name, n_windows):
    attached = lightning()
    lightning_trainer(tmp_path, attached, **changes).fit(Job(), *loaders)
    probe = probe_in(attached)
    assert probe.name == name
    assert len(probe.lengths) == n_windows
    line = next(line for line in capsys.readouterr().err.splitlines() if "probe=" in line)
    assert line.startswith(f"repdyn: measured on {name}: {n_windows} windows of")
    (path,) = attached.store.paths()
    assert path.run.configuration["probe_name"] == name


class NextTokens(Job):
    """Reads rows of inputs and targets in one, which have a token more than it has positions
    (Lightning-AI/litgpt, litgpt/data/tinyllama.py).
    """

    def __init__(self) -> None:
        super().__init__()
        self.network.position = nn.Embedding(11, 16)

    def training_step(self, batch, batch_idx):
        logits = self(batch["input_ids"][:, :-1])
        return cross_entropy(logits.flatten(0, 1), batch["input_ids"][:, 1:].flatten())


class AtMost(NextTokens):
    """Says itself that it reads no more (Lightning-AI/litgpt, litgpt/model.py)."""

    def forward(self, tokens):
        if tokens.shape[1] > 11:
            raise ValueError("Cannot forward sequence, max seq length is only 11.")
        return super().forward(tokens)


@pytest.mark.parametrize("job", [NextTokens, AtMost])
def test_rows_of_inputs_and_targets_in_one(tmp_path, capsys, job):
    """Rows that are longer than the model's context ended the training before its first step."""
    attached = lightning()
    lightning_trainer(tmp_path, attached).fit(job(), batches())
    assert set(probe_in(attached).lengths.tolist()) == {11}
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "probe=" in line)
    assert "in windows of 11 tokens, as the model does not run on 12" in line


def test_a_model_that_fails_on_any_row_is_an_error_of_its_own(tmp_path):
    """Catches the error of a second attempt, whose length is nobody's choice."""

    class Failing(Job):
        def forward(self, tokens):
            raise ValueError(f"never with {tokens.shape[1]} tokens")

    with pytest.raises(ValueError, match="never with 12 tokens"):
        lightning_trainer(tmp_path, lightning()).fit(Failing(), batches())


@pytest.mark.parametrize("data", [Augmented, Numbered])
@pytest.mark.parametrize("validates", [True, False])
def test_a_training_of_lightning_is_bit_equal(tmp_path, data, validates):
    """Catches rows that are drawn from the training's generators, loader or stream."""
    losses = []
    for callbacks in ((), (lightning(),)):
        pl.seed_everything(5)
        rows = data()
        is_map = isinstance(rows, Augmented)
        loaders = [DataLoader(rows, batch_size=4, shuffle=is_map) for _ in range(1 + validates)]
        job = Job()
        lightning_trainer(
            tmp_path / str(len(losses)), *callbacks, limit_val_batches=2 * validates
        ).fit(job, *loaders)
        losses.append(job.losses)
    assert losses[0] == losses[1]


@pytest.mark.parametrize("changes", [{}, {"eval_dataset": None}], ids=["held out", "trained on"])
@pytest.mark.parametrize("data", [Augmented, Numbered])
def test_a_training_of_the_trainer_is_bit_equal(tmp_path, data, changes):
    losses = []
    for callbacks in ((), (HuggingFaceTracker(schedule=2, on_error="raise"),)):
        rows = data()
        given = {"train_dataset": rows, "eval_dataset": rows} | changes
        trained = trainer(tmp_path / str(len(losses)), *callbacks, **given)
        trained.train()
        losses.append([entry["loss"] for entry in trained.state.log_history if "loss" in entry])
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({}, "eval_dataset (8 rows)"),
        ({"eval_dataset": {"a": DATA[:7], "b": DATA}}, "eval_dataset (7 rows)"),
        ({"eval_dataset": None}, "train_dataset, as there is no eval_dataset (48 rows)"),
    ],
)
def test_the_trainer_takes_held_out_data(tmp_path, capsys, data, name):
    attached = HuggingFaceTracker(schedule=2, on_error="raise")
    trainer(tmp_path, attached, **data).train()
    assert probe_in(attached).name == name
    assert f"measured on {name}" in capsys.readouterr().err


class WithoutMask(Job):
    """Its forward finds the padding by itself, so that nobody can tell it of another."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.network(tokens) * (tokens != 0).unsqueeze(-1)


class WithMask(Job):
    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float = 1):
        return self.network(tokens) * scale


def of_many_lengths() -> DataLoader:
    rows = [row[: 6 + number % 7] for number, row in enumerate(random_tokens(48, 12, seed=1))]
    return DataLoader(
        rows,  # type: ignore[arg-type]
        batch_size=4,
        collate_fn=lambda rows: {
            "input_ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        },
    )


@pytest.mark.parametrize("job", [WithoutMask, WithMask])
def test_rows_of_many_lengths_for_a_forward_without_a_mask(tmp_path, capsys, job):
    """Catches the refusal of padding, for which a new user has to learn about probes."""
    attached = lightning()
    lightning_trainer(tmp_path, attached).fit(job(), of_many_lengths(), of_many_lengths())
    assert set(probe_in(attached).lengths.tolist()) == {9}
    assert "in windows of 9 tokens, as the model takes no mask" in capsys.readouterr().err
    assert attached.store.to_pandas()["value"].notna().any()


def test_no_token_is_masked(tmp_path):
    tokenizer = byte_tokenizer("bert")
    attached = HuggingFaceTracker(schedule=2, on_error="raise")
    rows = [{"input_ids": row["input_ids"].tolist()} for row in DATA]
    trained = trainer(
        tmp_path,
        attached,
        train_dataset=rows,
        eval_dataset=rows[:8],
        of=tiny_language_model("bert", vocab_size=len(tokenizer)).model,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.9),
        processing_class=tokenizer,
    )
    trained.train()
    probe = probe_in(attached)
    assert probe.tokens.tolist() == [token for row in rows[:8] for token in row["input_ids"]]
    assert probe.mask_id == tokenizer.mask_token_id


def test_images(tmp_path):
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=1,
        intermediate_size=16,
        image_size=16,
        patch_size=4,
    )
    images = torch.randn(40, 3, 16, 16)
    rows = [{"pixel_values": image, "labels": n % 2} for n, image in enumerate(images)]
    attached = HuggingFaceTracker(schedule=2, on_error="raise")
    of = ViTForImageClassification(config)
    trainer(tmp_path, attached, of=of, train_dataset=rows, eval_dataset=rows[:24]).train()
    probe = probe_in(attached)
    assert probe.design.name == "images"
    assert len(probe.lengths) == 24


def test_lightning_goes_on_with_the_probe_of_its_run(tmp_path):
    """Also where the validation data are others by then."""
    saving = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=4, save_top_k=-1)
    first = lightning()
    lightning_trainer(tmp_path, first, saving, max_steps=4).fit(
        Repeatable(), batches(), batches(n=20)
    )
    (saved,) = (tmp_path / "saved").glob("*.ckpt")
    second = lightning()
    lightning_trainer(tmp_path, second, max_steps=8).fit(
        Repeatable(), batches(), batches(n=24), ckpt_path=saved
    )
    assert probe_in(second).hash == probe_in(first).hash
    assert second.store.paths()[-1].steps() == [0, 4, 8]


def test_the_trainer_goes_on_with_the_probe_of_its_run(tmp_path):
    first = HuggingFaceTracker(schedule=2, on_error="raise")
    trainer(tmp_path, first, save_strategy="steps", save_steps=2).train()
    second = HuggingFaceTracker(schedule=2, on_error="raise")
    again = trainer(tmp_path, second, eval_dataset=DATA[:9], max_steps=6)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert len(probe_in(second).lengths) == 8
    assert second.store.paths()[-1].steps() == [0, 2, 4, 6]


without_ids: Any = [iter(batches(n=8)), DataLoader(["a text"])]  # type: ignore[arg-type]


@pytest.mark.parametrize("loader", without_ids, ids=type)
def test_where_it_is_impossible_the_two_lines_work_as_printed(tmp_path, loader):
    job = Job()
    with pytest.raises(ValueError, match="write") as refused:
        lightning_trainer(tmp_path, lightning(), num_sanity_val_steps=0).fit(job, batches(), loader)
    assert job.losses == []
    lines = [line.strip() for line in str(refused.value).splitlines()[1:]]
    assert len(lines) == 2
    written = {
        "repdyn": repdyn,
        "RepresentationDynamics": RepresentationDynamics,
        "data": ["A text that is long enough for a window. " * 9],
        "tokenizer": byte_tokenizer(),
    }
    exec("\n".join(lines), written)
    assert isinstance(written["tracker"], RepresentationDynamics)
