"""Steps in names, of branches, folders, files and scores: one reading for all."""

import re
from fractions import Fraction

# A number, with or without a unit, that no letter or digit follows: "240k", not the 1 of "v1.0".
_END = r"(?![A-Za-z0-9]|\.\d)"
_NUMBER = rf"[0-9]+(?:\.[0-9]+(?=[kmbtKMBT]))?[kmbtKMBT]?{_END}"
_WORD = r"(?i:step|checkpoint|ckpt|iter|iteration)s?[-_=]?"

DEFAULT_PATTERN = (
    rf"(?:(?=.*tokens?[-_=]?(?P<tokens>{_NUMBER})))?"
    r"(?:(?P<stage>stage\d.*?)[-_](?=step))?"
    rf"(?:.*{_WORD}|(?={_NUMBER}$))(?P<step>{_NUMBER}).*"
)
"""Default pattern: a number after "step", "checkpoint", "ckpt" or "iter", or nothing but a number;
tokens and stage if present. Any other number may be the size or version of the model."""
_NAMED = re.compile(rf".*{_WORD}(?P<step>{_NUMBER}).*")
_ZEROS = {"": 0, "k": 3, "m": 6, "b": 9, "t": 12}


def whole_number(text: str, what: str) -> int:
    """Parse a whole number that may have a unit: k, M, B or T.

    >>> whole_number("240k", "step"), whole_number("1.5T", "tokens"), whole_number("007", "step")
    (240000, 1500000000000, 7)
    """
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([kmbt]?)", text, re.ASCII | re.IGNORECASE)
    value = Fraction(parts[1]) * 10 ** _ZEROS[parts[2].lower()] if parts else None
    if value is None or value.denominator != 1:
        raise ValueError(
            f"expected a whole number such as 1000, 240k, 1.5T as {what}, got {text!r:.80}"
        )
    return int(value)


def step_of(name: str, *, is_revision: bool = False) -> int | None:
    """Return the step in a name, the number after a word for it; None if there is none.

    Args:
        name: the name of a folder, a file or a revision.
        is_revision: True if a name that is only a number is a step too.

    >>> [step_of(name) for name in ("step-5K", "global_step1000", "Iter_0010000", "pythia-70m")]
    [5000, 1000, 10000, None]
    >>> step_of("1M", is_revision=True)
    1000000
    """
    match = _NAMED.fullmatch(name)
    if match is None and is_revision:
        match = re.fullmatch(rf"(?P<step>{_NUMBER})", name)
    return None if match is None else whole_number(match["step"], f"step of {name!r}")
