"""The blocks of a model, whose outputs are layers: in one stack or several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from torch import nn
from torch.optim.swa_utils import AveragedModel

from repdyn.capture.wrappers import WRAPPINGS, is_a, unwrapped

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Module = TypeVar("Module", bound=nn.Module)
Patterns: TypeAlias = str | Sequence[str]
LayerPatterns: TypeAlias = Patterns | Mapping[str, Patterns] | None


class Block(NamedTuple):
    """A module whose output is a layer."""

    name: str
    """Qualified name, without the parts that wrappers add."""
    module: nn.Module
    stack: str | None = None
    """Name of the stack it belongs to, in a model that has several."""
    slot: int | str | None = None
    """Which part of what it returns was chosen, where it carries several streams."""


Blocks: TypeAlias = list[Block]


def find_blocks(model: nn.Module, layers: LayerPatterns = None) -> Blocks:
    """Return the blocks of a model, stack after stack, in the order they are registered.

    Args:
        model: any module.
        layers: name pattern, ``*`` standing for one part of a dotted name ("model.layers.*"), or
            several patterns: one stack. Patterns by name of the stack, ``{"encoder":
            "encoder.layers.*", "decoder": "decoder.layers.*"}``: several. None takes both stacks of
            a Hugging Face encoder-decoder or of a ``nn.Transformer``, and in any other model the
            outermost list of modules that holds most of the parameters.

    Raises:
        ValueError: a pattern matches nothing, a block is in two stacks, no list of blocks exists,
            or two are about equally large.
    """
    if isinstance(layers, Mapping):
        if not layers or not all(isinstance(stack, str) and stack for stack in layers):
            raise ValueError(f"expected layers= to map names of stacks to patterns, got {layers!r}")
        blocks = [
            block
            for stack, patterns in layers.items()
            for block in _matching(model, patterns, stack)
        ]
        if twice := [name for name, n in Counter(block.name for block in blocks).items() if n > 1]:
            raise ValueError(
                f"expected stacks that share no block, got {twice[0]!r} in two; narrow the "
                "patterns of layers="
            )
        return blocks
    if layers is not None:
        return _matching(model, layers)
    return [
        block
        for stack, part in _parts_with_blocks(model).items()
        for block in _largest_list(model, part, stack)
    ]


def pattern_list(patterns: Patterns) -> list[str]:
    """Return one pattern or several as a list; raise ValueError for anything else."""
    listed = [patterns] if isinstance(patterns, str) else patterns
    if (
        not isinstance(listed, Sequence)
        or not listed
        or not all(isinstance(pattern, str) for pattern in listed)
    ):
        raise ValueError(
            'expected layers= to be a name pattern such as "model.layers.*", several of them, or a '
            "mapping from names "
            f"of stacks to patterns, got {patterns!r}"
        )
    return list(listed)


def list_candidates(model: nn.Module) -> str:
    """Return the lists of blocks in a model as patterns that :func:`find_blocks` takes, for
    messages.
    """
    listed = [
        f'"{name}.*" ({len(list(blocks.children()))} of '
        f"{type(unwrapped(next(blocks.children()))).__name__})"
        for name, blocks in _candidates(model, model)
    ]
    return ", ".join(listed) or "none"


def silent_blocks(model: nn.Module, blocks: Blocks, called: Collection[str]) -> str:
    """Return what is wrong where some blocks were not called in a pass; "" where all were."""
    silent = [block.name for block in blocks if block.name not in called]
    if not silent:
        return ""
    few = ", ".join(silent[:4]) + (", ..." if len(silent) > 4 else "")
    return (
        f"expected every block to run, but {len(silent)} of {len(blocks)} did not: {few}; the "
        "forward pass does not go through them. Name the blocks it does go through with layers=; "
        f"the model has {list_candidates(model)}"
    )


def find_network(model: nn.Module) -> nn.Module:
    """Return a module, or the network in it where its own class has no ``forward``.

    So it is in a LightningModule whose ``training_step`` calls ``self.net(x)``.
    """
    network, path = model, ""
    while _lacks_forward(network):
        children = {f"{path}{name}": child for name, child in network.named_children()}
        parts = {
            name: child
            for name, child in children.items()
            if any(_candidates(inner := unwrapped(child), inner))
        }
        names = list(parts or children)
        if len(names) != 1:
            blocks = not parts and isinstance(network, nn.ModuleList)  # none of which is a network
            choice = " or ".join(f'model="{name}"' for name in names)
            choice = f"choose with {choice} in a callback, or " if names and not blocks else ""
            raise ValueError(
                f"expected {type(model).__name__} to have a forward, or a single network in it, "
                f"got neither: {choice}define forward(self, input_ids), or pass a function that "
                "runs it, forward=lambda model, batch: model.states(batch.input_ids)"
            )
        path = f"{names[0]}."
        network = unwrapped(children[names[0]])
    return network


def _lacks_forward(model: nn.Module) -> bool:
    """Return whether neither the class of a module nor the module itself defines a ``forward``."""
    forward = getattr(type(model), "forward", None)
    if forward is None:  # of TorchScript, whose instances alone have one
        return False
    inherited = forward is nn.Module.forward or forward.__module__.endswith(
        "lightning.pytorch.core.module"
    )
    return (
        inherited or forward.__module__ == "pytorch_lightning.core.module"
    ) and "forward" not in vars(model)


def hugging_face_model(model: nn.Module) -> PreTrainedModel | None:
    """Return the Hugging Face model that a module is, or wraps as the only one (an adapter, a
    LightningModule).
    """
    outermost: list[PreTrainedModel] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if is_a(module, "transformers.PreTrainedModel") and module not in inside:
            outermost.append(module)
            inside.update(module.modules())
    outermost = _without_averages(outermost, model)
    return outermost[0] if len(outermost) == 1 else None


def _without_averages(modules: list[Module], model: nn.Module) -> list[Module]:
    """Return those modules that are not of an average which a model keeps of its own weights; all,
    if all are.
    """
    averages = [
        average
        for average in model.modules()
        if isinstance(average, AveragedModel) and average is not model
    ]
    inside = {module for average in averages for module in average.modules()}
    return [module for module in modules if module not in inside] or modules


def _named_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return every module by its name without the wrappers' parts; of a wrapper and what it wraps,
    the latter.
    """
    return {
        ".".join(part for part in name.split(".") if part not in WRAPPINGS): module
        for name, module in model.named_modules()
    }


