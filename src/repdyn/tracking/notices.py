"""What a tracked training says: errors and warnings, each kind once, none of which ends it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from torch import nn

from repdyn.capture.wrappers import is_sharded
from repdyn.store.schema import ReasonCode, Row, shown_reason
from repdyn.utils.caller_state import isolated_rng
from repdyn.utils.extras import MissingPackageError
from repdyn.utils.printing import print_above_bars, warn
from repdyn.utils.redaction import redacted

log = logging.getLogger(__name__)
OnFailure: TypeAlias = Literal["warn", "raise"]


@dataclass
class Notices:
    """Reports what happens in one run: errors, warnings and what was not measured."""

    on_error: OnFailure
    """"raise" raises errors, "warn" logs each kind once."""
    is_silent: bool = False
    """True where another process reports for this one."""
    n_measured: int = 0
    """The number of steps that were measured, or were in the store already."""
    failures: dict[int, str] = field(default_factory=dict)
    """The reasons why other steps were not measured, by step."""
    _logged: set[str] = field(default_factory=set)
    _is_reported: bool = False
    _weights_since: tuple[str | None, int] = (None, 0)
    """The weights of the last measurement, and the first step at which they were measured."""

    @contextmanager
    def errors(
        self, step: int | None, what: str = "tracking", never_raise: bool = False
    ) -> Iterator[None]:
        """Run a block without effect on the training's random numbers, and raise or log its errors.

        Args:
            step: the step that the block is about; None for the end of the training.
            what: what the block does, as the message calls it.
            never_raise: log errors also under ``on_error="raise"``.
        """
        try:
            with isolated_rng():
                yield
        except Exception as error:
            self.error(error, step, what, never_raise)

    def error(
        self, error: Exception, step: int | None, what: str = "tracking", never_raise: bool = False
    ) -> None:
        """Raise or log an error; arguments as for :meth:`errors`."""
        if self.on_error == "raise" and not never_raise:
            raise error
        when = "at the end" if step is None else f"at step {step}"
        # its text says what to install: a trace would add nothing
        if isinstance(error, MissingPackageError):
            source = f"{what} without {error.name}"
            text = f"{what} {when} is left out, training goes on: {error}"
        else:
            source = _line_of(error)
            details = redacted("".join(traceback.format_exception(error)).rstrip())
            text = (
                f"{what} {when} failed, training goes on: "
                f"{redacted(f'{type(error).__name__}: {error}')}\n{details}"
            )
        self.once(f"{type(error).__name__} {source}", text)

    def once(self, key: str, text: str) -> None:
        """Log a warning unless one of this key has been logged."""
        if key not in self._logged and not self.is_silent:
            self._logged.add(key)
            warn(log, text)

    def report(self) -> None:
        """Print how many steps are missing, and why the first of them is, beside the summary; that
        there are none after a training that ended in its first measurement.
        """
        if self.is_silent:
            return
        if not self.failures and not self.n_measured and not self._is_reported:
            print_above_bars(
                "repdyn: the training ended before its first measurement was finished, and has "
                "stored no rows"
            )
        self._is_reported = True
        if self.failures:
            n_due = self.n_measured + len(self.failures)
            step, reason = min(self.failures.items())
            print_above_bars(
                f"repdyn: {self.n_measured} of {n_due} steps measured; step {step}: "
                f"{redacted(reason)}"
            )
        # a second report has nothing to add
        self.failures = {}

    def of_measurement(
        self,
        rows: Sequence[Row],
        weights: str | None,
        comparing: Collection[str],
        cause: Callable[[], str] = lambda: _NO_CHANGE,
    ) -> None:
        """Warn of undefined metrics in the rows of a step, and of weights that do not change.

        Args:
            rows: all rows of the step.
            weights: fingerprint of the weights; None where no change is expected.
            comparing: names of the metrics that compare with an earlier step, and so have no value
                at the first.
            cause: returns why the weights may be those of an earlier step.
        """
        step = rows[0].step
        for row in rows:
            if row.reason is None or row.metric in comparing:
                continue
            # a small vocabulary leaves few distinct vectors in layer 0, the embeddings; a single
            # one there, or few in a later layer, is a fault
            is_harmless = row.reason_code == ReasonCode.FEW_DISTINCT and row.n_unique > 1
            if row.layer or not is_harmless:
                reason = shown_reason(row.reason, row.reason_code, row.n_unique, row.n_vectors)
                text = f"{row.metric} of layer {row.layer} is undefined, training goes on: {reason}"
                self.once(f"undefined {row.metric}", f"step {step}: {text}")
        # two measured steps with the same weights: the tracker may watch another model than the
        # optimizer trains
        before, since = self._weights_since
        if weights is None or weights != before:
            self._weights_since = weights, step
        elif step > since + 1:
            # a single step may not change them: a warm-up begins at a learning rate of 0, a
            # gradient scaler skips steps
            reason = cause()
            self.once(
                f"unchanged weights: {reason}",
                f"step {step}: the weights are those of step {since}: {reason}",
            )


def _line_of(error: Exception) -> str:
    """Return the file and line that raised an error, by which errors of one kind are told.

    Their texts differ where they name a temporary file, say, although the cause is the same.
    """
    trace = traceback.extract_tb(error.__traceback__)
    return f"{trace[-1].filename}:{trace[-1].lineno}" if trace else str(error)


_NO_CHANGE = (
    "is the model that the tracker was given the one that the optimizer trains, does each call of "
    "step() follow a step of the optimizer, and does no gradient scaler skip its steps?"
)


def why_unchanged(model: nn.Module, learning_rate: Any, optimizers: Sequence[Any]) -> str:
    """Return why a training may have left the weights of a model as they were: a cause that is
    certain, or else questions to the user.

    Args:
        model: the model that is measured.
        learning_rate: the learning rate of the step, if it is known.
        optimizers: the optimizers of the training, as far as they are known.
    """
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    if not trainable:
        return (
            "all its parameters are frozen (requires_grad=False); to measure what is trained, give "
            "the tracker the model that has it"
        )
    if any(getattr(optimizer, "step_was_skipped", False) for optimizer in optimizers) or any(
        not bool(weight.grad.isfinite().all()) for weight in trainable if weight.grad is not None
    ):
        return (
            "its gradients are inf or NaN, so that a gradient scaler skips the steps of the "
            "optimizer"
        )
    groups = [group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ())]
    trained = {id(weight) for group in groups for weight in group["params"]}
    # an optimizer of a sharded model may have its flat parameters, which are other tensors
    if groups and not is_sharded(model) and trained.isdisjoint(map(id, trainable)):
        return (
            "the optimizer trains none of its parameters; give the tracker the model that it trains"
        )
    # scalar_rows reports a learning rate that is no number
    with suppress(TypeError, ValueError, RuntimeError):
        if float(learning_rate) == 0:
            return "the learning rate is 0"
    return _NO_CHANGE
