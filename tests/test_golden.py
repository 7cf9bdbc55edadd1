"""Nothing that is measured, logged, swept or shown changes unsaid: every value against
``tests/golden``.

On the processor and with the versions of ``tests/golden/machine.json`` values are equal to the last
bit, elsewhere within :data:`TOLERANCES`; so are rows that were added on another processor.
"""

from __future__ import annotations

import json
import math
import re
import sys

import pytest
import torch
from golden import make

TOLERANCES = (
    # what counts points, neighbours or ranks: another rounding may turn a tie
    (r"components_|sink_rate|agreement|top1_match|token_rank|mutual_knn|accuracy", 0.02, 0.05),
    # after a training, in which differences grow
    (r"^(call|stored golden step 0[1-9])", 1e-2, 1e-3),
    # differences of neighbouring values, and fits to a few eigenvalues or ratios
    (r"two_nn|gride|levina|dimension|alpha_req|isoscore|kurtosis|gradient|gap", 1e-2, 1e-4),
    (r"", 1e-3, 1e-5),
)
"""Pattern of a key, relative and absolute tolerance on another machine; the first that matches
counts.
"""
SHOWN = 20

_HERE = make.machine()
_MADE_ON = json.loads((make.HERE / "machine.json").read_text())
IS_EXACT = _HERE == _MADE_ON


@pytest.fixture(autouse=True)
def _one_thread():
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("name", make.PARTS)
def test_values_are_the_golden_ones(name: str) -> None:
    changes = list(differences(make.read(name), make.PARTS[name]()))
    if changes:
        shown = "\n".join(changes[:SHOWN])
        if len(changes) > SHOWN:
            shown += f"\n... and {len(changes) - SHOWN} more"
        how = "to the last bit" if IS_EXACT else "within the tolerances for another machine"
        pytest.fail(
            f"{len(changes)} golden values of {name} have changed ({how}):\n{shown}\n"
            "A commit that is meant to change values makes them anew "
            "(cd tests && python -m golden.make) and names each value and why in its message; one "
            "that adds a metric adds its values (python -m golden.make --missing).",
            pytrace=False,
        )


def differences(old: make.Table, new: make.Table):
    """Yield a line for each value that differs; columns that the golden table lacks are not
    compared.
    """
    for key in sorted(old.keys() | new.keys()):
        if key not in new or key not in old:
            yield f"  {key}: {'is new' if key in new else 'is gone'}"
            continue
        for column, text in old[key].items():
            if not same(key, column, old[key], new[key]):
                yield (
                    f"  {key} | {column}: {readable(text)} -> "
                    f"{readable(new[key].get(column, 'nothing'))}"
                )


def same(key: str, column: str, old: dict[str, str], new: dict[str, str]) -> bool:
    of_another_machine = old.get("value", "").startswith(make.ELSEWHERE)
    if of_another_machine:
        old = {**old, "value": old["value"].removeprefix(make.ELSEWHERE)}
    if old[column] == new.get(column):
        return True
    if (IS_EXACT and not of_another_machine) or column not in new:
        return False
    if column == "reason":
        return "-" not in {old[column], new[column]}  # the same case, with other counts
    here = number(old[column])
    there = number(new[column])
    if here is None or there is None:
        return False
    if column in {"n_vectors", "n_unique"}:
        return abs(here - there) <= 0.02 * abs(here) + 1
    relative, absolute = next((r, a) for pattern, r, a in TOLERANCES if re.search(pattern, key))
    if column == "value":
        return math.isclose(here, there, rel_tol=relative, abs_tol=absolute)
    # spreads and intervals come of differences of values, and multiples of these
    scale = max(abs(number(old.get(name, "")) or 0.0) for name in ("value", "std", "low", "high"))
    return math.isclose(here, there, rel_tol=0.1, abs_tol=20 * (absolute + relative * scale))


def number(text: str) -> float | None:
    try:
        return float.fromhex(text)
    except ValueError:
        return None


def readable(text: str) -> str:
    return repr(number(text)) if text.startswith(("0x", "-0x")) else text


def test_a_row_of_another_machine_is_compared_within_tolerances(monkeypatch) -> None:
    """Its last bits are not those of the machine that the other rows are of."""
    monkeypatch.setattr(sys.modules[__name__], "IS_EXACT", True)
    old = make.with_missing({}, {"a": {"value": (1.0).hex()}}, mark=make.ELSEWHERE)
    assert not list(differences(old, {"a": {"value": (1 + 1e-9).hex()}}))
    assert list(differences(old, {"a": {"value": (1.1).hex()}}))


def test_a_changed_value_is_reported_with_its_key() -> None:
    old = {"a": {"value": "0x1.0p+0"}, "b": {"value": "-"}}
    new = {"a": {"value": "0x1.8p+0", "extra": "1"}}
    assert list(differences(old, new)) == ["  a | value: 1.0 -> 1.5", "  b: is gone"]
