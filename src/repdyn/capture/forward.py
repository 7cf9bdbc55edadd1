"""Forward passes that leave a model unchanged."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn

from repdyn.capture.blocks import Blocks, hugging_face_model
from repdyn.capture.model_state import preserve_model_state
from repdyn.kernels import full_precision
from repdyn.probe import ProbeBatch
from repdyn.utils.random_state import isolated_rng

Forward: TypeAlias = Callable[[nn.Module, ProbeBatch], Any]


def call_with_tokens(model: nn.Module, batch: ProbeBatch, *, logits: bool = True) -> Any:
    """Call a model with ``input_ids``, ``attention_mask`` and ``use_cache=False``, as far as it takes them.

    The decoder of an encoder-decoder gets the tokens of its encoder: ``decoder_input_ids`` and, where it takes one,
    ``decoder_attention_mask``.

    Args:
        logits: whether they are needed; False computes those of the last position alone, where the model can.

    Raises:
        ValueError: the batch has padding and the model's forward takes no ``attention_mask``.
    """
    parameters = parameters_of(model)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if not takes_any and "attention_mask" not in parameters and bool((batch.attention_mask == 0).any()):
        raise ValueError(
            f"expected a probe without padding, because {type(model).__name__}.forward takes no attention_mask; "
            "use sequences of one length, or run the model with forward=lambda model, batch: ..."
        )
    offered = {"attention_mask": batch.attention_mask, "use_cache": False}
    arguments = {name: value for name, value in offered.items() if takes_any or name in parameters}
    if not logits and "logits_to_keep" in parameters:
        arguments["logits_to_keep"] = 1
    required = {name for name, p in parameters.items() if p.default is p.empty}
    if "token_type_ids" in required:
        arguments["token_type_ids"] = torch.zeros_like(batch.input_ids)
    if "position_ids" in required:
        arguments["position_ids"] = (
            torch.arange(batch.input_ids.shape[1]).expand_as(batch.input_ids).to(batch.input_ids)
        )
    if "decoder_input_ids" in parameters:
        offered = {"decoder_input_ids": batch.input_ids, "decoder_attention_mask": batch.attention_mask}
        arguments |= {name: value for name, value in offered.items() if name in parameters}
    first = next(iter(parameters.values()))
    if "input_ids" not in parameters and first.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return model(batch.input_ids, **arguments)
    return model(input_ids=batch.input_ids, **arguments)


def call_with_ids(model: nn.Module, batch: ProbeBatch, *, logits: bool = True) -> Any:
    """Call a model with the token ids alone, which say everything where the batch has no padding.

    Raises:
        ValueError: the batch has padding.
    """
    if bool((batch.attention_mask == 0).any()):
        raise ValueError("expected a batch without padding, since the model gets no attention_mask, got one with it")
    return model(batch.input_ids)


def call_with_dict(model: nn.Module, batch: ProbeBatch, *, logits: bool = True) -> Any:
    """Call a model with one dictionary of ``input_ids`` and ``attention_mask``."""
    return model({"input_ids": batch.input_ids, "attention_mask": batch.attention_mask})


def call_with_inputs(model: nn.Module, batch: ProbeBatch, *, logits: bool = True) -> Any:
    """Call a model with the inputs of a batch: in their order, or those by name that its forward takes.

    Raises:
        ValueError: the forward takes none of them.
    """
    inputs = batch.inputs
    if not isinstance(inputs, Mapping):
        return model(*(inputs or ()))
    parameters = parameters_of(model)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    taken = {name: value for name, value in inputs.items() if takes_any or name in parameters}
    if not taken:
        raise ValueError(
            f"expected inputs that {type(model).__name__}.forward({', '.join(parameters)}) takes, got "
            f"{', '.join(inputs)}; name them as the forward does, give them as a tuple in its order, or run the model "
            "with forward=lambda model, batch: model(batch.inputs)"
        )
    return model(**taken)


@contextmanager
def evaluation_mode(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Run in evaluation mode, without gradients, in full precision and without fused paths; undo all of it on leaving.

    Changes that the model makes to itself when it runs are undone too; see
    :func:`repdyn.capture.model_state.preserve_model_state`.

    Args:
        device: where the model computes.
    """
    fast_path = torch.backends.mha.get_fastpath_enabled()
    # nn.TransformerEncoder's fast path would hand hooks nested tensors, and compiled code would not call them at all.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            isolated_rng(),
            full_precision(device),
            torch.compiler.set_stance("force_eager"),
            preserve_model_state(model),
            _without_accelerate_autocast(model),
        ):
            model.eval()
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


@contextmanager
def _without_accelerate_autocast(model: nn.Module) -> Iterator[None]:
    """Restore the forward of an instance that accelerate has wrapped in autocast, which keeps it under another name."""
    attributes = vars(model)
    before = {"forward": attributes["forward"]} if {"_original_forward", "forward"} <= set(attributes) else {}
    attributes.update({name: attributes["_original_forward"] for name in before})
    try:
        yield
    finally:
        attributes.update(before)


def parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a model's forward; of the model inside where it passes everything on, as wrappers do."""
    parameters = inspect.signature(model.forward).parameters
    passes_on = all(p.kind in {p.VAR_KEYWORD, p.VAR_POSITIONAL} for p in parameters.values())
    inner = hugging_face_model(model) if passes_on else None
    return parameters if inner is None or inner is model else inspect.signature(inner.forward).parameters


@contextmanager
def frozen_outputs(blocks: Blocks) -> Iterator[Callable[[Iterable[ProbeBatch]], Iterator[ProbeBatch]]]:
    """Replay the outputs that the given blocks had for the first batch, for every batch after it.

    Yields:
        A function that the batches must be iterated through.
    """
    first: list[Any] = []
    replay: Iterator[Any] | None = None

    def each(batches: Iterable[ProbeBatch]) -> Iterator[ProbeBatch]:
        nonlocal replay
        for batch in batches:
            yield batch
            replay = iter(first)

    def record_or_replay(_module: nn.Module, _args: Any, output: Any) -> Any:
        if replay is None:
            first.append(output)
            return output
        return next(replay)

    with ExitStack() as hooks:
        for block in blocks:
            hooks.enter_context(block.module.register_forward_hook(record_or_replay))
        yield each
