"""Private names of torch: all there in this version, and none needed to import the package."""

import ast
from pathlib import Path

import pytest
import torch
from counting import Counting
from torch.utils.flop_counter import FlopCounterMode

from repdyn.utils import internals

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", internals.NAMES)
def test_this_version_of_torch_has_every_private_name(name):
    """A fallback would be taken silently in a version that has renamed one."""
    assert internals.private(name) is not None


def test_every_private_name_that_is_looked_up_is_listed():
    """One that is not would be tried in no version."""
    tree = ast.parse((ROOT / "src" / "repdyn" / "utils" / "internals.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    looked_up = {call.args[0].value for call in calls if getattr(call.func, "id", "") == "private"}
    assert looked_up == {*internals.NAMES}


@pytest.mark.parametrize("is_there", [True, False])
def test_without_a_private_name_a_mode_stays_and_the_rest_works(is_there, monkeypatch):
    """One rename in torch made `import repdyn` fail for everyone."""
    if not is_there:
        monkeypatch.setattr(internals, "private", lambda _name: None)
    counter = FlopCounterMode(display=False)
    with Counting() as mode, counter:
        n_before = mode.n
        with internals.without_dispatch_modes(), internals.without_function_modes():
            torch.ones(2, 2) @ torch.ones(2, 2)
        assert (mode.n == n_before) is is_there
        assert (counter.get_total_flops() == 0) is is_there
        n_before = mode.n
        torch.ones(1)
        assert mode.n > n_before
    batch = {"a": torch.ones(2), "b": [torch.ones(3), "text"], "c": (torch.ones(1), None)}
    doubled = internals.map_tensors(lambda x: 2 * x, batch)
    assert doubled["a"].sum() == 4
    assert doubled["b"][0].sum() == 6
    assert doubled["b"][1] == "text"
    assert doubled["c"][1] is None
    if not is_there:
        with pytest.raises(RuntimeError, match="TorchDispatchMode"):
            internals.watching_operations(lambda _operation, _arguments: None)
