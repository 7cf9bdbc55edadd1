"""Which optimizer steps are measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class Schedule:
    """A set of optimizer steps, the union of what its fields name; step 0 is always in it.

    The end of training is measured too: no schedule can know it beforehand, so the callback adds it.

    >>> schedule = Schedule(doubling_until=8, every=10)
    >>> [step for step in range(31) if step in schedule]
    [0, 1, 2, 4, 8, 10, 20, 30]
    """

    every: int | None = None
    """Every multiple of this number."""
    doubling_until: int | None = None
    """1, 2, 4, 8 ... up to this step. Early training changes geometry fastest."""
    early_every: int | None = None
    """Every multiple of this number up to ``early_until``, to follow the warm-up and what comes right after it."""
    early_until: int | None = None
    """The last step that ``early_every`` counts for."""
    steps: tuple[int, ...] = ()
    """These steps."""
    at_checkpoints: bool = False
    """Whenever the trainer saves a checkpoint."""

    def __post_init__(self) -> None:
        for name in ("every", "doubling_until", "early_every", "early_until"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"expected {name} >= 1, got {value}; leave it out to measure no such steps")
        if (self.early_every is None) != (self.early_until is None):
            raise ValueError(
                f"expected early_every and early_until together, got {self.early_every} and {self.early_until}; give "
                "both, such as early_every=16, early_until=512"
            )
        if any(step < 0 for step in self.steps):
            raise ValueError(f"expected steps >= 0, got {min(self.steps)}")

    def __contains__(self, step: int) -> bool:
        if step == 0 or step in self.steps:
            return True
        if self.every is not None and step % self.every == 0:
            return True
        if self.early_every is not None and step <= (self.early_until or 0) and step % self.early_every == 0:
            return True
        is_power_of_two = step & (step - 1) == 0
        return self.doubling_until is not None and step <= self.doubling_until and is_power_of_two

    def between(self, last: int, now: int) -> bool:
        """Whether a step after ``last``, up to and including ``now``, is scheduled.

        Several optimizers that step in one batch make the count jump over steps.
        """
        return any(step in self for step in range(last + 1, now + 1))

    @classmethod
    def pythia(cls) -> Schedule:
        """The steps of the published Pythia checkpoints: 0, 1, 2, 4 ... 512, then every 1000."""
        return cls(doubling_until=512, every=1000)

    @classmethod
    def parse(cls, spec: ScheduleLike) -> Schedule:
        """A schedule from its short form.

        Args:
            spec: a Schedule; an int n (every n steps); a list of steps; "pythia"; or "checkpoints" (whenever the
                trainer saves one).

        Raises:
            ValueError: anything else.
        """
        if isinstance(spec, cls):
            return spec
        if isinstance(spec, int) and not isinstance(spec, bool):
            return cls(every=spec)
        if spec == "pythia":
            return cls.pythia()
        if spec == "checkpoints":
            return cls(at_checkpoints=True)
        if isinstance(spec, Iterable) and not isinstance(spec, str):
            steps = tuple(spec)
            if all(isinstance(step, int) for step in steps):
                return cls(steps=steps)
        raise ValueError(
            f'expected a schedule: a Schedule, a number of steps, a list of steps, "pythia" or "checkpoints", '
            f"got {spec!r}"
        )


ScheduleLike: TypeAlias = Schedule | int | list[int] | Literal["pythia", "checkpoints"]


class ScheduleState:
    """Which steps of a training are due by a schedule, each of them once.

    >>> agenda = ScheduleState(Schedule(every=10))
    >>> agenda.starts(0), agenda.reaches(9), agenda.reaches(11), agenda.reaches(11), agenda.ends(11)
    (True, False, True, False, False)
    """

    def __init__(self, schedule: ScheduleLike) -> None:
        self.schedule = Schedule.parse(schedule)
        self._seen = 0
        self._done: int | None = None

    def starts(self, step: int) -> bool:
        """Whether the step a training begins with is due; one that goes on may have been stopped in the midst of it."""
        self._seen = step
        return step in self.schedule and self.ends(step)

    def reaches(self, step: int) -> bool:
        """Whether a step after the last one asked about, up to this one, is due. Under gradient accumulation the same
        step is reached several times."""
        due = self.schedule.between(self._seen, step)
        self._seen = step
        return due and self.ends(step)

    def saves(self, step: int) -> bool:
        """Whether a step is due because a checkpoint is saved."""
        return self.schedule.at_checkpoints and self.ends(step)

    def ends(self, step: int) -> bool:
        """Whether nothing was due at this step yet: the last one is, whatever the schedule."""
        new = step != self._done
        self._done = step
        return new
