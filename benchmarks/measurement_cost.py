"""Measure the cost of a measurement relative to a training step, and of its kernels relative to a matrix product.

    python benchmarks/measurement_cost.py
    python benchmarks/measurement_cost.py --config configs/decoder_enwik8.yaml --repeats 9
    python benchmarks/measurement_cost.py --device cuda        and the largest memory of a measurement there

Prints ratios taken within one process, each the median over interleaved repeats with its range; absolute times are
given for orientation only. On the CPU they are processor time, which other processes disturb less. A training step is
in bf16-mixed where the hardware computes in bfloat16, else, or with --float32, in float32.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import yaml

from repdyn import kernels, measure
from repdyn.data.datamodule import TextDataModule
from repdyn.data.train import has_fast_bfloat16
from repdyn.models import LanguageModel, objective_of

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "quickstart.yaml", help="whose sizes")
    parser.add_argument("--repeats", type=int, default=7, help="interleaved repeats (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: %(default)s)")
    parser.add_argument("--float32", action="store_true", help="training steps in float32, whatever the hardware")
    options = parser.parse_args()
    config = yaml.safe_load(options.config.read_text())
    print(f"{options.config.name}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    _measurement(config, options.repeats, torch.device(options.device), options.float32)
    _kernels(config["model"]["hidden_size"], options.repeats, options.device)


def _measurement(config: dict, repeats: int, device: torch.device, in_float32: bool) -> None:
    data = TextDataModule(**config["data"] | {"text": "builtin"}, objective=objective_of(config["model"]["family"]))
    sizes = {"vocab_size": data.vocab_size, "context_length": data.sequence_length, "pad_token_id": data.pad_token_id}
    module = LanguageModel(**config["model"], **sizes).to(device)
    optimizer = torch.optim.AdamW(module.parameters())
    batch = {name: tensor.to(device) for name, tensor in next(iter(data.train_dataloader())).items()}
    probe = data.probe()

    is_fast = has_fast_bfloat16(device.type) and not in_float32

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=is_fast):
            loss = module.model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    times = _interleaved({"step": step, "measurement": lambda: measure(module.model, probe)}, repeats)
    profile = measure(module.model, probe)
    precision = "bf16-mixed" if is_fast else "float32"
    kernel_share = profile.kernel_seconds / (profile.kernel_seconds + profile.forward_seconds)
    _print(f"measurement / training step in {precision}", times["measurement"], times["step"])
    print(f"  {len(profile.rows)} values; kernels take {kernel_share:.0%} of a measurement, the forward pass the rest")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        measure(module.model, probe)
        extra = (torch.cuda.max_memory_allocated(device) - before) / 2**20
        print(f"  {extra:,.0f} MiB at most on the device beside model and optimizer (torch.cuda.max_memory_allocated)")


def _kernels(dim: int, repeats: int, device: str) -> None:
    for size in (dim, 768):
        x = torch.randn(4096, 32, generator=torch.Generator().manual_seed(0)) @ torch.randn(32, size)
        x += 0.1 * torch.randn(4096, size)
        x = x.to(device)
        work = {
            "product": lambda x=x: x @ x.T,
            "two_nn": lambda x=x: kernels.two_nn(x),
            "anisotropy": lambda x=x: kernels.anisotropy(x),
        }
        times = _interleaved(work, repeats)
        for name in ("two_nn", "anisotropy"):
            _print(f"{name} / X @ X.T at (4096, {size})", times[name], times["product"])


def _interleaved(work: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in work}
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    for repeat in range(repeats + 1):
        for name, run in work.items():
            start = clock()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if repeat > 0:  # the first round warms up
                times[name].append(clock() - start)
    return times


def _print(name: str, times: list[float], reference: list[float]) -> None:
    ratios = sorted(t / r for t, r in zip(times, reference, strict=True))
    middle = statistics.median(ratios)
    milliseconds = 1000 * statistics.median(times)
    print(f"{name}: {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), {milliseconds:.1f} ms")


if __name__ == "__main__":
    main()
