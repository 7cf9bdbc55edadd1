"""Schedules: which optimizer steps are measured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True)
class Schedule:
    """A set of optimizer steps, the union of what its fields name; step 0 is always in it.

    The end of training is measured too: no schedule knows it in advance, so the callback adds it.

    >>> schedule = Schedule(doubling_until=8, every=10)
    >>> [step for step in range(31) if step in schedule]
    [0, 1, 2, 4, 8, 10, 20, 30]
    """

    every: int | None = None
    """Every multiple of this number."""
    doubling_until: int | None = None
    """1, 2, 4, 8 ... up to this step. Early training changes geometry fastest."""
    early_every: int | None = None
    """Every multiple of this number up to ``early_until``, to follow the warm-up and what comes
    right after it.
    """
    early_until: int | None = None
    """The last step to which ``early_every`` applies."""
    steps: tuple[int, ...] = ()
    """These steps."""
    at_checkpoints: bool = False
    """Whenever the trainer saves a checkpoint."""

    def __post_init__(self) -> None:
        for name in ("every", "doubling_until", "early_every", "early_until"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(
                    f"expected {name} >= 1, got {value}; leave it out to measure no such steps"
                )
        if (self.early_every is None) != (self.early_until is None):
            raise ValueError(
                f"expected early_every and early_until together, got {self.early_every} and "
                f"{self.early_until}; give both, such as early_every=16, early_until=512"
            )
        if any(step < 0 for step in self.steps):
            raise ValueError(f"expected steps >= 0, got {min(self.steps)}")

    def __contains__(self, step: int) -> bool:
        return any(step in steps for steps in self._united(step))

    def _united(self, last: int) -> Iterator[Collection[int]]:
        """Yield the sets of steps that the schedule unites, each complete up to ``last``; some have
        later steps as well.
        """
        yield (0, *self.steps)
        if self.every is not None:
            yield range(0, last + 1, self.every)
        if self.early_every is not None:
            yield range(0, min(last, self.early_until or 0) + 1, self.early_every)
        # exact for any number: the logarithm of a power of two may be rounded
        if self.doubling_until is not None:
            yield [2**exponent for exponent in range(self.doubling_until.bit_length())]

    def count(self, last: int) -> int:
        """Return how many steps from 0 to ``last`` are scheduled.

        >>> Schedule(doubling_until=8, every=10).count(30)
        8
        """
        # a step that several fields name counts once
        scheduled = set().union(*self._united(last))
        return sum(step <= last for step in scheduled)

    @classmethod
    def parse(cls, spec: ScheduleLike) -> Schedule:
        """Return a schedule from its short form.

        Args:
            spec: a Schedule; an int n (every n steps); a list of steps; "pythia" (those of its
                published checkpoints, 0, 1, 2, 4 ... 512, then every 1000); or "checkpoints"
                (whenever the trainer saves one).

        Raises:
            ValueError: anything else.
        """
        if isinstance(spec, cls):
            return spec
        # of NumPy and torch too; True is an int to Python
        if isinstance(spec, Integral) and not isinstance(spec, bool):
            return cls(every=int(spec))
        if isinstance(spec, Iterable) and not isinstance(spec, str):  # a list, or an array of NumPy
            steps = tuple(spec)
            if all(isinstance(step, Integral) for step in steps):
                return cls(steps=tuple(map(int, steps)))
        elif spec == "pythia":
            return cls(doubling_until=512, every=1000)
        elif spec == "checkpoints":
            return cls(at_checkpoints=True)
        raise ValueError(
            'expected a schedule: a Schedule, a number of steps, a list of steps, "pythia" or '
            '"checkpoints", '
            f"got {spec!r}"
        )


ScheduleLike: TypeAlias = Schedule | int | list[int] | Literal["pythia", "checkpoints"]


class ScheduleState:
    """The progress of a training along a schedule, in which each step is due once.

    >>> state = ScheduleState(Schedule(every=10))
    >>> (state.is_due(0, "start"), state.is_due(9), state.is_due(10), state.is_due(10),
    ...     state.is_due(11, "end"))
    (True, False, True, False, True)
    """

    def __init__(self, schedule: ScheduleLike) -> None:
        self.schedule = Schedule.parse(schedule)
        self.has_time: Callable[[int], bool] = lambda step: True
        """Returns whether a budget has time to measure a scheduled step."""
        self._acted_at: int | None = None
        """The last step that was due: no other moment of this step is due again."""
        self._left_out: int | None = None
        """The last step that had no time: the budget is not asked again at the same step."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the schedule alone, for another training."""
        # has_time is a method of the training that is tracked
        return ScheduleState, (self.schedule,)

    def is_due(self, step: int, at: Literal["start", "step", "checkpoint", "end"] = "step") -> bool:
        """Return whether to act at a step, which then is not due again; gradient accumulation
        reaches it several times.

        A "start" is due if it is scheduled, a "step" if there is time for it, too; a "checkpoint"
        if the schedule follows checkpoints and there is time; an "end" whatever the schedule, also
        one that was left out as a step.
        """
        is_scheduled = at == "end" or (
            self.schedule.at_checkpoints if at == "checkpoint" else step in self.schedule
        )
        if not is_scheduled or step == self._acted_at:
            return False
        # the first and the last step are measured whatever they cost
        if at in {"step", "checkpoint"} and (step == self._left_out or not self.has_time(step)):
            self._left_out = step
            return False
        self._acted_at = step
        return True
