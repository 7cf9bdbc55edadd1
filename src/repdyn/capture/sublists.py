"""Lists of blocks that hold parts of blocks: in lists inside them, or in turn; and patterns that choose among these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations

from torch import nn


def check_whole_blocks(model: nn.Module, name: str, found: Mapping[str, nn.Module]) -> None:
    """Check that modules from lists inside a list are whole blocks, rather than parts of blocks such as norms.

    Args:
        model: named in messages.
        name: name of the outer list.
        found: every module that is in it or in a list inside it, by its name.

    Raises:
        ValueError: the modules are of several kinds, have no submodules, or those of one inner list are built
            differently; with the patterns that choose among them.
    """
    n_kinds = len({type(module) for module in found.values()})
    is_composite = all(next(module.children(), None) is not None for module in found.values())
    inner: dict[str, set[Hashable]] = {}
    for full_name, module in found.items():
        inner.setdefault(full_name.rpartition(".")[0], set()).add(_structure(module))
    if n_kinds == 1 and is_composite and all(len(structures) == 1 for structures in inner.values()):
        return
    raise ValueError(
        f"expected blocks of one kind, but the lists in {name!r} of {type(model).__name__} hold parts of blocks "
        f"({_kinds(found.values())}); choose those whose outputs are the layers, such as the sums that the next part "
        f"takes, with layers= one of: {', '.join(_patterns(name, found))}"
    )


def check_not_in_turn(model: nn.Module, name: str, found: Mapping[str, nn.Module]) -> None:
    """Check that the modules of a list are not the parts of blocks in turn: attention, feed-forward, attention, ...

    They are taken for such parts where modules of several structures take turns and no two of these have a part in
    common, as blocks with local and with global attention have their feed-forward part.

    Args:
        model: named in messages.
        name: name of the list.
        found: its modules by their names.

    Raises:
        ValueError: with the patterns that choose one part of each block, or all.
    """
    modules = list(found.values())
    period = _period([_structure(module) for module in modules])
    if period == 1 or any(_parts(a) & _parts(b) for a, b in combinations(modules[:period], 2)):
        return
    names = list(found)
    last = ", ".join(f'"{each}"' for each in names[period - 1 :: period])
    raise ValueError(
        f"expected a list of whole blocks, but modules that have no part in common take turns in {name!r} of "
        f"{type(model).__name__} ({_kinds(modules[:period])}), as parts of blocks do; choose those whose outputs are "
        f'the layers with layers=[{last}], or layers="{name}.*" for the states after each of them'
    )


def _kinds(modules: Iterable[nn.Module]) -> str:
    """Return the types of modules, or where they are of one type, also those of what is in them."""
    modules = list(modules)
    names = dict.fromkeys(type(module).__name__ for module in modules)
    if len(names) == 1:
        inside = [[type(part).__name__ for part in module.children() if _has_weights(part)] for module in modules]
        (name,) = names
        names = dict.fromkeys(f"{name} of {' and '.join(parts)}" if parts else name for parts in inside)
    return ", ".join(names)


def _period(structures: Sequence[Hashable]) -> int:
    """Return after how many entries a sequence repeats itself, at least once as a whole; 1 where it does not.

    >>> _period("ababab"), _period("aaaa"), _period("aaab"), _period("ab"), _period("ababa")
    (2, 1, 1, 1, 2)
    """
    for period in range(1, len(structures) // 2 + 1):
        if all(one == other for one, other in zip(structures, structures[period:], strict=False)):
            return period
    return 1


def _structure(module: nn.Module) -> Hashable:
    """Return the types of a module and of what is inside it, by name, as far as they have weights.

    Modules without weights differ between blocks of one kind: the first may lack the dropout of the others.
    """
    return tuple((name, type(each)) for name, each in module.named_modules() if _has_weights(each))


def _parts(module: nn.Module) -> set[Hashable]:
    """Return the composite parts of a module by name and structure."""
    return {
        (name, _structure(part))
        for name, part in module.named_modules()
        if name and _has_weights(part) and next(part.children(), None) is not None
    }


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


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
