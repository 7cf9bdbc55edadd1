"""What becomes of an error in the tracking: raised, or logged while the training goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from repdyn.tracking.config import OnFailure
from repdyn.tracking.run_warnings import RunWarnings
from repdyn.utils.distributed import ALONE, Ranks
from repdyn.utils.random_state import isolated_rng


@dataclass
class ErrorHandling:
    """Handles the errors of one run as its user has requested.

    Args:
        on_error: "raise", or "warn" to log each kind once.
        warnings: those of the run.
        ranks: processes of the job, of which the first logs.
    """

    on_error: OnFailure
    warnings: RunWarnings
    ranks: Ranks = ALONE

    @contextmanager
    def __call__(self, step: int | None, what: str = "tracking", never_raise: bool = False) -> Iterator[None]:
        """Isolate the random numbers from what runs inside, and handle its errors.

        Args:
            step: optimizer steps taken; None at the end of the training.
            what: names what runs inside in the log.
            never_raise: log the error even under "raise".
        """
        try:
            with isolated_rng():
                yield
        except Exception as error:
            self.error(error, step, what, never_raise)

    def error(self, error: Exception, step: int | None, what: str = "tracking", never_raise: bool = False) -> None:
        """Raise or log an error; arguments as for a call."""
        if self.on_error == "raise" and not never_raise:
            raise error
        if self.ranks.is_rank_zero:
            self.warnings.failure(error, step, what)
