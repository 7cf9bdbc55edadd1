"""Measure the time and memory of a measurement shared by several ranks, relative to a single one.

    python benchmarks/shared_measurement.py
    python benchmarks/shared_measurement.py --ranks 4 --hidden-size 1024 --layers 24 --repeats 5

Each rank has one thread. Alone, the first rank measures and the others wait; the two take turns. Ratios are medians
over the rounds, with their range. Memory is the growth of the process's peak over what it held with the model loaded.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from machine import facts
from torch import multiprocessing, nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from repdyn import Probe, Ranks, measure

VOCABULARY = 50304


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--hidden-size", type=int, default=512, help="width of the model (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=6, help="blocks of the model (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds (default: %(default)s)")
    options = parser.parse_args()
    if (os.cpu_count() or 1) < options.ranks:
        parser.error(f"expected a core for each of {options.ranks} ranks, got {os.cpu_count()}")
    for name, fact in facts(" ".join(["python", *sys.argv])).items():
        print(f"{name}: {fact}")
    multiprocessing.spawn(_rank, (options,), nprocs=options.ranks)  # type: ignore[attr-defined]


def _rank(rank: int, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    ranks, model, probe = Ranks.of_job(), _model(options), _probe()

    def shared() -> None:
        measure(model, probe, ranks=ranks)

    def alone() -> None:
        if ranks.is_rank_zero:
            measure(model, probe)
        dist.barrier()

    growth = ranks.all_gather(_growth(shared))
    growth_alone = _growth(alone)  # after the smaller one, for a peak only rises
    times = [(_seconds(alone), _seconds(shared)) for _ in range(options.repeats)]
    if ranks.is_rank_zero:
        _report(times, growth, growth_alone, options)
    dist.destroy_process_group()


def _report(times: list[tuple[float, float]], growth: list[int], alone: int, options: argparse.Namespace) -> None:
    ratios = sorted(shared / single for single, shared in times)
    seconds = statistics.median(single for single, _ in times)
    print(f"{options.layers} blocks of width {options.hidden_size}, 4 batches of 4096 vectors a layer")
    print(
        f"shared by {options.ranks} / alone: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}); "
        f"alone {seconds:.1f} s"
    )
    print(f"memory: {max(growth) / 2**20:.0f} MiB on each rank, {(max(growth) + alone) / 2**20:.0f} MiB alone")


def _model(options: argparse.Namespace) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": options.hidden_size, "intermediate_size": 4 * options.hidden_size}
    heads = max(1, options.hidden_size // 64)
    config = GPTNeoXConfig(vocab_size=VOCABULARY, num_hidden_layers=options.layers, num_attention_heads=heads, **sizes)
    return GPTNeoXForCausalLM(config)


def _probe() -> Probe:
    tokens = torch.randint(VOCABULARY, (80, 256), generator=torch.Generator().manual_seed(0))
    return Probe.from_tokens(tokens)


def _growth(work: Callable[[], None]) -> int:
    """Return the increase of the process's peak memory in bytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def _seconds(work: Callable[[], None]) -> float:
    dist.barrier()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
