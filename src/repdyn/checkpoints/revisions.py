"""The checkpoints that a sweep measures: their names in rows, the steps in these names, and the choice of some."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from repdyn.checkpoints.errors import CheckpointError
from repdyn.checkpoints.hub import Files, Hub, choose_files
from repdyn.store import MeasurementKey
from repdyn.store.schema import Checkpoint

if TYPE_CHECKING:
    from torch import nn

_ZEROS = {"": 0, "k": 3, "m": 6, "b": 9, "t": 12}
_GROUPS = ("step", "tokens", "stage")
# A number, with or without a unit, that no letter or digit follows: "240k", not the 1 of "v1.0".
_END = r"(?![A-Za-z0-9]|\.\d)"
_NUMBER = rf"[0-9]+(?:\.[0-9]+(?=[kmbtKMBT]))?[kmbtKMBT]?{_END}"
_LARGEST = (1 << 63) - 1
_LONGEST_NAME = 500

DEFAULT_PATTERN = (
    rf"(?:(?=.*tokens?[-_=]?(?P<tokens>{_NUMBER})))?"
    r"(?:(?P<stage>stage\d.*?)[-_](?=step))?"
    rf"(?:.*(?:step|checkpoint|ckpt|iter|iteration)s?[-_=]?|(?={_NUMBER}$))(?P<step>{_NUMBER}).*"
)
"""Default pattern: a number after "step", "checkpoint", "ckpt" or "iter", or nothing but a number; tokens and stage if
present. Any other number may be the size or version of the model."""

_FORMS = '"all", "log", "every:10", or names or steps separated by commas such as "step0,step1000,143000"'


@dataclass(frozen=True)
class Target:
    """One checkpoint to measure."""

    run: str
    step: int
    revision: str
    """Branch, tag or folder, the step of a commit ("step512"), or another name for rows and messages."""
    tokens_seen: int | None = None
    stage: str | None = None
    path: Path | None = None
    """Local folder or file; None for a checkpoint on the hub, described by the following fields."""
    repository: str = ""
    commit: str = ""
    """Full commit hash, or "" if the repository or revision does not exist; for a local path, a digest of its files."""
    subfolder: str = ""
    missing_reason: str | None = None
    """Why the checkpoint does not exist."""
    weights_kind: str | None = None
    """"raw" or "averaged", of a local file that holds both; the quantisation of a GGUF file."""
    load: Callable[[], nn.Module] | None = None
    """Loads the model, where the user gives a function in place of files."""

    @property
    def origin(self) -> str:
        """repository@commit with the subfolder, or the path; the repository alone if the checkpoint is missing."""
        if self.load is not None:
            return ""
        if self.path is not None:
            return str(self.path)
        commit = f"@{self.commit}" if self.commit else ""
        return f"{self.repository}{commit}{f'/{self.subfolder}' if self.subfolder else ''}"

    def __str__(self) -> str:
        return f"{self.run} {self.revision}"

    def remote_files(self, hub: Hub, *, with_code: bool = False) -> Files:
        """List the files to download; none for a local path."""
        if self.path is not None:
            return {}
        if self.missing_reason:
            raise CheckpointError(self.missing_reason)
        return choose_files(hub.files(self.repository, self.commit), self.subfolder, with_code=with_code)

    @property
    def location(self) -> str:
        """The location that all checkpoints of a run share; see :func:`location_of`."""
        return location_of(self.origin)

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint as rows record it."""
        return Checkpoint(
            self.run,
            step=self.step,
            tokens_seen=self.tokens_seen,
            stage=self.stage,
            revision=self.revision,
            checkpoint=self.origin or None,
            weights_kind=self.weights_kind,
        )

    def key(self, probe_hash: str, metrics: str) -> MeasurementKey:
        """Return the store key of its measurement."""
        return MeasurementKey(self.run, self.step, probe_hash, metrics, self.commit)


def location_of(origin: str) -> str:
    """Return the owner on the hub, or the parent folder, of an origin.

    >>> [location_of(origin) for origin in ("google/multiberts-seed_0@0123abc", "gpt2@0123abc", "/runs/a/step8")]
    ['google', 'gpt2', '/runs/a']
    """
    if origin.startswith("/"):
        return origin.rpartition("/")[0]
    return origin.partition("@")[0].partition("/")[0]


