"""Choose which tests run by default, and which with the extended tests alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def leave_out_extended_tests(config: pytest.Config) -> None:
    """Deselect the tests marked extended, unless paths, ``-k`` or ``-m`` are given."""
    if not (config.args_source is config.ArgsSource.ARGS or config.option.markexpr or config.option.keyword):
        config.option.markexpr = "not extended"  # which the workers of xdist receive with their options


def extended_except(kept: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Mark all values except those kept as extended, for ``pytest.mark.parametrize``.

    Raises:
        ValueError: If a value to keep is not among the values.
    """
    values = list(values)
    if missing := [value for value in kept if value not in values]:
        raise ValueError(f"expected values to keep among {values}, got {missing}")
    return [value if value in kept else pytest.param(value, marks=pytest.mark.extended) for value in values]
