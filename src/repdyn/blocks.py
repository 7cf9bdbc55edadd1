"""The blocks of a model: found, or named by pattern."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import nn

Layers: TypeAlias = str | Sequence[str] | None
Blocks: TypeAlias = list[tuple[str, nn.Module]]


def find_blocks(model: nn.Module, layers: Layers = None) -> Blocks:
    """The blocks of a model with their names, in the order they are registered.

    Args:
        model: any module.
        layers: name pattern, ``*`` standing for one part of a dotted name ("model.layers.*"), or several patterns.
            None takes the outermost list of modules that holds most of the parameters.

    Raises:
        ValueError: a pattern matches nothing, no list of blocks exists, or two are about equally large.
    """
    if layers is not None:
        return _matching(model, [layers] if isinstance(layers, str) else list(layers))
    candidates = sorted(_candidates(model), key=lambda found: _n_parameters(found[1]), reverse=True)
    if not candidates:
        raise ValueError(
            f"expected a model built of a list of blocks (nn.ModuleList), found none in {type(model).__name__}; name "
            f'the modules to measure, for example layers="{_example_name(model)}"'
        )
    if len(candidates) > 1 and 2 * _n_parameters(candidates[1][1]) > _n_parameters(candidates[0][1]):
        raise ValueError(
            f"expected one stack of blocks, found several of similar size in {type(model).__name__}; choose with "
            f"layers= one of: {_listed(candidates)}"
        )
    name, blocks = candidates[0]
    return [(f"{name}.{child}" if name else child, block) for child, block in blocks.named_children()]


def listing(model: nn.Module) -> str:
    """The lists of blocks in a model as patterns that :func:`find_blocks` takes, for messages."""
    return _listed(list(_candidates(model))) or "none"


def without_compilation(model: nn.Module) -> nn.Module:
    """What ``torch.compile`` wraps: its names are those the model was written with."""
    return getattr(model, "_orig_mod", model)


def _candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Lists of composite modules that do not stand inside another such list."""
    outer: list[str] = []
    for name, module in model.named_modules():
        if any(name.startswith(f"{o}." if o else "") for o in outer):
            continue
        children = list(module.children())
        composite = bool(children) and all(next(child.children(), None) is not None for child in children)
        alike = len({type(child) for child in children}) == 1 and len(children) > 1
        if composite and (isinstance(module, nn.ModuleList) or (isinstance(module, nn.Sequential) and alike)):
            outer.append(name)
            yield name, module


def _matching(model: nn.Module, patterns: list[str]) -> Blocks:
    found = {}
    for pattern in patterns:
        parts = pattern.split(".")
        matches = {
            name: module
            for name, module in model.named_modules()
            if name and len(name.split(".")) == len(parts) and all(map(fnmatchcase, name.split("."), parts))
        }
        if not matches:
            raise ValueError(
                f"expected a pattern that names modules of {type(model).__name__}, but {pattern!r} matches none; "
                f"lists of blocks in it: {listing(model)}"
            )
        found |= matches
    return [(name, module) for name, module in model.named_modules() if name in found]


def _n_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _listed(candidates: Blocks) -> str:
    return ", ".join(
        f'"{name}.*" ({len(list(blocks.children()))} of {type(next(blocks.children())).__name__})'
        for name, blocks in candidates
    )


def _example_name(model: nn.Module) -> str:
    return next((name for name, _ in model.named_children()), "blocks.*")
