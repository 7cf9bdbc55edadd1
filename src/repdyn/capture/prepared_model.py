"""A model prepared for a measurement: its blocks, its device and how it is run, resolved once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from repdyn.capture.blocks import Blocks, LayerPatterns, find_blocks, hugging_face_model, unwrapped
from repdyn.capture.forward import Forward, call_with_tokens, evaluation_mode
from repdyn.capture.fsdp import inside_fsdp_root, own_class
from repdyn.capture.library_classes import is_pretrained_model
from repdyn.capture.token_states import TokenPositions
from repdyn.probe import ProbeBatch
from repdyn.probe.inputs import moved


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedModel:
    """A model and everything that is needed to run it on a probe; made by :func:`prepare`."""

    module: nn.Module
    """The model without the wrappers of ``torch.compile``, DistributedDataParallel, DataParallel and FSDP."""
    root_module: nn.Module
    """The module that the model is a part of where that is sharded as a whole, or the model itself."""
    blocks: Blocks
    """The modules whose outputs are layers, stack after stack."""
    blocks_named: bool
    """Whether the caller named the blocks; found ones must pass states from one to the next."""
    device: torch.device
    forward: Forward | None
    token_positions: TokenPositions | None
    way: Callable[..., Any] = call_with_tokens
    """How the model is called where ``forward`` is None; see :func:`repdyn.capture.trial.choose_way`."""
    takes_inputs: bool = False
    """Whether it is run on a probe of inputs, rather than of tokens."""
    positions_first: bool = False
    """Whether its states of inputs have the positions in the first dimension, and the inputs in the second."""

    @property
    def stacks(self) -> list[str | None]:
        """The names of the stacks, (None,) in a model that has one."""
        return list(dict.fromkeys(block.stack for block in self.blocks))

    @property
    def pads_right(self) -> bool:
        """Return whether it is a Hugging Face model that itself pads sequences on the right.

        Longformer and similar ones do, to whole windows, blocks or chunks; ProphetNet adds predicting streams there.
        """
        classes = {type(module) for module in self.module.modules() if is_pretrained_model(module)}
        return any(
            c.__name__.startswith(("PegasusX", "ProphetNet")) or any(name.startswith("_pad_to_") for name in dir(c))
            for c in classes
        )

    @property
    def _precision(self) -> torch.dtype | None:
        """That of the first weights of floating type, which inputs are converted to."""
        dtypes = (parameter.dtype for parameter in self.module.parameters())
        return next((dtype for dtype in dtypes if dtype in {torch.float32, torch.float16, torch.bfloat16}), None)

    @contextmanager
    def evaluating(self) -> Iterator[Callable[[ProbeBatch], None]]:
        """Yield a function that runs the model on a batch, in evaluation mode and with FSDP's weights gathered.

        See :func:`repdyn.capture.forward.evaluation_mode`.
        """
        body = self.module if self.forward or self.takes_inputs else _without_head(self.blocks, self.module)
        call = self.forward or partial(self.way, logits=not _all_in_base(self.blocks, self.module))
        with evaluation_mode(self.module, self.device), inside_fsdp_root(self.root_module, body) as run:

            def run_batch(batch: ProbeBatch) -> None:
                ids, mask = batch.input_ids.to(self.device), batch.attention_mask.to(self.device)
                inputs = None if batch.inputs is None else moved(batch.inputs, self.device, self._precision)
                run(partial(call, body, replace(batch, input_ids=ids, attention_mask=mask, inputs=inputs)))

            yield run_batch


def prepare(
    model: nn.Module,
    layers: LayerPatterns = None,
    *,
    forward: Forward | None = None,
    token_positions: TokenPositions | None = None,
    root_module: nn.Module | None = None,
) -> PreparedModel:
    """Resolve once what every pass over a probe needs to know of a model.

    Args:
        model: a Hugging Face model or any module built of a list of blocks, wrapped or not.
        layers: name pattern of the blocks, ``*`` standing for one part of a dotted name ("model.layers.*"), or
            several; patterns by name of the stack where there are several stacks; None finds them. See
            :func:`repdyn.capture.blocks.find_blocks`.
        forward: ``forward(model, batch)`` runs the model on a :class:`repdyn.probe.ProbeBatch`; None calls it with
            ``input_ids`` and, where it takes one, ``attention_mask``; see
            :func:`repdyn.capture.forward.call_with_tokens`.
        token_positions: which positions of the states belong to tokens, in a model that adds learned vectors to the
            sequence; see :data:`repdyn.capture.token_states.TokenPositions`.
        root_module: the module that the model is a part of, where that is sharded as a whole; None for the model
            itself.

    Raises:
        ValueError: the blocks cannot be identified (the message lists the candidates), or a prompt-tuning adapter adds
            positions and ``token_positions`` is None.
    """
    root_module, model = model if root_module is None else root_module, unwrapped(model)
    check_no_prompt_tuning(model, token_positions)
    return PreparedModel(
        module=model,
        root_module=root_module,
        blocks=find_blocks(model, layers),
        blocks_named=layers is not None,
        device=device_of(model, root_module),
        forward=forward,
        token_positions=token_positions,
    )


def device_of(model: nn.Module, root_module: nn.Module | None = None) -> torch.device:
    """Return the device on which a model takes its input: that of its first parameter that has one.

    Parameters on the meta device are skipped: accelerate loads them from memory or disk as they are needed. A model
    without parameters of its own, FSDP having taken them over, takes those of ``root_module``.
    """
    for module in (model, root_module):
        for parameter in module.parameters() if module is not None else ():
            if parameter.device.type != "meta":
                return parameter.device
    return torch.device("cpu")


def check_no_prompt_tuning(model: nn.Module, token_positions: TokenPositions | None = None) -> None:
    """Reject an adapter that puts learned vectors before the tokens, unless ``token_positions`` leaves them out.

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
    """Return whether a module is a PeftModel whose adapter adds learned vectors before the tokens or their keys."""
    return getattr(getattr(module, "active_peft_config", None), "is_prompt_learning", False)


def _without_head(blocks: Blocks, model: nn.Module) -> nn.Module:
    """Return a Hugging Face model without its head, whose logits are not needed.

    The model itself where a measured block is in the head, and where its forward pass is not the library's own: in a
    class of the user's, or in a function or hooks attached to it.
    """
    if not is_pretrained_model(model) or not _all_in_base(blocks, model):
        return model
    return model.base_model if _has_library_forward(model) else model


def _all_in_base(blocks: Blocks, model: nn.Module) -> bool:
    """Return whether no block is in the head of a Hugging Face model, alone or wrapped; False for other models."""
    whole = hugging_face_model(model)
    inside = set(whole.base_model.modules()) if whole is not None else set()
    return all(block.module in inside for block in blocks)


def _has_library_forward(model: nn.Module) -> bool:
    hooks = (*model._forward_pre_hooks.values(), *model._forward_hooks.values())
    return (
        own_class(model).__module__.startswith("transformers.")
        # accelerate attaches its autocast and its loading of weights to an instance, which makes no difference here
        and ("forward" not in vars(model) or bool({"_original_forward", "_old_forward"} & set(vars(model))))
        and all(getattr(hook, "__module__", "").startswith("torch.distributed.") for hook in hooks)
    )