def _parts_with_blocks(model: nn.Module) -> dict[str | None, nn.Module]:
    """Return the halves of an encoder-decoder of Hugging Face or of torch by name, the decoder of
    one with a text part, or all.
    """
    whole: Any = hugging_face_model(model)
    of_torch = [module for module in model.modules() if isinstance(module, nn.Transformer)]
    if whole is None and len(of_torch) == 1:
        return {"encoder": of_torch[0].encoder, "decoder": of_torch[0].decoder}
    config = getattr(whole, "config", None)
    if whole is not None and getattr(config, "is_encoder_decoder", False):
        halves: dict[str | None, nn.Module] = {
            "encoder": whole.get_encoder(),
            "decoder": whole.get_decoder(),
        }
        apart = halves["encoder"] is not halves["decoder"] and whole not in halves.values()
        if apart and all(any(_candidates(half, half)) for half in halves.values()):
            return halves
    if whole is not None and getattr(config, "text_config", None) is not None:
        decoder = whole.get_decoder()
        return {None: decoder if any(_candidates(decoder, decoder)) else model}
    return {None: model}


def _largest_list(model: nn.Module, part: nn.Module, stack: str | None = None) -> Blocks:
    names = {blocks: name for name, blocks in _candidates(model, part)}
    lists = _without_averages(list(names), model)
    size = {
        (names[blocks], blocks): sum(p.numel() for p in blocks.parameters()) for blocks in lists
    }
    candidates = sorted(size, key=lambda candidate: size[candidate], reverse=True)
    if not candidates:
        raise ValueError(
            "expected a model built of a list of blocks that have parts (nn.ModuleList), found "
            "none in "
            f"{type(model).__name__}; name the modules to measure, for example "
            f"layers={_example(model)}, or, of a network without positions, give its embeddings to "
            "repdyn.torchmetrics"
        )
    rivals = [name for name in candidates if 2 * size[name] > size[candidates[0]]]
    if len(rivals) > 1:
        raise ValueError(
            "expected one stack of blocks, found several of similar size in "
            f"{type(model).__name__}; choose with layers= one of: {list_candidates(model)}; or "
            "measure several, each as a stack of its own, with "
            f"layers={ {name: f'{name}.*' for name, _ in rivals} }"
        )
    name, blocks = candidates[0]
    listed = list(_blocks_of(name, blocks, stack))
    _check_positions(model, name, listed)
    if hugging_face_model(model) is None:  # the layers of these are what their configuration counts
        _check_whole(model, name, listed)
    return listed


