"""Time and memory of the contenders and the bare product, in interleaved rounds of one process."""

from __future__ import annotations

import ctypes
import gc
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from peers.contenders import Contender, Quantity, Reference, errors_of

PRODUCT = "bare product"
_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Timing:
    """The times of one contender over the rounds."""

    seconds: float
    """Median seconds."""
    ratio: float
    """Median ratio of its time to that of the product in the same round."""
    ratio_low: float
    ratio_high: float


@dataclass(frozen=True)
class Row:
    """The result of one contender on one cloud; values that were not measured are None, with the
    reason in ``note``.
    """

    quantity: str
    cloud: str
    rows: int
    columns: int
    device: str
    threads: int
    contender: str
    timing: Timing | None = None
    error: float | None = None
    """Relative error of the quantity."""
    error_distances: float | None = None
    """Largest relative error of r1 and r2."""
    extra_mib: float | None = None
    """Increase of the peak memory during the call."""
    note: str = ""


@dataclass(frozen=True)
class Case:
    """A cloud with its reference values."""

    quantity: Quantity
    cloud: str
    x: Tensor
    reference: Reference
    threads: int

    def row(self, contender: str) -> Row:
        rows, columns = self.x.shape
        return Row(
            quantity=self.quantity.name,
            cloud=self.cloud,
            rows=rows,
            columns=columns,
            device=self.x.device.type,
            threads=self.threads,
            contender=contender,
        )


def compare(
    case: Case,
    contenders: Sequence[Contender],
    repeats: int,
    limit: float,
    progress: Callable[[str], None],
) -> list[Row]:
    """Return one row for the product and one for each contender, in their order.

    Args:
        case: what to compute.
        contenders: by whom.
        repeats: rounds.
        limit: seconds that the first call may take; a contender that takes longer has no further.
        progress: called with a few words before each step.
    """
    # imported now, because the number of threads can only be set of what is there
    absences = {contender.name: contender.absence() for contender in contenders}
    gc.collect()
    with _threads(case.threads):
        runs: dict[str, Callable[[], Any]] = {PRODUCT: partial(case.quantity.product, case.x)}
        _timed(runs[PRODUCT], case.x.device)
        rows = {
            PRODUCT: replace(
                case.row(PRODUCT), extra_mib=extra_memory(runs[PRODUCT], case.x.device)
            )
        }
        for contender in contenders:
            progress(contender.name)
            if absence := absences[contender.name]:
                rows[contender.name] = replace(case.row(contender.name), note=absence)
                continue
            rows[contender.name], run = _first_calls(case, contender, limit)
            if run is not None:
                runs[contender.name] = run
        times: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(repeats):
            progress(f"round {number + 1} of {repeats}")
            for name, run in runs.items():
                times[name].append(_timed(run, case.x.device)[0])
    timings = {name: _timing(own, times[PRODUCT]) for name, own in times.items()}
    return [replace(row, timing=timings.get(name)) for name, row in rows.items()]


def _first_calls(
    case: Case, contender: Contender, limit: float
) -> tuple[Row, Callable[[], Any] | None]:
    """Return errors from a first call and memory from a second; None instead of a call that cannot
    be timed.
    """
    row, device = case.row(contender.name), case.x.device
    if device.type != "cpu" and not contender.on_gpu:
        return replace(row, note="computes on the CPU alone"), None
    if row.rows**2 * row.columns > contender.largest:
        return replace(row, note="not run, would take hours"), None
    module = contender.load()
    run = partial(contender.call, module, case.x)
    try:
        seconds, result = _timed(run, device)
        distances = None if contender.distances is None else contender.distances(module, case.x)
    except (
        Exception
    ) as error:  # one that gives up on a cloud is a finding, and hours of others depend on it
        warnings.warn(f"{contender.name} failed on {case.cloud}: {error!r}", stacklevel=2)
        return replace(row, note=f"failed ({type(error).__name__})"), None
    errors = errors_of(result, case.reference, contender, distances)
    row = replace(row, error=errors.value, error_distances=errors.distances)
    if seconds > limit:
        return replace(row, note=f"> {limit:g} s"), None
    del result, distances
    return replace(row, extra_mib=extra_memory(run, device)), run


def _timing(times: Sequence[float], of_product: Sequence[float]) -> Timing:
    ratios = [own / product for own, product in zip(times, of_product, strict=True)]
    return Timing(
        seconds=statistics.median(times),
        ratio=statistics.median(ratios),
        ratio_low=min(ratios),
        ratio_high=max(ratios),
    )


def _timed(run: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    _wait(device)
    start = time.perf_counter()
    result = run()
    _wait(device)
    return time.perf_counter() - start, result


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Limit torch, and the BLAS and OpenMP of every imported package, to a number of threads."""
    before = torch.get_num_threads()
    try:
        with threadpool_limits(number):
            torch.set_num_threads(number)
            yield
    finally:
        torch.set_num_threads(before)


def extra_memory(run: Callable[[], Any], device: torch.device) -> float:
    """Return the increase of the peak memory during a call, in MiB; NaN where the system does not
    tell.
    """
    if device.type == "cuda":
        _wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        _wait(device)
        return (torch.cuda.max_memory_allocated(device) - before) / _MEBIBYTE
    _give_back_freed()
    return _by_watermark(run) / _MEBIBYTE if _has_watermark() else math.nan


def memory_method(device: torch.device) -> str:
    """Return how ``extra_memory`` measures here."""
    if device.type == "cuda":
        return "torch.cuda.max_memory_allocated"
    return "peak resident set (VmHWM)" if _has_watermark() else "not measurable on this system"


def _give_back_freed() -> None:
    # what an earlier call freed and the allocator keeps would hide what this one takes
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _has_watermark() -> bool:
    """Return whether the operating system lets a process reset its own peak."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return "VmHWM" in _STATUS.read_text()


def _by_watermark(run: Callable[[], Any]) -> float:
    _CLEAR.write_text("5")
    before = _resident_peak()
    run()
    return _resident_peak() - before


def _resident_peak() -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])
