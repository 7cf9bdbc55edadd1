"""Run by torchrun: trains with DeepSpeed's engine, with and without the tracker, and writes what
came out.

DS_ACCELERATOR=cpu PYTHONPATH=tests/support torchrun --standalone --nproc_per_node 2
tests/stacks/deepspeed_job.py FOLDER
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from small import HandWritten, random_tokens
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from repdyn import Probe, Tracker, measure
from repdyn.callbacks import HuggingFaceTracker

PROBE = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
CASES: dict[str, tuple[int, bool, dict[str, Any]]] = {
    "hand-written, stage 1": (1, False, {}),
    "hand-written, stage 2": (2, False, {"gradient_accumulation_steps": 2}),
    "llama, stage 1": (1, True, {"bf16": {"enabled": True}}),
    "llama, stage 2": (2, True, {"gradient_clipping": 0.1}),
}

TRAINER = "llama, Trainer, stage 2"


def fresh(llama: bool) -> nn.Module:
    torch.manual_seed(0)
    if not llama:
        return HandWritten()
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, attention_dropout=0.1, **sizes))


def train(case: str, store: Path | None) -> dict[str, Any]:
    """Return losses, weights and random state of a rank after eight batches, and the values of the
    bare module.
    """
    import deepspeed  # the test that starts this program needs the cases alone

    stage, llama, changes = CASES[case]
    bare = fresh(llama)
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}} | changes
    engine, *_ = deepspeed.initialize(
        model=bare, optimizer=torch.optim.AdamW(bare.parameters(), 1e-2), config=config
    )
    settings: dict[str, Any] = {"schedule": 2, "run": case, "report": False, "on_error": "raise"}
    tracker = Tracker(engine, PROBE, store=store, **settings).start() if store else None
    torch.manual_seed(1 + dist.get_rank())
    losses = []
    for batch in random_tokens(64, 12, seed=2 + dist.get_rank()).split(8):
        logits = engine(input_ids=batch).logits if llama else engine(batch)
        loss = cross_entropy(logits[:, :-1].flatten(0, 1).float(), batch[:, 1:].flatten())
        engine.backward(loss)
        applied = engine.is_gradient_accumulation_boundary()
        engine.step()
        losses.append(loss.item())
        if tracker is not None and applied:
            tracker.step(loss=loss)
    if tracker is not None:
        tracker.finish()
    return left_behind(bare, losses)


def train_with_the_trainer(store: Path | None) -> dict[str, Any]:
    """Return the same of a training by the Trainer of transformers in stage 2."""
    bare = fresh(llama=True)
    tracker = HuggingFaceTracker(
        PROBE, schedule=2, run=TRAINER, store=store, report=False, on_error="raise"
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=8,
            per_device_train_batch_size=4,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            deepspeed={"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}},
        )
        data = [{"input_ids": tokens, "labels": tokens} for tokens in random_tokens(64, 12, seed=2)]
        trainer = Trainer(bare, arguments, train_dataset=data, callbacks=[tracker] if store else [])
        trainer.train()
    if type(trainer.model_wrapped).__name__ != "DeepSpeedEngine":
        raise TypeError(
            f"expected the Trainer to use DeepSpeed's engine, got {type(trainer.model_wrapped)}"
        )
    return left_behind(
        bare, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    )


def left_behind(bare: nn.Module, losses: list[float]) -> dict[str, Any]:
    outcome = {"losses": losses, "weights": bare.state_dict(), "random": torch.get_rng_state()}
    rows = measure(bare, PROBE).rows
    return outcome | {
        "values": {(row.layer, row.module, row.metric, row.subset): row.value for row in rows}
    }


def main(folder: Path) -> None:
    import deepspeed

    deepspeed.init_distributed("gloo")
    for case in CASES:
        outcome = [train(case, store) for store in (None, folder / "store")]
        torch.save(outcome, folder / f"{case}, rank {dist.get_rank()}.pt")
    outcome = [train_with_the_trainer(store) for store in (None, folder / "store")]
    torch.save(outcome, folder / f"{TRAINER}, rank {dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
