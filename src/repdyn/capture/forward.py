"""Forward passes: any model run on tokens, and left as it was found."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import nn
from transformers import PreTrainedModel

from repdyn.capture.blocks import Blocks, hugging_face_model
from repdyn.capture.fsdp import own_class
from repdyn.capture.model_state import preserve_model_state
from repdyn.capture.token_states import TokenPositions
from repdyn.kernels import full_precision
from repdyn.probe import ProbeBatch

Forward: TypeAlias = Callable[[nn.Module, ProbeBatch], Any]


def call_with_tokens(model: nn.Module, batch: ProbeBatch, *, logits: bool = True) -> Any:
    """Call a model with ``input_ids``, ``attention_mask`` and ``use_cache=False``, as far as it takes them.

    An encoder-decoder's decoder is given the tokens of its encoder: ``decoder_input_ids`` and, where it takes one,
    ``decoder_attention_mask``.

    Args:
        logits: False where nobody reads them: of the last position alone, where the model can leave out the others.

    Raises:
        ValueError: the batch has padding and the model's forward takes no ``attention_mask``.
    """
    parameters = _parameters(model)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if not takes_any and "attention_mask" not in parameters and bool((batch.attention_mask == 0).any()):
        raise ValueError(
            f"expected a probe without padding, because {type(model).__name__}.forward takes no attention_mask; "
            "give sequences of one length, or say how to run the model with forward=lambda model, batch: ..."
        )
    offered = {"attention_mask": batch.attention_mask, "use_cache": False}
    arguments = {name: value for name, value in offered.items() if takes_any or name in parameters}
    if not logits and "logits_to_keep" in parameters:
        arguments["logits_to_keep"] = 1
    if "decoder_input_ids" in parameters:
        offered = {"decoder_input_ids": batch.input_ids, "decoder_attention_mask": batch.attention_mask}
        arguments |= {name: value for name, value in offered.items() if name in parameters}
    first = next(iter(parameters.values()))
    if "input_ids" not in parameters and first.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return model(batch.input_ids, **arguments)
    return model(input_ids=batch.input_ids, **arguments)


def device_of(model: nn.Module, root_module: nn.Module | None = None) -> torch.device:
    """Where the model takes its input: the device of its first parameter that has one.

    Parameters on the meta device are not there yet: accelerate fetches them from memory or disk as they are needed.
    What the model is ``within`` is asked where it has none itself, FSDP having taken them over.
    """
    for module in (model, root_module):
        for parameter in module.parameters() if module is not None else ():
            if parameter.device.type != "meta":
                return parameter.device
    return torch.device("cpu")


@contextmanager
def evaluation_mode(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Evaluation mode without gradients, in full precision and without fused paths; all of it undone on leaving.

    What the model changes of itself when it runs is undone too; see
    :func:`repdyn.capture.model_state.preserve_model_state`.

    Args:
        device: where the model computes.
    """
    fast_path = torch.backends.mha.get_fastpath_enabled()
    # nn.TransformerEncoder's fast path would hand hooks nested tensors, and compiled code would not call them at all.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            isolate_rng(),
            full_precision(device),
            torch.compiler.set_stance("force_eager"),
            preserve_model_state(model),
            _without_accelerates_autocast(model),
        ):
            model.eval()
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


@contextmanager
def _without_accelerates_autocast(model: nn.Module) -> Iterator[None]:
    """accelerate turns autocast on within the forward pass of an instance, and keeps what was there under a name."""
    own = vars(model)
    before = {"forward": own["forward"]} if "_original_forward" in own and "forward" in own else {}
    own.update({name: own["_original_forward"] for name in before})
    try:
        yield
    finally:
        own.update(before)


def smallest_with(blocks: Blocks, model: nn.Module) -> nn.Module:
    """A Hugging Face model without its head, whose logits nobody reads here.

    The model itself where a measured block is in the head, and where its own forward pass is not the library's: in a
    class of the user's, in a function or in hooks put upon it.
    """
    if not isinstance(model, PreTrainedModel) or not all_in_base(blocks, model):
        return model
    return model.base_model if _runs_as_the_library_does(model) else model


