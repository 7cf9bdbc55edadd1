r"""Run by torchrun in two processes: each case is done by both, and the first writes what came out
of it.

PYTHONPATH=tests/support torchrun --standalone --nproc_per_node 2 \
    tests/nightly/core/ranks/cases.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from small import HandWritten, random_tokens
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from repdyn import Probe, Ranks, Tracker, measure
from repdyn.callbacks import HuggingFaceTracker
from repdyn.capture.states import Buffers
from repdyn.metrics import Metric
from repdyn.store.schema import Checkpoint
from repdyn.store.state_cache import StateCache
from repdyn.views.alerts import Rule

PROBE = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
# 24 sequences of 12: with so many tokens in a forward pass there are 24, 5, 1 of them for two ranks
BATCHES = {"even": 12, "uneven": 60, "one": 1000}


def fresh() -> HandWritten:
    torch.manual_seed(0)
    return HandWritten()


def values(rows: list[Any]) -> list[list[Any]]:
    return [
        [
            row.layer,
            row.module,
            row.metric,
            row.subset,
            row.compared_to,
            str(row.value),
            str(row.std),
            row.n_unique,
            row.reason,
        ]
        for row in rows
    ]


def shared(tokens_per_forward: int, **changes: Any) -> list[list[Any]]:
    settings = {"tokens_per_forward": tokens_per_forward, "ranks": Ranks.of_job()}
    return values(measure(fresh(), PROBE, **settings | changes).rows)


def all_metrics() -> list[list[Any]]:
    """Of two checkpoints, so that the second is compared with the first."""
    with_topics = PROBE.with_topics(PROBE.tokens % 4)
    ranks = Ranks.of_job()
    of_both = []
    with tempfile.TemporaryDirectory() as folder:
        state_cache = StateCache(Path(folder), run="r", probe=with_topics.hash)
        for step, model in enumerate([fresh(), changed()]):
            at = Checkpoint(step=step)
            options = {"ranks": ranks, "state_cache": state_cache}
            of_both += measure(
                model, with_topics, "all", tokens_per_forward=60, checkpoint=at, **options
            ).rows
    return values(of_both)


def changed() -> HandWritten:
    model = fresh()
    for parameter in model.parameters():
        parameter.data.mul_(torch.linspace(0.9, 1.1, parameter.numel()).view(parameter.shape))
    return model


def in_little_memory() -> list[list[Any]]:
    return shared(60, states_bytes=100)


def fails_here(rank: int) -> Callable:
    def forward(model: nn.Module, batch: Any) -> Any:
        if dist.get_rank() == rank:
            raise ZeroDivisionError("no such luck")
        return model(batch.input_ids)

    return forward


def one_rank_fails() -> list[str]:
    """What each rank is told, and that both can go on."""
    ranks = Ranks.of_job()
    model = fresh()
    try:
        measure(model, PROBE, forward=fails_here(1), ranks=ranks)
        said = "nothing"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    assert len(measure(model, PROBE, ranks=ranks).rows) == len(measure(model, PROBE).rows)
    return ranks.all_gather(said)


def one_kernel_fails() -> dict[str, list[str]]:
    def broken(cloud: Any) -> torch.Tensor:
        if dist.get_rank() == 1:
            raise ZeroDivisionError("no such luck")
        return torch.tensor(1.0)

    metric = Metric(
        name="broken",
        kernel=broken,
        meaning="fails on the second rank",
        range=(0.0, 1.0),
        source="nobody",
    )
    rows = measure(fresh(), PROBE, [metric], ranks=Ranks.of_job(), on_error="record").rows
    try:
        measure(fresh(), PROBE, [metric], ranks=Ranks.of_job())
        said = "nothing"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return {
        "rows": [[row.layer, row.value, row.reason] for row in rows],
        "raised": Ranks.of_job().all_gather(said),
    }


def wrapped(kind: str) -> nn.Module:
    model = fresh()
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "compiled ddp":
        return torch.compile(DistributedDataParallel(model), backend="eager")
    if kind == "fsdp":
        return FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({type(model.blocks[0])}),
            device_id=torch.device("cpu"),
        )
    if kind == "fsdp2":
        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)
    raise ValueError(kind)


def trained(
    kind: str,
    folder: Path | None,
    prepare: Callable[[nn.Module], object] = id,
    on_error: Any = "raise",
) -> dict[str, Any]:
    """Losses and weights' checksums of a short training, tracked where there is a folder for the
    store.
    """
    model = wrapped(kind)
    prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses: list[float] = []

    def train_step() -> torch.Tensor:
        tokens = torch.randint(3, 50, (4, 12), generator=generator)
        loss = cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        return loss

    torch.manual_seed(10 + dist.get_rank())  # dropout
    if folder is None:
        for _ in range(4):
            train_step()
    else:
        with Tracker(
            model,
            PROBE,
            schedule=2,
            store=folder,
            run=kind,
            on_error=on_error,
            tokens_per_forward=60,
        ) as tracker:
            for _ in range(4):
                tracker.step(loss=train_step(), tokens=96)
    norms = [
        float(p.detach().to_local().norm() if hasattr(p, "to_local") else p.detach().norm())
        for p in model.parameters()
    ]
    return {"losses": losses, "norms": norms, "rng": torch.rand(1).item()}


def tracked(kind: str, folder: Path) -> dict[str, Any]:
    plain = trained(kind, None)
    with_tracker = trained(kind, folder)
    return {"ranks": Ranks.of_job().all_gather([plain, with_tracker])}


def trainer_of_hugging_face(folder: Path) -> list[Any]:
    """For each rank the losses that were logged, without and with the tracker."""
    data = [{"input_ids": tokens, "labels": tokens} for tokens in random_tokens(48, 12, seed=1)]
    config = GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    logged = []
    for name, callbacks in (
        ("plain", []),
        ("trainer", [HuggingFaceTracker(PROBE, 2, on_error="raise")]),
    ):
        set_seed(0)
        settings = {
            "use_cpu": True,
            "report_to": "none",
            "disable_tqdm": True,
            "save_strategy": "no",
            "ddp_backend": "gloo",
        }
        arguments = TrainingArguments(str(folder / name), max_steps=4, logging_steps=2, **settings)
        trainer = Trainer(
            GPT2LMHeadModel(config), arguments, train_dataset=data, callbacks=callbacks
        )
        trainer.train()
        logged.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    return Ranks.of_job().all_gather(logged)


def untrained(kind: str) -> list[list[Any]]:
    model = wrapped(kind)
    return values(measure(model, PROBE, tokens_per_forward=60, ranks=Ranks.of_job()).rows)


def said(act: Callable[[], object]) -> list[str]:
    """What each rank is told by an error."""
    try:
        act()
        told = "nothing"
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
    return Ranks.of_job().all_gather(told)


def no_room_on_one_rank() -> list[Any]:
    """The second rank cannot take the layers it is to measure; afterwards all can go on."""
    new = Buffers.new

    def full(buffers: Buffers, n_rows: int, like: torch.Tensor) -> torch.Tensor:
        if n_rows > 190 and dist.get_rank() == 1:  # a whole layer, not the part of a rank
            raise OSError("no space left")
        return new(buffers, n_rows, like)

    Buffers.new = full  # type: ignore[method-assign]
    told = said(lambda: shared(60))
    Buffers.new = new  # type: ignore[method-assign]
    return [told, shared(60)]


def out_of_memory(kind: str, folder: Path) -> list[Any]:
    """A forward pass breaks off in a block, on all ranks, before training begins."""
    plain = trained(kind, None)

    def breaking(model: nn.Module) -> None:
        blocks = [module for module in model.modules() if type(module).__name__.endswith("Block")]
        blocks[1].attention.register_forward_pre_hook(fail_in_evaluation)

    return Ranks.of_job().all_gather([plain, trained(kind, folder, breaking, on_error="warn")])


def fail_in_evaluation(module: nn.Module, _: Any) -> None:
    if not module.training:
        raise torch.OutOfMemoryError("no memory")


def own_probe() -> Probe:
    return Probe.from_tokens(
        random_tokens(24, 12, seed=dist.get_rank()), max_vectors=192, batch_vectors=96
    )


def other_probe(folder: Path) -> list[str]:
    return said(lambda: Tracker(fresh(), own_probe(), store=folder, ranks="all").__enter__())


def other_schedule(folder: Path) -> list[Any]:
    """One rank is a step ahead of the other: nothing of two steps is mixed, nobody waits."""
    refused = said(
        lambda: Tracker(
            fresh(), PROBE, schedule=[1 + dist.get_rank()], store=folder, ranks="all"
        ).__enter__()
    )
    tracker = Tracker(
        fresh(), PROBE, schedule=[3], store=folder, run="mixed", ranks="all", on_error="warn"
    )
    with tracker:
        tracker._tracked.measure(tracker._model, Checkpoint(step=1 + dist.get_rank()), {})
    frame = tracker.store.to_pandas("mixed") if dist.get_rank() == 0 else None
    reasons = [] if frame is None else sorted(set(frame.loc[frame["step"] == 1, "reason"]))
    return [refused, reasons, Ranks.of_job().all_gather(len(tracker._tracked.raw.writer.rows))]


def tensor_parallel(store: Path) -> list[str]:
    model = fresh()
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    plan = {
        "blocks.*.feed_forward.1": ColwiseParallel(),
        "blocks.*.feed_forward.3": RowwiseParallel(),
    }
    parallelize_module(model, mesh, plan)  # type: ignore[arg-type]
    return said(
        lambda: Tracker(model, PROBE, store=store).start()
    )  # which tries the model before it measures


def shard_alone() -> list[str]:
    try:
        measure(wrapped("fsdp2"), PROBE)
        said = "nothing"
    except ValueError as error:
        said = str(error)
    return Ranks.of_job().all_gather(said)


def unwritable_store(folder: Path) -> list[Any]:
    """The first rank cannot write; under "raise" all ranks stop, none waits."""
    try:
        tracker = Tracker(
            fresh(), PROBE, schedule=1, store=folder / "store", on_error="raise", ranks="all"
        )
        dist.barrier()
        folder.write_text("a file where a folder should be")
        with tracker:
            pass
        said = "nothing"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return Ranks.of_job().all_gather(said)


def alert_that_stops(folder: Path) -> list[list[bool]]:
    """What each rank is told after each of three steps, though the first alone holds the rows
    against the rule.
    """
    halt = Rule(name="halt", when="above", bound=2.0, metrics=("train/loss",), stop=True)
    requests = []
    with Tracker(
        fresh(), PROBE, schedule=1, store=folder, alerts=[halt], report=False, ranks="all"
    ) as tracker:
        for loss in (1.0, 3.0, 1.0):
            tracker.step(loss=loss)
            requests.append(tracker.should_stop)
    return Ranks.of_job().all_gather(requests)


def loss_of_two_numbers(folder: Path) -> list[str]:
    """The first rank alone stores the loss; under "raise" all ranks stop, none waits."""

    def train() -> None:
        with Tracker(
            fresh(), PROBE, schedule=1, store=folder, on_error="raise", report=False, ranks="all"
        ) as tracker:
            tracker.step(loss=torch.tensor([1.0, 2.0]))

    return said(train)


def cases(folder: Path) -> dict[str, Callable[[], Any]]:
    return {
        **{f"shared {name}": lambda n=n: shared(n) for name, n in BATCHES.items()},
        "all metrics": all_metrics,
        "little memory": in_little_memory,
        "one rank fails": one_rank_fails,
        "one kernel fails": one_kernel_fails,
        **{
            f"untrained {kind}": lambda kind=kind: untrained(kind)
            for kind in ("ddp", "fsdp", "fsdp2")
        },
        **{
            f"tracked {kind}": lambda kind=kind: tracked(kind, folder / "store")
            for kind in ("ddp", "compiled ddp", "fsdp", "fsdp2")
        },
        "hugging face trainer": lambda: trainer_of_hugging_face(folder),
        "shard alone": shard_alone,
        "no room on one rank": no_room_on_one_rank,
        **{
            f"out of memory {kind}": lambda kind=kind: out_of_memory(kind, folder / "memory")
            for kind in ("fsdp", "fsdp2")
        },
        "other probe": lambda: other_probe(folder / "other"),
        "other schedule": lambda: other_schedule(folder / "mixed"),
        "tensor parallel": lambda: tensor_parallel(folder / "parallel"),
        "unwritable store": lambda: unwritable_store(folder / "file"),
        "alert that stops": lambda: alert_that_stops(folder / "alerts"),
        "loss of two numbers": lambda: loss_of_two_numbers(folder / "loss"),
    }


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    for name, case in cases(folder).items():
        drawing = (
            nullcontext()
            if name == "tracked ddp"
            else patch("repdyn.views.publish.results.show_run")
        )  # slower than the rest
        try:
            with drawing:
                outcome = case()
        except Exception:
            outcome = {"failed": traceback.format_exc()}
        print(dist.get_rank(), name, flush=True)
        dist.barrier()
        if dist.get_rank() == 0:
            (folder / f"{name}.json").write_text(json.dumps(outcome))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    # Under load a thread of gloo may still hold tensors of the last collective when the interpreter
    # ends, and is then killed with the whole process, all work done: seen in 2 of some 20 runs.
    sys.stdout.flush()
    os._exit(0)