def whole_number(text: str, what: str) -> int:
    """Parse a whole number that may have a unit: k, M, B or T.

    >>> whole_number("240k", "step"), whole_number("1.5T", "tokens"), whole_number("007", "step")
    (240000, 1500000000000, 7)
    """
    parts = re.fullmatch(r"(\d{1,40}(?:\.\d{1,40})?)([kmbt]?)", text, re.ASCII | re.IGNORECASE)
    value = Fraction(parts[1]) * 10 ** _ZEROS[parts[2].lower()] if parts else None
    if value is None or value.denominator != 1:
        raise ValueError(f"expected a whole number such as 1000, 240k, 1.5T as {what}, got {text!r:.80}")
    if value > _LARGEST:
        raise ValueError(f"expected at most {_LARGEST} as {what}, got {text!r:.80}; no store holds more")
    return int(value)


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern with a group ``step`` and optional groups ``tokens`` and ``stage``."""
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"expected a regular expression, got {pattern!r:.80}: {error}") from error
    groups = list(compiled.groupindex)
    if "step" not in groups or not set(groups) <= set(_GROUPS):
        raise ValueError(
            f"expected the named group step, and no others than tokens and stage, in {pattern!r}, got "
            rf"{', '.join(groups) or 'none'}; write the step as (?P<step>\d+)"
        )
    return compiled


def parse_revision(name: str, pattern: str = DEFAULT_PATTERN, tokens_per_step: int | None = None) -> Target | None:
    r"""Parse a name to a checkpoint of no run yet; None if the pattern does not match all of it.

    >>> found = parse_revision("stage1-step1000-tokens5B")
    >>> found.revision, found.step, found.tokens_seen, found.stage
    ('stage1-step1000-tokens5B', 1000, 5000000000, 'stage1')
    >>> parse_revision("step512", r"step(?P<step>\d+)", tokens_per_step=2097152).tokens_seen
    1073741824
    >>> parse_revision("main") is None
    True

    Args:
        name: branch, tag or folder.
        pattern: regular expression with the group ``step``, and optionally ``tokens`` and ``stage``.
        tokens_per_step: for names without the number of tokens.
    """
    # branch names are not longer, and matching takes quadratic time
    found = compile_pattern(pattern).fullmatch(name) if len(name) <= _LONGEST_NAME else None
    groups = found.groupdict() if found else {}
    if groups.get("step") is None:
        return None
    step = whole_number(groups["step"], f"step of {name!r}")
    tokens = None if tokens_per_step is None else whole_number(str(tokens_per_step * step), f"tokens of {name!r}")
    if groups.get("tokens") is not None:
        tokens = whole_number(groups["tokens"], f"tokens of {name!r}")
    return Target("", step, name, tokens, groups.get("stage"))


def match_revisions(
    names: Iterable[str], pattern: str = DEFAULT_PATTERN, tokens_per_step: int | None = None
) -> tuple[list[Target], list[str]]:
    """Split names into checkpoints, by ascending step, and others; arguments as for :func:`parse_revision`."""
    read = {name: parse_revision(name, pattern, tokens_per_step) for name in names}
    found = sorted((place for place in read.values() if place), key=lambda place: (place.step, place.revision))
    for one, other in pairwise(found):
        if one.step == other.step:
            raise ValueError(
                f"expected one checkpoint for each step, got {one.revision!r} and {other.revision!r} for {one.step}; "
                r"name one stage with a narrower pattern, such as 'stage1-step(?P<step>\d+).*'"
            )
    return found, [name for name, place in read.items() if place is None]


def select_revisions(revisions: Sequence[Target], spec: str) -> list[Target]:
    """Select checkpoints, by ascending step.

    >>> steps = [Target("run", step, f"step{step}") for step in (0, 1, 2, 5, 6, 7, 8, 9)]
    >>> [place.step for place in select_revisions(steps, "log")]
    [0, 1, 2, 5, 8, 9]
    >>> [place.step for place in select_revisions(steps, "every:3")]
    [0, 5, 8, 9]

    Args:
        revisions: with distinct steps, as :func:`match_revisions` gives them.
        spec: "all"; "log": the first, the last, and for each power of two the nearest step within a factor of
            the square root of 2; "every:10": every tenth, the first and the last; or names or steps separated by
            commas.
    """
    ordered = sorted(revisions, key=lambda place: place.step)
    every = re.fullmatch(r"every:0*([1-9]\d*)", spec)
    if spec == "all":
        return ordered
    if spec == "log":
        chosen = {*ordered[:1], *ordered[-1:], *_nearest_to_powers_of_two(ordered)}
    elif every:
        chosen = {*ordered[:: int(every[1])], *ordered[-1:]}
    else:
        chosen = _named(ordered, spec)
    return [place for place in ordered if place in chosen]


def _nearest_to_powers_of_two(ordered: Sequence[Target]) -> set[Target]:
    chosen = set()
    power = 1
    while ordered and power <= ordered[-1].step:
        near = [at for at in ordered if power**2 <= 2 * at.step**2 and at.step**2 <= 2 * power**2]
        if near:
            chosen.add(min(near, key=lambda at: max(Fraction(at.step, power), Fraction(power, at.step))))
        power *= 2
    return chosen


def _named(ordered: Sequence[Target], spec: str) -> set[Target]:
    by_name = {str(place.step): place for place in ordered} | {place.revision: place for place in ordered}
    wanted = [name.strip() for name in spec.split(",")]
    if not all(wanted) or (":" in spec and not set(wanted) <= set(by_name)):
        raise ValueError(f"expected {_FORMS}, got {spec!r}")
    absent = [name for name in wanted if name not in by_name]
    if absent:
        hints = {name: difflib.get_close_matches(name, by_name, n=1) for name in absent}
        listed = ", ".join(f"{name!r}" + (f" (closest: {near[0]!r})" if near else "") for name, near in hints.items())
        raise ValueError(f"expected {_FORMS}; got names or steps that do not exist: {listed}")
    return {by_name[name] for name in wanted}