def _example(model: nn.Module) -> str:
    """Return what may be meant as ``layers=`` of a model without a list of blocks, as source: the
    modules that have parts and stand beside others of their kind, a list, or any part.
    """
    modules = dict(_named_modules(model))
    lists = [
        f"{name}.*"
        for name, module in modules.items()
        if name and isinstance(module, nn.ModuleList | nn.ModuleDict)
    ]
    kinds: dict[tuple[str, type[nn.Module]], list[str]] = {}
    for name, module in modules.items():
        if name and next(module.children(), None) is not None:
            kinds.setdefault((name.rpartition(".")[0], type(module)), []).append(name)
    alike = max(kinds.values(), key=len, default=[])
    parent = modules[alike[0].rpartition(".")[0]] if alike else model
    if len(alike) > 1 and len(alike) < len(list(parent.children())):
        return repr(alike).replace("'", '"')
    parts = (
        name for name, module in model.named_children() if not isinstance(module, nn.Embedding)
    )
    return f'"{[*lists, *parts, "blocks.*"][0]}"'


def _check_positions(model: nn.Module, name: str, blocks: Blocks) -> None:
    """Refuse blocks that are made of convolutions of maps, without a linear layer."""
    for block in blocks:
        kinds = {type(module) for module in block.module.modules()}
        if nn.Linear in kinds or kinds.isdisjoint({nn.Conv2d, nn.Conv3d}):
            return
    raise ValueError(
        f"expected blocks that pass a vector for each position, found convolutions in {name!r} of "
        f"{type(model).__name__}, whose maps have a channel for each; give its pooled features to "
        "repdyn.torchmetrics"
    )


def _blocks_of(name: str, blocks: nn.Module, stack: str | None) -> Iterator[Block]:
    """Yield the modules of a list, flattening lists inside it."""
    for child, module in blocks.named_children():
        child_name = f"{name}.{child}" if name else child
        if isinstance(module, nn.ModuleList):
            yield from _blocks_of(child_name, module, stack)
        else:
            yield Block(child_name, unwrapped(module), stack)