def all_in_base(blocks: Blocks, model: nn.Module) -> bool:
    """Whether no block is in the head of a Hugging Face model, alone or wrapped; False for any other model."""
    whole = hugging_face_model(model)
    inside = set(whole.base_model.modules()) if whole is not None else set()
    return all(block.module in inside for block in blocks)


def _runs_as_the_library_does(model: nn.Module) -> bool:
    hooks = (*model._forward_pre_hooks.values(), *model._forward_hooks.values())
    return (
        own_class(model).__module__.startswith("transformers.")
        # accelerate puts its autocast and its moving of weights upon an instance, which change nothing here
        and ("forward" not in vars(model) or bool({"_original_forward", "_old_forward"} & set(vars(model))))
        and all(getattr(hook, "__module__", "").startswith("torch.distributed.") for hook in hooks)
    )


def _parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """What a model's forward takes; where it passes everything on, as wrappers do, what the model inside takes."""
    parameters = inspect.signature(model.forward).parameters
    passes_on = all(p.kind in {p.VAR_KEYWORD, p.VAR_POSITIONAL} for p in parameters.values())
    inner = hugging_face_model(model) if passes_on else None
    return parameters if inner is None or inner is model else inspect.signature(inner.forward).parameters


def pads_right(model: nn.Module) -> bool:
    """Whether a Hugging Face model lengthens sequences by itself, on the right.

    Longformer and its like do, to whole windows, blocks or chunks; ProphetNet puts its predicting streams there.
    """
    classes = {type(module) for module in model.modules() if isinstance(module, PreTrainedModel)}
    return any(
        c.__name__.startswith(("PegasusX", "ProphetNet")) or any(name.startswith("_pad_to_") for name in dir(c))
        for c in classes
    )


def check_no_prompt_tuning(model: nn.Module, token_positions: TokenPositions | None = None) -> None:
    """Refuse an adapter that puts learned vectors before the tokens: its states are not one for each token.

    Args:
        token_positions: which positions are the tokens'; where it is given nothing is refused.

    Raises:
        ValueError: the model is, or holds, a PeftModel with such an adapter.
    """
    if token_positions is not None:
        return
    for module in filter(has_prompt, model.modules()):
        config: Any = module.active_peft_config
        if config.peft_type != "PREFIX_TUNING":
            raise ValueError(
                f"expected states of the probe's tokens alone, but the active adapter of this {type(module).__name__} "
                f"({config.peft_type.value}) puts {config.num_virtual_tokens} learned vectors before them; measure the "
                "model without its prompt, model.get_base_model(), or leave their positions out with "
                f"token_positions=slice({config.num_virtual_tokens}, None)"
            )


def has_prompt(module: nn.Module) -> bool:
    """Whether a module is a PeftModel whose adapter puts learned vectors before the tokens, or before their keys."""
    return getattr(getattr(module, "active_peft_config", None), "is_prompt_learning", False)


@contextmanager
def held(blocks: Blocks) -> Iterator[Callable[[Iterable[ProbeBatch]], Iterator[ProbeBatch]]]:
    """Give out of the given blocks, for every batch after the first, what they gave out for the first."""
    first: list[Any] = []
    replay: Iterator[Any] | None = None

    def hold(batches: Iterable[ProbeBatch]) -> Iterator[ProbeBatch]:
        nonlocal replay
        for batch in batches:
            yield batch
            replay = iter(first)

    def keep_or_replace(_module: nn.Module, _args: Any, output: Any) -> Any:
        if replay is None:
            first.append(output)
            return output
        return next(replay)

    handles = [block.module.register_forward_hook(keep_or_replace) for block in blocks]
    try:
        yield hold
    finally:
        for handle in handles:
            handle.remove()
