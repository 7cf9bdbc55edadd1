"""A training that is resumed, or killed and resumed, reads the batches of an undisturbed one."""

import subprocess
import sys
from itertools import chain, islice, repeat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from repdyn import open_store
from repdyn.data.tokens import load_tokenizer
from repdyn.data.windows import CollateMasked, ResumableLoader, Windows, collate_causal

N_BATCHES = 13


def loader(objective: str = "masked", num_workers: int = 0) -> ResumableLoader:
    tokenizer = load_tokenizer("bytes", for_encoder=True)
    windows = Windows(np.random.default_rng(0).integers(5, 250, 50 * 8), 8)
    collate = (
        CollateMasked(tokenizer, 0.5, seed=3, fixed=False)
        if objective == "masked"
        else collate_causal
    )
    settings = {
        "batch_size": 4,
        "shuffle": True,
        "num_workers": num_workers,
        "generator": torch.Generator().manual_seed(1),
    }
    return ResumableLoader(windows, collate_fn=collate, **settings)


def read(loader: ResumableLoader, number: int) -> list[Tensor]:
    return [
        torch.cat((batch["input_ids"], batch["labels"]))
        for batch in islice(chain.from_iterable(repeat(loader)), number)
    ]


@pytest.mark.parametrize(
    ("objective", "num_workers"), [("causal", 0), ("masked", 0), ("masked", 2)]
)
@pytest.mark.parametrize("n_read", [0, 1, N_BATCHES - 1, N_BATCHES, N_BATCHES + 1, 2 * N_BATCHES])
def test_a_loader_continues_where_another_was(objective, num_workers, n_read):
    undisturbed = read(loader(objective, num_workers), 3 * N_BATCHES)
    first = loader(objective, num_workers)
    second = loader(objective, num_workers)
    before = read(first, n_read)
    second.load_state_dict(first.state_dict())
    after = read(second, 3 * N_BATCHES - n_read)
    assert all(torch.equal(a, b) for a, b in zip(before + after, undisturbed, strict=True))


# Imports once and forks, since importing takes longer than the training. A training is killed where
# it stands.
_KILLED_AND_RESUMED = """
import os, signal, sys, time
from pathlib import Path
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from repdyn.callbacks import RepresentationDynamics
from repdyn.data.datamodule import TextDataModule
from repdyn.models import LanguageModel
from repdyn.views.publish import results

results.show_run = lambda *_, **__: None  # figures take longer than the training

def train(root, objective):
    seed_everything(0)
    text = {"sequence_length": 32, "batch_size": 8, "max_bytes": 20_000}
    data = TextDataModule(objective=objective, max_vectors=128, batch_vectors=64, **text)
    family = "gpt_neox" if objective == "causal" else "bert"
    sizes = {"hidden_size": 16, "n_layers": 2, "n_heads": 1, "context_length": 32}
    tokens = {"vocab_size": data.vocab_size, "pad_token_id": data.pad_token_id}
    model = LanguageModel(family, dropout=0.1, warmup_steps=10, **tokens, **sizes)
    one_file = {"save_top_k": 1, "monitor": None, "enable_version_counter": False}
    saving = ModelCheckpoint(root / "saved", every_n_train_steps=7, filename="last", **one_file)
    tracker = RepresentationDynamics(schedule=4, store=root / "store", report=False, run="run")
    last = root / "saved" / "last.ckpt"
    Trainer(
        max_steps=80,
        accelerator="cpu",
        logger=False,
        callbacks=[tracker, saving],
        default_root_dir=root,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    ).fit(model, data, ckpt_path=last if last.exists() else None, weights_only=True)

def attempt(root, objective, until):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = 1
        try:
            train(root, objective)
            status = 0
        finally:
            os._exit(status)
    while until and not list((root / "store").glob(f"run--*/*{until:04d}*.parquet")):
        assert os.waitpid(child, os.WNOHANG)[0] == 0, "the training ended before it was killed"
        time.sleep(0.01)
    if until:
        os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == (signal.SIGKILL if until else 0)

root, objective = Path(sys.argv[1]), sys.argv[2]
attempt(root / "undisturbed", objective, None)
for step in (8, 20, 28, 44, 60, 72, None):
    attempt(root / "killed", objective, step)
"""


@pytest.mark.once
@pytest.mark.process
@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_a_training_killed_six_times_measures_what_an_undisturbed_one_does(tmp_path, objective):
    script = tmp_path / "killed.py"
    script.write_text(_KILLED_AND_RESUMED)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), objective],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    undisturbed, killed = (values(tmp_path / name / "store") for name in ("undisturbed", "killed"))
    assert undisturbed.index.get_level_values("step").max() == 80
    pd.testing.assert_series_equal(killed, undisturbed, check_exact=True)


def values(store: Path) -> pd.Series:
    rows = open_store(store).to_pandas()
    return rows.set_index(["step", "metric", "subset", "layer"])["value"].sort_index()
