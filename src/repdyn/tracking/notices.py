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
    """Whether another process reports."""
    n_measured: int = 0
    """Steps that were measured, or were in the store."""
    failures: dict[int, str] = field(default_factory=dict)
    """Why the others were not, by step."""
    _logged: set[str] = field(default_factory=set)
    _weights_since: tuple[str | None, int] = (None, 0)
    """The weights of the last measurement, and the first step at which they were measured."""

    @contextmanager
    def errors(
        self, step: int | None, what: str = "tracking", never_raise: bool = False
    ) -> Iterator[None]:
        """Isolate the random numbers from what runs inside, and raise or log its errors; a step of
        None is the end.
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
        # by type and line: the text may name a file that is called otherwise each time
        trace = traceback.extract_tb(error.__traceback__)
        place = f"{trace[-1].filename}:{trace[-1].lineno}" if trace else str(error)
        when = "at the end" if step is None else f"at step {step}"
        if isinstance(error, MissingPackageError):
            place = f"{what} without {error.name}"
            text = f"{what} {when} is left out, training goes on: {error}"
        else:
            details = redacted("".join(traceback.format_exception(error)).rstrip())
            text = (
                f"{what} {when} failed, training goes on: "
                f"{redacted(f'{type(error).__name__}: {error}')}\n{details}"
            )
        self.once(f"{type(error).__name__} {place}", text)

    def once(self, key: str, text: str) -> None:
        """Log a warning unless one of this key has been logged."""
        if key not in self._logged and not self.is_silent:
            self._logged.add(key)
            warn(log, text)

    def report(self) -> None:
        """Print once, to be read beside the summary, how many steps are missing, and why the first
        of them is.
        """
        if self.failures and not self.is_silent:
            n_due = self.n_measured + len(self.failures)
            step, reason = min(self.failures.items())
            print_above_bars(
                f"repdyn: {self.n_measured} of {n_due} steps measured; step {step}: "
                f"{redacted(reason)}"
            )
        self.failures = {}

    def of_measurement(
        self,
        rows: Sequence[Row],
        weights: str | None,
        comparing: Collection[str],
        cause: Callable[[], str] = lambda: _NO_CHANGE,
    ) -> None:
        """Warn of what a reader of the rows of a step should know. The ``weights`` have this
        fingerprint, None where no change is expected, and ``cause`` returns why they may be those
        of an earlier step; metrics ``comparing`` with an earlier checkpoint have no value at the
        first step."""
        step = rows[0].step
        for row in rows:
            if row.reason is None or row.metric in comparing:
                continue
            # a small vocabulary leaves few distinct vectors in layer 0, not a single one
            is_harmless = row.reason_code == ReasonCode.FEW_DISTINCT and row.n_unique > 1
            if row.layer or not is_harmless:
                reason = shown_reason(row.reason, row.reason_code, row.n_unique, row.n_vectors)
                text = f"{row.metric} of layer {row.layer} is undefined, training goes on: {reason}"
                self.once(f"undefined {row.metric}", f"step {step}: {text}")
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


_NO_CHANGE = (
    "is the model that the tracker was given the one that the optimizer trains, does each call of "
    "step() follow a step of the optimizer, and does no gradient scaler skip its steps?"
)


def why_unchanged(model: nn.Module, learning_rate: Any, optimizers: Sequence[Any]) -> str:
    """Return why a training may have left the weights of a model as they were: what is the case, or
    else what to ask oneself.

    Args:
        model: what is measured.
        learning_rate: that of the step, as far as it is known.
        optimizers: those of the training, as far as they are known.
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
    groups = [group for each in optimizers for group in getattr(each, "param_groups", ())]
    trained = {id(weight) for group in groups for weight in group["params"]}
    if groups and not is_sharded(model) and trained.isdisjoint(map(id, trainable)):
        return (
            "the optimizer trains none of its parameters; give the tracker the model that it trains"
        )
    with suppress(TypeError, ValueError, RuntimeError):  # one that is no number is told elsewhere
        if float(learning_rate) == 0:
            return "the learning rate is 0"
    return _NO_CHANGE
