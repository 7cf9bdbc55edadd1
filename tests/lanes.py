"""Marks values of parameters that only the nightly tests need."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def extended_except(kept: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Mark all values except those kept as extended, for ``pytest.mark.parametrize``.

    Raises:
        ValueError: If a value to keep is not among the values.
    """
    values = list(values)
    if missing := [value for value in kept if value not in values]:
        raise ValueError(f"expected values to keep among {values}, got {missing}")
    return [value if value in kept else pytest.param(value, marks=pytest.mark.extended) for value in values]
