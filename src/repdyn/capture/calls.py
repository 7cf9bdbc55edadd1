"""How a model is called on a batch of a probe."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from repdyn.capture.blocks import hugging_face_model
from repdyn.probe import ProbeBatch

Forward: TypeAlias = Callable[[nn.Module, ProbeBatch], Any]
TARGETS = frozenset({"decoder_input", "target", "target_ids", "targets", "tgt", "trg"})
"""Names of a second sequence of tokens, by which a forward without a default asks for it."""


def call_with_tokens(model: nn.Module, batch: ProbeBatch, *, logits: bool = True) -> Any:
    """Call a model with ``input_ids``, ``attention_mask`` and ``use_cache=False``, as far as it
    takes them.

    The decoder of an encoder-decoder gets the tokens of its encoder: ``decoder_input_ids`` and,
    where it takes one, ``decoder_attention_mask``; so do targets that a forward requires
    (:data:`TARGETS`). Without ``logits``, it computes those of the
    last position alone, where it can.
    """
    parameters = parameters_of(model)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if (
        not takes_any
        and "attention_mask" not in parameters
        and bool((batch.attention_mask == 0).any())
    ):
        raise ValueError(
            f"expected a probe without padding, because {type(model).__name__}.forward takes no "
            "attention_mask; use sequences of one length, or run the model with forward=lambda "
            "model, batch: ..."
        )
    ids, mask = batch.input_ids, batch.attention_mask
    arguments = {"attention_mask": mask, "use_cache": False}
    offered: dict[str, Any] = {} if logits else {"logits_to_keep": 1}
    required = {name for name, p in parameters.items() if p.default is p.empty}
    if "token_type_ids" in required:
        offered["token_type_ids"] = torch.zeros_like(ids)
    if "position_ids" in required:
        offered["position_ids"] = torch.arange(ids.shape[1]).expand_as(ids).to(ids)
    offered |= dict.fromkeys(required & TARGETS, ids)
    if "decoder_input_ids" in parameters:
        offered |= {"decoder_input_ids": ids, "decoder_attention_mask": mask}
    arguments = {
        name: value for name, value in arguments.items() if takes_any or name in parameters
    }
    arguments |= {name: value for name, value in offered.items() if name in parameters}
    first = next(iter(parameters.values()))
    if "input_ids" not in parameters and first.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return model(ids, **arguments)
    name = (
        first.name
        if "input_ids" not in parameters and first.kind is first.KEYWORD_ONLY
        else "input_ids"
    )
    return model(**{name: ids}, **arguments)


def call_with_ids(model: nn.Module, batch: ProbeBatch, *, logits: bool = True) -> Any:
    """Call a model with the token ids alone, which say everything where the batch has no
    padding.
    """
    if bool((batch.attention_mask == 0).any()):
        raise ValueError(
            "expected a batch without padding, since the model gets no attention_mask, got one "
            "with it"
        )
    return model(batch.input_ids)


def call_with_dict(model: nn.Module, batch: ProbeBatch, *, logits: bool = True) -> Any:
    """Call a model with one dictionary of ``input_ids`` and ``attention_mask``."""
    return model({"input_ids": batch.input_ids, "attention_mask": batch.attention_mask})


def call_with_inputs(model: nn.Module, batch: ProbeBatch, *, logits: bool = True) -> Any:
    """Call a model with the inputs of a batch: in their order, or those by name that its forward
    takes.
    """
    inputs = batch.inputs
    if not isinstance(inputs, Mapping):
        return model(*(inputs or ()))
    parameters = parameters_of(model)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    taken = {name: value for name, value in inputs.items() if takes_any or name in parameters}
    if not taken:
        raise ValueError(
            f"expected inputs that {type(model).__name__}.forward({', '.join(parameters)}) takes, "
            f"got {', '.join(inputs)}; name them as the forward does, give them as a tuple in its "
            "order, or run the model with forward=lambda model, batch: model(batch.inputs)"
        )
    return model(**taken)


def parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a model's forward; of the model inside where it passes everything
    on, as wrappers do.
    """
    parameters = inspect.signature(model.forward).parameters
    passes_on = all(p.kind in {p.VAR_KEYWORD, p.VAR_POSITIONAL} for p in parameters.values())
    inner = hugging_face_model(model) if passes_on else None
    return (
        parameters
        if inner is None or inner is model
        else inspect.signature(inner.forward).parameters
    )
