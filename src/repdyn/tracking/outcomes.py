"""How many of the steps that were due have been measured."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from repdyn.tracking.interruptions import Interrupted
from repdyn.utils.notices import print_above_bars
from repdyn.utils.redaction import redacted

log = logging.getLogger(__name__)


@dataclass
class Outcomes:
    """Counts of a run's measurements, reported at its end where some are missing."""

    n_measured: int = 0
    """Steps that were measured, or were in the store."""
    failures: dict[int, str] = field(default_factory=dict)
    """Reasons of those that were not, by step."""

    trial_error: Exception | None = None
    """Why the trial before the training could not be made; the first measurement is then not tried either."""

    def raise_trial_error(self) -> None:
        """Raise the error of the trial, once."""
        error, self.trial_error = self.trial_error, None
        if error is not None:
            raise error

    def failed(self, step: int, reason: str) -> None:
        """Note why a step is missing."""
        self.failures[step] = redacted(reason)

    def abandoned(self, step: int, interrupted: Interrupted) -> None:
        """Note and log that the measurement of a step was broken off."""
        self.failed(step, str(interrupted))
        log.warning("step %d is not measured: %s", step, interrupted)

    def report(self) -> None:
        """Print once how many steps are missing, and why the first of them is.

        The log has each failure when it happens, once; this is read beside the summary, where there may be none.
        """
        if not self.failures:
            return
        n_due = self.n_measured + len(self.failures)
        step, reason = min(self.failures.items())
        print_above_bars(f"repdyn: {self.n_measured} of {n_due} steps measured; step {step}: {reason}")
        self.failures = {}