def _candidates(model: nn.Module, network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the lists of composite modules in a part of the model that are not inside another such
    list.
    """
    outer: list[str] = []
    inside = set(network.modules())
    if not is_a(network, "transformers.PreTrainedModel") or _reads_text(network):
        # but models inside another one that take images or sounds and no text
        for module in network.modules():
            if is_a(module, "transformers.PreTrainedModel") and not _reads_text(module):
                inside.difference_update(module.modules())
    for name, module in _named_modules(model).items():
        is_nested = any(name.startswith(prefix) for prefix in outer)
        if module in inside and not is_nested and _is_list_of_blocks(module):
            outer.append(f"{name}." if name else "")
            yield name, module


def _is_list_of_blocks(module: nn.Module) -> bool:
    """Return whether something is a list, or a sequence of one kind, of modules that have parts."""
    children = [unwrapped(child) for child in module.children()]
    if not children or any(next(child.children(), None) is None for child in children):
        return False
    is_alike = len({type(child) for child in children}) == 1 and len(children) > 1
    return isinstance(module, nn.ModuleList) or (isinstance(module, nn.Sequential) and is_alike)


def _reads_text(model: PreTrainedModel) -> bool:
    """Return whether a Hugging Face model takes text; before version 5 transformers told its main
    input alone.
    """
    modalities = getattr(model, "input_modalities", None)
    return model.main_input_name == "input_ids" if modalities is None else "text" in modalities


def _matching(model: nn.Module, patterns: Patterns, stack: str | None = None) -> Blocks:
    modules = {name: module for name, module in _named_modules(model).items() if name}
    prefix = getattr(hugging_face_model(model), "base_model_prefix", "")
    matched: set[str] = set()
    slot: int | str | None = None
    for given in pattern_list(patterns):
        pattern, _, slot_text = given.partition(":")
        if slot_text:
            slot = int(slot_text) if slot_text.isdecimal() else slot_text
        # a checkpoint is loaded with its head or without, and the names of its modules begin
        # accordingly
        spellings = (pattern, f"{prefix}.{pattern}", pattern.removeprefix(f"{prefix}."))
        matches = next(
            filter(None, (_names_matching(spelling, modules) for spelling in spellings)), None
        )
        if not matches:
            raise ValueError(
                f"expected a pattern that names modules of {type(model).__name__}, but {pattern!r} "
                f"matches none; lists of blocks in it: {list_candidates(model)}"
            )
        matched |= matches
    return [
        Block(name=name, module=module, stack=stack, slot=slot)
        for name, module in modules.items()
        if name in matched
    ]


def _names_matching(pattern: str, names: Iterable[str]) -> set[str]:
    """Return the dotted names that a pattern matches part by part."""
    parts = pattern.split(".")
    split = ((name, name.split(".")) for name in names)
    return {
        name for name, own in split if len(own) == len(parts) and all(map(fnmatchcase, own, parts))
    }


def _check_whole(model: nn.Module, name: str, listed: Blocks) -> None:
    """Raise ValueError where the modules of a list are parts of blocks in turn: attention,
    feed-forward, attention, ...

    They are taken for such parts where modules of several structures take turns and no two of these
    have a part in common, as blocks with local and with global attention have their feed-forward
    part.
    """
    parts = [_parts(block.module) for block in listed]
    period = next((n for n in range(1, len(parts) // 2 + 1) if parts[n:] == parts[:-n]), 1)
    if period == 1 or any(
        name for one, other in combinations(parts[:period], 2) for name, _ in one & other
    ):
        return
    kinds = ", ".join(dict.fromkeys(type(block.module).__name__ for block in listed[:period]))
    ends = ", ".join(f'"{block.name}"' for block in listed[period - 1 :: period])
    raise ValueError(
        f"expected a list of whole blocks, but {period} modules that have no part in common take "
        f"turns in {name!r} of {type(model).__name__} ({kinds}), as parts of blocks do; if the "
        f"last of each block returns the states, write layers=[{ends}]; if they are added up "
        "outside of it, as in x = x + part(x), give each block a module that returns them, or "
        f'measure what the parts add with layers={{"outputs": [{ends}]}}'
    )


def _parts(module: nn.Module) -> set[tuple[str, Hashable]]:
    """Return a module and its composite parts by name, each with the types of what is in it."""
    return {
        (name, tuple((inner, type(part)) for inner, part in submodule.named_modules()))
        for name, submodule in module.named_modules()
        if not name or next(submodule.children(), None) is not None
    }
