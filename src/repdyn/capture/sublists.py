"""Lists of blocks that hold lists: whether what is in them are blocks, and patterns that choose among their parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import nn


def check_whole_blocks(model: nn.Module, name: str, found: Mapping[str, nn.Module]) -> None:
    """Check that modules from lists inside a list are whole blocks, rather than parts of blocks such as norms.

    Args:
        model: named in messages.
        name: name of the outer list.
        found: every module that is in it or in a list inside it, by its name.

    Raises:
        ValueError: the modules are of several kinds, or have no submodules; with the patterns that choose among them.
    """
    kinds = list(dict.fromkeys(type(module).__name__ for module in found.values()))
    if len(kinds) == 1 and all(next(module.children(), None) is not None for module in found.values()):
        return
    raise ValueError(
        f"expected blocks of one kind, but the lists in {name!r} of {type(model).__name__} hold parts of blocks "
        f"({', '.join(kinds)}); choose those whose outputs are the layers, such as the sums that the next part takes, "
        f"with layers= one of: {', '.join(_patterns(name, found))}"
    )


def _patterns(name: str, found: Mapping[str, nn.Module]) -> list[str]:
    """Return the modules at each place of the inner lists as a pattern with their kinds, the last place first."""
    places: dict[str, Counter[str]] = {}
    for full_name, module in found.items():
        place = full_name.removeprefix(f"{name}.").partition(".")[2]
        places.setdefault(place, Counter())[type(module).__name__] += 1
    return [
        f'"{".".join(filter(None, (name, "*", place)))}" ({", ".join(f"{n} of {kind}" for kind, n in kinds.items())})'
        for place, kinds in sorted(places.items(), reverse=True)
    ]
