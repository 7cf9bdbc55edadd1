"""Forward passes: any model run on tokens, and left as it was found."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import nn
from transformers import PreTrainedModel

from repdyn.blocks import Blocks
from repdyn.kernels import exact_arithmetic
from repdyn.probe import ProbeBatch

Forward: TypeAlias = Callable[[nn.Module, ProbeBatch], Any]


def call_with_tokens(model: nn.Module, batch: ProbeBatch) -> Any:
    """Call a model with ``input_ids``, ``attention_mask`` and ``use_cache=False``, as far as it takes them.

    Raises:
        ValueError: the batch has padding and the model's forward takes no ``attention_mask``.
    """
    parameters = inspect.signature(model.forward).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if not takes_any and "attention_mask" not in parameters and bool((batch.attention_mask == 0).any()):
        raise ValueError(
            f"expected a probe without padding, because {type(model).__name__}.forward takes no attention_mask; "
            "give sequences of one length, or say how to run the model with forward=lambda model, batch: ..."
        )
    if not takes_any and "input_ids" not in parameters:
        return model(batch.input_ids)
    offered = {"attention_mask": batch.attention_mask, "use_cache": False}
    return model(
        input_ids=batch.input_ids, **{name: value for name, value in offered.items() if takes_any or name in parameters}
    )


def device_of(model: nn.Module) -> torch.device:
    """Where the model takes its input: the device of its first parameter that has one.

    Parameters on the meta device are not there yet: accelerate fetches them from memory or disk as they are needed.
    """
    here = (parameter.device for parameter in model.parameters() if parameter.device.type != "meta")
    return next(here, torch.device("cpu"))


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, in full precision and without fused paths; all of it undone on leaving."""
    flags = [(module, module.training) for module in model.modules()]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    # nn.TransformerEncoder's fast path would hand hooks nested tensors, and compiled code would not call them at all.
    torch.backends.mha.set_fastpath_enabled(False)
    device = device_of(model)
    try:
        with isolate_rng(), torch.no_grad(), exact_arithmetic(device), torch.compiler.set_stance("force_eager"):
            model.eval()
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for module, training in flags:
            module.training = training


def smallest_with(blocks: Blocks, model: nn.Module) -> nn.Module:
    """A Hugging Face model without its head, whose logits nobody reads here, unless a measured block is in the head."""
    if not isinstance(model, PreTrainedModel):
        return model
    inside = set(model.base_model.modules())
    return model.base_model if all(block in inside for _, block in blocks) else model
