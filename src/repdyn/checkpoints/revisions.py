"""The names of checkpoints: which step a branch, tag or folder stands for, and which of them
``revisions=`` selects.
"""

import re
from collections.abc import Iterable, Sequence
from math import log2

from repdyn.checkpoints.suites import compile_pattern, require_distinct_steps
from repdyn.checkpoints.targets import Target
from repdyn.utils.mistyped import closest
from repdyn.utils.steps import DEFAULT_PATTERN, whole_number

_FORMS = (
    '"all", "log", "every:10", or names or steps separated by commas such as '
    '"step0,step1000,143000"'
)


def parse_revision(
    name: str, pattern: str = DEFAULT_PATTERN, tokens_per_step: int | None = None
) -> Target | None:
    r"""Read the name of a branch, tag or folder as a checkpoint, which belongs to no run yet.

    >>> target = parse_revision("stage1-step1000-tokens5B")
    >>> target.revision, target.step, target.tokens_seen, target.stage
    ('stage1-step1000-tokens5B', 1000, 5000000000, 'stage1')
    >>> parse_revision("step512", r"step(?P<step>\d+)", tokens_per_step=2097152).tokens_seen
    1073741824

    Args:
        name: the whole name.
        pattern: regular expression with the group ``step``, and optionally ``tokens`` and
            ``stage``.
        tokens_per_step: gives the tokens where the name does not.

    Returns:
        The checkpoint; None unless the pattern matches the whole name.
    """
    match = compile_pattern(pattern).fullmatch(name)
    if match is None:
        return None
    groups = match.groupdict()
    if groups.get("step") is None:
        return None
    step = whole_number(groups["step"], f"step of {name!r}")
    tokens = None
    if tokens_per_step is not None:
        # checked even where the name has tokens: the suite may be wrong
        tokens = whole_number(str(tokens_per_step * step), f"tokens of {name!r}")
    if groups.get("tokens") is not None:
        tokens = whole_number(groups["tokens"], f"tokens of {name!r}")
    return Target(run="", step=step, revision=name, tokens_seen=tokens, stage=groups.get("stage"))


def match_revisions(
    names: Iterable[str], pattern: str = DEFAULT_PATTERN, tokens_per_step: int | None = None
) -> tuple[list[Target], list[str]]:
    """Split names into checkpoints, by ascending step, and others; arguments as for
    :func:`parse_revision`.
    """
    parsed = {name: parse_revision(name, pattern, tokens_per_step) for name in names}
    targets = [target for target in parsed.values() if target is not None]
    targets.sort(key=lambda target: (target.step, target.revision))
    require_distinct_steps(
        [(target.step, repr(target.revision)) for target in targets],
        r"name one stage with a narrower pattern, such as 'stage1-step(?P<step>\d+).*'",
    )
    return targets, [name for name, target in parsed.items() if target is None]


def select_revisions(revisions: Sequence[Target], spec: str) -> list[Target]:
    """Select checkpoints, by ascending step.

    >>> steps = [Target("run", step, f"step{step}") for step in (0, 1, 2, 5, 6, 7, 8, 9)]
    >>> [target.step for target in select_revisions(steps, "log")]
    [0, 1, 2, 5, 8, 9]
    >>> [target.step for target in select_revisions(steps, "every:3")]
    [0, 5, 8, 9]

    Args:
        revisions: with distinct steps, as :func:`match_revisions` gives them.
        spec: "all"; "log": the first, the last, and for each power of two the nearest step within a
            factor of the square root of 2; "every:10": every tenth, the first and the last; or
            names or steps separated by commas.
    """
    ordered = sorted(revisions, key=lambda target: target.step)
    every = re.fullmatch(r"every:0*([1-9]\d*)", spec)
    if spec == "all":
        return ordered
    if spec == "log":
        chosen = {*ordered[:1], *ordered[-1:], *_nearest_powers_of_two(ordered)}
    elif every:
        chosen = {*ordered[:: int(every[1])], *ordered[-1:]}
    else:
        chosen = _named(ordered, spec)
    return [target for target in ordered if target in chosen]


def _nearest_powers_of_two(ordered: Sequence[Target]) -> set[Target]:
    """Return for each power of two the nearest step, if it is within a factor of sqrt(2)."""
    positive = [target for target in ordered if target.step > 0]
    if not positive:
        return set()
    chosen = set()
    # nearest on a logarithmic axis, on which the powers of two are equally far from each other
    for exponent in range(positive[-1].step.bit_length()):
        distances = {target: abs(log2(target.step) - exponent) for target in positive}
        nearest = min(distances, key=lambda target: distances[target])
        if distances[nearest] <= 0.5:
            chosen.add(nearest)
    return chosen


def _named(ordered: Sequence[Target], spec: str) -> set[Target]:
    """Return the checkpoints that are listed by their names or steps."""
    by_name = {str(target.step): target for target in ordered}
    # a name is preferred where it is the number of another step
    by_name |= {target.revision: target for target in ordered}
    names = [name.strip() for name in spec.split(",")]
    # "evry:10": all forms are named then, not only the closest revision
    is_mistyped_form = ":" in spec and not set(names) <= set(by_name)
    if not all(names) or is_mistyped_form:
        raise ValueError(f"expected {_FORMS}, got {spec!r}")
    absent = [name for name in names if name not in by_name]
    if absent:
        listed = ", ".join(_with_hint(name, by_name) for name in absent)
        raise ValueError(f"expected {_FORMS}; got names or steps that do not exist: {listed}")
    return {by_name[name] for name in names}


def _with_hint(name: str, existing: Iterable[str]) -> str:
    near = closest(name, existing)
    return f"{name!r} (closest: {near!r})" if near else repr(name)
