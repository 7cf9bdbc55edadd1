"""Warnings of a run in the log, each kind once."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path

from repdyn.store.schema import Row, too_few_distinct
from repdyn.tables.designs import BELOW_ONE, is_below_one
from repdyn.utils.extras import MissingPackageError
from repdyn.utils.redaction import redacted

log = logging.getLogger(__name__)


class RunWarnings:
    """Warnings that are logged once for each run."""

    def __init__(self) -> None:
        self._logged: set[str] = set()
        self._weights_since: tuple[str, int] | None = None
        """The weights of the last measurement, and the first step at which they were measured."""

    def failure(self, error: Exception, step: int | None, what: str = "tracking") -> None:
        """Warn of an error at a step, or at the end of the training where there is none; ``what`` has failed."""
        # by type and line: the text may name a file that is called otherwise each time
        trace = traceback.extract_tb(error.__traceback__)
        place = f"{trace[-1].filename}:{trace[-1].lineno}" if trace else str(error)
        if self._is_new(f"{type(error).__name__} {place}"):
            when = "at the end" if step is None else f"at step {step}"
            if isinstance(error, MissingPackageError):
                log.warning("%s %s is left out, training goes on: %s", what, when, error)
                return
            details = redacted("".join(traceback.format_exception(error)).rstrip())
            log.warning("%s %s failed, training goes on: %s\n%s", what, when, redacted(describe(error)), details)

    def of_measurement(self, rows: Sequence[Row], comparing: Collection[str]) -> None:
        """Warn of what a reader of the rows of a measurement should know; ``comparing`` as for :meth:`undefined`."""
        self.undefined(rows, comparing)
        self.own_windows(rows)
        self.below_one(rows)

    def undefined(self, rows: Sequence[Row], comparing: Collection[str]) -> None:
        """Warn of metrics without a value, unless that is to be expected.

        Args:
            rows: of one step.
            comparing: metrics that compare with an earlier checkpoint, which the first step lacks.
        """
        for row in rows:
            expected = row.reason is None or row.metric in comparing or _is_of_few_embeddings(row)
            if not expected and self._is_new(f"undefined {row.metric}"):
                values = (row.step, row.metric, row.layer, row.reason)
                log.warning("step %d: %s of layer %s is undefined, training goes on: %s", *values)

    def unchanged_weights(self, weights: str | None, step: int) -> None:
        """Warn of a model that optimizer steps have not changed.

        A single one may not: a warm-up begins with a learning rate of 0, and a gradient scaler skips steps.

        Args:
            weights: their fingerprint; None where it is not known.
            step: optimizer steps taken.
        """
        if weights is None or self._weights_since is None or self._weights_since[0] != weights:
            self._weights_since = None if weights is None else (weights, step)
            return
        since = self._weights_since[1]
        if step > since + 1 and self._is_new("unchanged weights"):
            log.warning(
                "step %d: the weights are those of step %d; is the model that the tracker was given the one that the "
                "optimizer trains, and does each call of step() follow a step of the optimizer?",
                step,
                since,
            )

    def below_one(self, rows: Sequence[Row]) -> None:
        """Warn of estimates of a dimension below 1."""
        row = next((row for row in rows if is_below_one(row.metric, row.value)), None)
        if row is not None and self._is_new("below one"):
            log.warning("step %d: %s of layer %s is %.2f: %s", row.step, row.metric, row.layer, row.value, BELOW_ONE)

    def own_windows(self, rows: Sequence[Row]) -> None:
        """Warn of a probe in which many points have their nearest neighbour in their own window, and it counts."""
        from repdyn.tables.designs import own_window_warning  # with pandas, which no import of a tracker waits for

        if (text := own_window_warning(rows)) and self._is_new("own windows"):
            log.warning("step %d: %s", rows[0].step, text)

    def gone_back(self, folder: Path | None, step: int) -> None:
        """Warn that later steps than the one where a training goes on were moved to a folder, if any were."""
        if folder is not None:
            log.warning("training goes on at step %d; what the store had of later steps is in %s", step, folder)

    def other_weights(self, step: int) -> None:
        """Warn that a step in the store is measured again."""
        if self._is_new("measured anew"):
            log.warning("step %d was measured on other weights before this run was resumed; done anew", step)

    def _is_new(self, key: str) -> bool:
        new = key not in self._logged
        self._logged.add(key)
        return new


def _is_of_few_embeddings(row: Row) -> bool:
    """Return whether a value is missing because a small vocabulary leaves few distinct vectors in layer 0."""
    return row.layer == 0 and row.reason == too_few_distinct(row.on_distinct, row.n_unique, row.n_vectors)


def describe(error: Exception) -> str:
    """Return the type and the text of an error.

    >>> describe(ValueError("no"))
    'ValueError: no'
    """
    return f"{type(error).__name__}: {error}"
