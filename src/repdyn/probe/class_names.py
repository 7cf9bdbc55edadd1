"""The classes of words by name."""

from __future__ import annotations

from collections.abc import Sequence

CLASSES = ("function", "content", "frequent", "rare")
CLASS_OPTIONS = ("words", "none", *CLASSES)
"""Values of the option ``classes``: all classes, none, or some by name."""


def class_names(requested: str | Sequence[str]) -> tuple[str, ...]:
    """Return the word classes that an option names; "words" means all of them, "none" none.

    Raises:
        ValueError: an unknown name.

    >>> class_names(["rare", "function"]), class_names("none")
    (('function', 'rare'), ())
    """
    names = [requested] if isinstance(requested, str) else list(requested)
    for name in names:
        if name not in CLASS_OPTIONS:
            raise ValueError(f"expected word classes among {', '.join(CLASS_OPTIONS)}, got {name!r}")
    return tuple(name for name in CLASSES if name in names or "words" in names)


def validate_word_classes(names: Sequence[str]) -> None:
    """Raise ValueError unless all are among :data:`CLASSES`."""
    if isinstance(names, str) or not set(names) <= set(CLASSES):
        raise ValueError(f"expected classes among {CLASSES}, got {names!r}")
