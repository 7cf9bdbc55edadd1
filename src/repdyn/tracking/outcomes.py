"""How many of the steps that were due have been measured."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from repdyn.utils.redaction import redacted

log = logging.getLogger(__name__)


@dataclass
class Outcomes:
    """Counts of a run's measurements, reported at its end where some are missing."""

    n_measured: int = 0
    """Steps that were measured, or were in the store."""
    failures: dict[int, str] = field(default_factory=dict)
    """Reasons of those that were not, by step."""

    def failed(self, step: int, reason: str) -> None:
        """Note why a step is missing."""
        self.failures[step] = redacted(reason)

    def report(self) -> None:
        """Log once how many steps are missing, and why the first of them is."""
        if not self.failures:
            return
        n_due = self.n_measured + len(self.failures)
        step, reason = min(self.failures.items())
        log.warning("%d of %d steps measured; step %d: %s", self.n_measured, n_due, step, reason)
        self.failures = {}
