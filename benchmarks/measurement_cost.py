"""Measure the cost of a measurement relative to a training step, and of its kernels relative to a
matrix product.

    python benchmarks/measurement_cost.py
    python benchmarks/measurement_cost.py --config configs/decoder_enwik8.yaml --repeats 9
    python benchmarks/measurement_cost.py --device cuda
    python benchmarks/measurement_cost.py --table 2x64 quickstart 12x768
    python benchmarks/measurement_cost.py --handed 100x80 1000x80 1000000x80 300x2048
    python benchmarks/measurement_cost.py --handed 10000x80 --size 12x768
    python benchmarks/measurement_cost.py --cloud 8192x14336 --layers 70

With --device cuda the largest memory of a measurement is printed too; --table says where the time
goes by size of the model, --handed what a measurement costs by the data set that a default probe is
taken from, --cloud gives time and memory of clouds alone.

Prints ratios taken within one process, each the median over interleaved repeats with its range;
absolute times are given for orientation only. On the CPU they are processor time, which other
processes disturb less. A training step is in bf16-mixed where the hardware computes in bfloat16,
else, or with --float32, in float32.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import yaml
from peers.rounds import extra_memory
from torch import Tensor
from torch.utils.data import Dataset
from torch.utils.tensorboard import SummaryWriter

from repdyn import Probe, Tracker, kernels, measure
from repdyn.cli.train import has_fast_bfloat16
from repdyn.data.datamodule import TextDataModule
from repdyn.metrics import DEFAULT_METRICS, resolve
from repdyn.models import LanguageModel, objective_of
from repdyn.tracking.writer import Writer
from repdyn.views.sinks.loggers import LoggerSink
from repdyn.views.sinks.report import ReportSink

measuring = import_module("repdyn.measurement.measure")  # "repdyn.measure" is the function
ROOT = Path(__file__).parents[1]
_PARTS = {
    "capture": (measuring, "capture"),
    "kernels": (measuring, "rows_of_layer"),
    "store": (Writer, "flush"),
    "loggers": (LoggerSink, "step_over"),
    "views": (ReportSink, "rows"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--config", type=Path, default=ROOT / "configs" / "quickstart.yaml", help="whose sizes"
    )
    parser.add_argument(
        "--repeats", type=int, default=7, help="interleaved repeats (default: %(default)s)"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--float32", action="store_true", help="training steps in float32, whatever the hardware"
    )
    parser.add_argument(
        "--table", nargs="+", metavar="SIZE", help="quickstart or LAYERSxWIDTH: a table of parts"
    )
    parser.add_argument(
        "--handed", nargs="+", metavar="ROWSxLENGTH", help="validation sets: a table of costs"
    )
    parser.add_argument(
        "--size", default="quickstart", help="LAYERSxWIDTH of --handed (default: %(default)s)"
    )
    parser.add_argument(
        "--cloud", metavar="ROWSxCOLUMNS", help="time one simulated layer, and multiply by --layers"
    )
    parser.add_argument("--layers", type=int, default=70, help="of --cloud (default: %(default)s)")
    options = parser.parse_args()
    config = yaml.safe_load(options.config.read_text())
    device = torch.device(options.device)
    if options.cloud:
        return _clouds(*map(int, options.cloud.split("x")), options.layers, device)
    if options.handed:
        job = job_of(sized(config, options.size), device, options.float32)
        return _handed(options.handed, job, options.repeats)
    if options.table:
        return _table(config, options.table, options.repeats, device, options.float32)
    print(f"{options.config.name}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    _measurement(config, options.repeats, device, options.float32)
    _kernels(config["model"]["hidden_size"], options.repeats, options.device)


class _Rows(Dataset):
    """Random rows of bytes, each made when it is read."""

    def __init__(self, n: int, length: int) -> None:
        self.n = n
        self.length = length
        self.n_read = 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Tensor:
        self.n_read += 1
        generator = torch.Generator().manual_seed(index)
        return torch.randint(256, (self.length,), generator=generator)


def _handed(sets: list[str], job: _Job, repeats: int) -> None:
    """Print what a measurement on the default probe of validation sets costs: tokens that the model
    is run on, seconds and training steps."""
    module, _, step, is_fast = job
    print(f"training steps in {'bf16-mixed' if is_fast else 'float32'}, torch {torch.__version__}")
    columns = ["rows", "tokens each", "rows read", "windows", "tokens held", "tokens run on"]
    columns += ["vectors", "probe, s", "measurement, s", "in training steps", "range"]
    _print_head(columns)
    for name in sets:
        n_rows, length = map(int, name.split("x"))
        rows = _Rows(n_rows, length)
        start = _now()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few rows, long rows
            probe = Probe.from_dataset(rows)
        probe_seconds = _now() - start
        step()
        with _counted_tokens() as counts:
            measure(module.model, probe)  # warms up, as the step before it
        work = {"step": step, "measurement": partial(measure, module.model, probe)}
        times = interleaved(work, repeats, warm_up=False)
        steps = statistics.median(times["step"])
        ratios = sorted(seconds / steps for seconds in times["measurement"])
        cells = [n_rows, length, rows.n_read, len(probe.lengths), len(probe.tokens), sum(counts)]
        cells.append(probe.n_batches * probe.batch_vectors)
        seconds = statistics.median(times["measurement"])
        told = [f"{probe_seconds:.2g}", f"{seconds:.2g}", f"{statistics.median(ratios):.1f}"]
        spread = f"{ratios[0]:.1f} to {ratios[-1]:.1f}"
        print(f"| {' | '.join([*(f'{n:,}' for n in cells), *told, spread])} |", flush=True)


def _print_head(columns: list[str]) -> None:
    rule = "|".join("---" for _ in columns)
    print("", f"| {' | '.join(columns)} |", f"|{rule}|", sep="\n")


@contextmanager
def _counted_tokens() -> Iterator[list[int]]:
    """Yield a list that receives the number of tokens of each forward pass over a probe."""
    counts: list[int] = []
    batches = Probe.batches

    def counted(probe: Probe, *arguments: Any, **named: Any) -> Iterator[Any]:
        for batch in batches(probe, *arguments, **named):
            counts.append(batch.input_ids.numel())
            yield batch

    with mock.patch.object(Probe, "batches", counted):
        yield counts


def sized(config: dict, size: str) -> dict:
    """Return a configuration with the model of LAYERSxWIDTH, or as it is."""
    if size == "quickstart":
        return config
    layers, width = map(int, size.split("x"))
    sized = {"n_layers": layers, "hidden_size": width, "n_heads": width // 64}
    return config | {"model": config["model"] | sized}


class _Job(NamedTuple):
    """Holds what is measured, and what it is compared with."""

    module: LanguageModel
    probe: Probe
    step: Callable[[], None]
    is_fast: bool
    """Whether a step is in bf16-mixed."""


def job_of(config: dict, device: torch.device, in_float32: bool) -> _Job:
    """Return the model, its probe and a training step."""
    data = TextDataModule(
        **config["data"] | {"text": "builtin"}, objective=objective_of(config["model"]["family"])
    )
    sizes = {
        "vocab_size": data.vocab_size,
        "context_length": data.sequence_length,
        "pad_token_id": data.pad_token_id,
    }
    module = LanguageModel(**config["model"], **sizes).to(device)
    optimizer = torch.optim.AdamW(module.parameters())
    batch = {
        name: tensor.to(device) for name, tensor in next(iter(data.train_dataloader())).items()
    }
    is_fast = has_fast_bfloat16(device.type) and not in_float32

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=is_fast):
            loss = module.model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return _Job(module, data.probe(), step, is_fast)


def _measurement(config: dict, repeats: int, device: torch.device, in_float32: bool) -> None:
    module, probe, step, is_fast = job_of(config, device, in_float32)
    times = interleaved(
        {"step": step, "measurement": lambda: measure(module.model, probe)}, repeats
    )
    profile = measure(module.model, probe)
    precision = "bf16-mixed" if is_fast else "float32"
    kernel_share = profile.kernel_seconds / (profile.kernel_seconds + profile.forward_seconds)
    _print(f"measurement / training step in {precision}", times["measurement"], times["step"])
    print(
        f"  {len(profile.rows)} values; kernels take {kernel_share:.0%} of a measurement, the "
        "forward pass the rest"
    )
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        measure(module.model, probe)
        extra = (torch.cuda.max_memory_allocated(device) - before) / 2**20
        print(
            f"  {extra:,.0f} MiB at most on the device beside model and optimizer "
            "(torch.cuda.max_memory_allocated)"
        )


def _table(
    config: dict, sizes: list[str], repeats: int, device: torch.device, in_float32: bool
) -> None:
    """Print the cost of a tracked measurement in training steps, part by part, and beside a plain
    script.
    """
    parts = ["forward", "hooks and shadow", "kernels", "store", "loggers", "views", "else"]
    columns = [
        "model",
        "parameters",
        "step, s",
        "measurement",
        *parts,
        "/ plain script",
        "memory, a forward pass's",
    ]
    _print_head(columns)
    for size in sizes:
        module, probe, step, _ = job_of(sized(config, size), device, in_float32)
        model, spent = module.model, dict.fromkeys(_PARTS, 0.0)
        run = {
            "forward": partial(_plain_script, model, probe, False),
            "plain": partial(_plain_script, model, probe),
        }
        with (
            TemporaryDirectory() as folder,
            SummaryWriter(folder) as writer,
            mock.patch.object(ReportSink, "draw_all"),
            Tracker(model, probe, store=f"{folder}/run", schedule=1, loggers=[writer]) as tracker,
        ):
            run["forward"]()  # warms up, as step 0 does the tracker
            with _clocked(spent):
                work = {"step": step, "tracked": tracker.step, **run}
                times = {
                    name: sum(of) for name, of in interleaved(work, repeats, warm_up=False).items()
                }
        memory = [
            extra_memory(function, device)
            for function in (run["forward"], partial(measure, model, probe))
        ]
        times |= spent | {"hooks and shadow": spent["capture"] - times["forward"]}
        times["else"] = times["tracked"] - sum(spent.values())
        shares = [f"{times[name] / times['step']:.2f}" for name in ("tracked", *parts)]
        ratios = [
            f"{times['tracked'] / times['plain']:.2f}",
            f"{memory[1]:.0f} / {memory[0]:.0f} MiB",
        ]
        count = f"{sum(function.numel() for function in model.parameters()) / 1e6:.3g} M"
        print(
            "| "
            + " | ".join([size, count, f"{times['step'] / repeats:.3g}", *shares, *ratios])
            + " |",
            flush=True,
        )


def _plain_script(model: Any, probe: Probe, with_numbers: bool = True) -> list[tuple[float, float]]:
    """Return anisotropy and TwoNN of the same vectors of each layer, as one would write it without
    repdyn.
    """
    sampled = probe.tokens_of(resolve(DEFAULT_METRICS, probe)[0].subset)
    needed = probe.tokens_needed(sampled, causal=True)
    layers = []
    tokens = []
    model.eval()
    with torch.no_grad():
        for batch in probe.batches(2048 // int(needed.max()), needed):
            states = model.base_model(
                input_ids=batch.input_ids.to(model.device),
                attention_mask=batch.attention_mask.to(model.device),
                output_hidden_states=with_numbers,
                use_cache=False,
            ).hidden_states
            chosen = np.isin(batch.tokens, sampled)
            tokens.append(batch.tokens[chosen])
            layers.append([x.flatten(0, 1)[batch.positions[chosen]] for x in states or ()])
        window = torch.from_numpy(probe.window_of(np.concatenate(tokens))).to(model.device)
        values = []
        for x in map(torch.cat, zip(*layers, strict=True)):
            squares = torch.linalg.svdvals(x - x.mean(0)).square()
            distances = torch.cdist(x, x).masked_fill_(window[:, None] == window, torch.inf)
            first, second = distances.topk(2, largest=False).values.T
            ratios = (second / first).log().sort().values[: int(0.9 * len(x))]
            heights = -torch.log1p(-torch.arange(1, len(ratios) + 1, device=x.device) / len(x))
            values.append(
                (float(squares[0] / squares.sum()), float(ratios @ heights / (ratios @ ratios)))
            )
    model.train()
    return values


@contextmanager
def _clocked(spent: dict[str, float]) -> Iterator[None]:
    """Add the time that calls of each part take to ``spent``."""

    def clocked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = _now()
            try:
                return function(*args, **kwargs)
            finally:
                spent[name] += _now() - start

        return run

    with ExitStack() as stack:
        for name, (owner, function) in _PARTS.items():
            stack.enter_context(
                mock.patch.object(owner, function, clocked(name, getattr(owner, function)))
            )
        yield


def _clouds(rows: int, columns: int, layers: int, device: torch.device) -> None:
    """Print time and memory of both kernels on one cloud of rank 512 with a decaying spectrum and
    noise, bfloat16.
    """
    generator = torch.Generator().manual_seed(0)
    scales = torch.arange(1.0, 513) ** -0.7
    x = (
        torch.randn(rows, 512, generator=generator)
        * scales
        @ torch.randn(512, columns, generator=generator)
    )
    x = (x + 0.1 * torch.randn(rows, columns, generator=generator)).bfloat16().to(device)
    for kernel in (kernels.two_nn, kernels.anisotropy):
        start = _now()
        memory = extra_memory(lambda kernel=kernel: kernel(x), device)
        seconds = _now() - start
        text = (
            f"{seconds:.3g} s, {layers} layers {seconds * layers:.3g} s, {memory:.0f} MiB beside "
            "the cloud's"
        )
        print(f"{kernel.__name__}, {rows} x {columns}: {text} {x.nbytes / 2**20:.0f}", flush=True)


def _now() -> float:
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def _kernels(dim: int, repeats: int, device: str) -> None:
    for size in (dim, 768):
        x = torch.randn(4096, 32, generator=torch.Generator().manual_seed(0)) @ torch.randn(
            32, size
        )
        x += 0.1 * torch.randn(4096, size)
        x = x.to(device)
        work = {
            "product": lambda x=x: x @ x.T,
            "two_nn": lambda x=x: kernels.two_nn(x),
            "anisotropy": lambda x=x: kernels.anisotropy(x),
        }
        times = interleaved(work, repeats)
        for name in ("two_nn", "anisotropy"):
            _print(f"{name} / X @ X.T at (4096, {size})", times[name], times["product"])


def interleaved(
    work: dict[str, Callable[[], object]], repeats: int, warm_up: bool = True
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in work}
    for repeat in range(repeats + warm_up):
        for name, run in work.items():
            start = _now()
            run()
            if repeat >= warm_up:
                times[name].append(_now() - start)
    return times


def _print(name: str, times: list[float], reference: list[float]) -> None:
    ratios = sorted(t / r for t, r in zip(times, reference, strict=True))
    middle = statistics.median(ratios)
    milliseconds = 1000 * statistics.median(times)
    print(f"{name}: {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), {milliseconds:.1f} ms")


if __name__ == "__main__":
    main()
