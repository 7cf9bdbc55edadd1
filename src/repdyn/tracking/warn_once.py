"""What goes wrong beside a training, each thing said once in the log."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Collection, Sequence

from repdyn.store.schema import Row
from repdyn.tables.designs import own_window_warning
from repdyn.utils.redaction import redacted

log = logging.getLogger(__name__)


class WarnOnce:
    """Remembers what has been said."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def of_failure(self, error: Exception, step: int | None) -> None:
        """Something failed at a step; at the end of the training where there is none."""
        # by kind and place: the text may name a file that is called otherwise each time
        trace = traceback.extract_tb(error.__traceback__)
        place = f"{trace[-1].filename}:{trace[-1].lineno}" if trace else str(error)
        if self.is_new(f"{type(error).__name__} {place}"):
            told = redacted("".join(traceback.format_exception(error)).rstrip())
            when = "at the end" if step is None else f"at step {step}"
            log.warning("tracking %s failed, training goes on: %s\n%s", when, redacted(in_words(error)), told)

    def of_undefined(self, rows: Sequence[Row], comparing: Collection[str]) -> None:
        """The log says once of each metric what its rows say each time.

        Args:
            rows: of one step.
            comparing: metrics that compare with an earlier checkpoint: at the first step there is none, and what could
                not be kept has been said.
        """
        for row in rows:
            expected = row.reason is None or row.metric in comparing
            if not expected and self.is_new(f"undefined {row.metric}"):
                told = (row.step, row.metric, row.layer, row.reason)
                log.warning("step %d: %s of layer %s is undefined, training goes on: %s", *told)

    def of_own_windows(self, rows: Sequence[Row]) -> None:
        """Warn once where many points of a probe have their nearest neighbour in their own window, and it counts."""
        if (told := own_window_warning(rows)) and self.is_new("own windows"):
            log.warning("step %d: %s", rows[0].step, told)

    def is_new(self, complaint: str) -> bool:
        """Whether this has not been said before."""
        new = complaint not in self._said
        self._said.add(complaint)
        return new


def in_words(error: Exception) -> str:
    """
    >>> in_words(ValueError("no"))
    'ValueError: no'
    """
    return f"{type(error).__name__}: {error}"
