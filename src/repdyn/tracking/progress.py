"""What is printed while a measurement takes long."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from repdyn.tracking.signals import MeasurementInterruptedError
from repdyn.utils.distributed import ALONE, Ranks
from repdyn.utils.printing import print_above_bars

SILENT_SECONDS = 2.0  # until the first line on what a measurement is doing
PROGRESS_SECONDS = 30.0  # between two later lines
_STAGES = {
    "forward": "running the model on the probe",
    "masked forward": "running the model on masked tokens",
    "kernels": "computing metrics",
}


@dataclass
class LongMeasurement:
    """A reporter of the progress of a measurement that takes long, which a signal that has
    ``arrived`` breaks off: in a job of several ranks not within a forward pass, which the others
    would wait for."""

    step: int
    arrived: Collection[int] = ()
    ranks: Ranks = ALONE
    _next: float = field(default_factory=lambda: time.monotonic() + SILENT_SECONDS)

    def __call__(self, stage: str, share: float) -> None:
        """Print how far a stage is, if it is time for it; raise MeasurementInterruptedError where a
        signal has arrived.
        """
        if self.arrived and (self.ranks.size == 1 or stage == "kernels"):
            raise MeasurementInterruptedError(
                f"{signal.Signals(next(iter(self.arrived))).name} arrived"
            )
        now = time.monotonic()
        if now >= self._next and share < 1 and self.ranks.is_rank_zero:
            self._next = now + PROGRESS_SECONDS
            print_above_bars(
                f"repdyn: measuring step {self.step}: {_STAGES.get(stage, stage)}, {share:.0%} done"
            )
