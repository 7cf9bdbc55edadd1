"""Forward passes that leave a model unchanged: how it is called, and the settings of PyTorch that it runs under."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from repdyn.capture.blocks import hugging_face_model
from repdyn.capture.shadow import Learned, Shadow, address, variables_restored
from repdyn.kernels import full_precision
from repdyn.probe import ProbeBatch
from repdyn.utils.caller_state import defaults_of_model, isolated_rng, plain_state

Forward: TypeAlias = Callable[[nn.Module, ProbeBatch], Any]

_OVERWRITTEN = (
    "expected a forward pass that does not change the weights, but it overwrote {!r}, which cannot be restored; "
    "measure a copy of the model, copy.deepcopy(model)"
)


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


def parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a model's forward; of the model inside where it passes everything on, as wrappers do."""
    parameters = inspect.signature(model.forward).parameters
    passes_on = all(p.kind in {p.VAR_KEYWORD, p.VAR_POSITIONAL} for p in parameters.values())
    inner = hugging_face_model(model) if passes_on else None
    return parameters if inner is None or inner is model else inspect.signature(inner.forward).parameters


@contextmanager
def evaluating(
    model: nn.Module,
    device: torch.device,
    *,
    parameters: Mapping[str, Tensor] | None = None,
    learned: Learned | None = None,
) -> Iterator[Shadow]:
    """Yield a shadow of a model in evaluation mode, and run what is inside without gradients and in full precision.

    Args:
        device: where the model computes.
        parameters: in place of the model's own, as for :class:`repdyn.capture.shadow.Shadow`.
        learned: what a former pass has shown; where it is not complete, this one is watched, and completes it.

    Raises:
        repdyn.capture.shadow.NoShadow: the model has none; see :func:`restoring`.
        RuntimeError: the weights were overwritten by code invisible to PyTorch.
    """
    with plain_state():
        shadow = Shadow(model, parameters=parameters, learned=learned)
        shadow.module.eval()
        watch = nullcontext() if shadow.learned.is_complete else Watch(device, shadow.shared)
        dtype = next((p.dtype for p in shadow.module.parameters() if p.is_floating_point()), None)
        try:
            with (
                settings(device),
                defaults_of_model(device, dtype),
                shadow.global_hooks(),
                variables_restored(model),
                watch,
            ):
                yield shadow
        finally:
            if isinstance(watch, Watch):
                watch.restore()
                shadow.learned.written |= set(watch.saved)
                shadow.learned.autocast = watch.autocast
                shadow.learned.is_complete = True
            elif lost := shadow.overwritten():
                raise RuntimeError(_OVERWRITTEN.format(lost[0]))


@contextmanager
def restoring(model: nn.Module, device: torch.device) -> Iterator[Watch]:
    """Run a model that has no shadow in evaluation mode, and restore on leaving what it changes in itself.

    These are its flags, submodules, weights and buffers, and plain attributes: numbers, strings and None under names
    without a leading underscore; changes inside a list or a dictionary persist, and so does a new attribute. Weights
    and buffers are copied only when an operation is about to overwrite them. A weight that is replaced by another one,
    or whose ``data`` is, stays replaced: FSDP gathers weights in that way and accelerate loads them.

    Raises:
        RuntimeError: a weight or a buffer was overwritten by code invisible to PyTorch, and cannot be restored.
    """
    modules = [(m, m.training, _plain_attributes(m), _members(m)) for m in model.modules()]
    tensors = {n: t for n, t in [*model.named_parameters(), *model.named_buffers()] if not t.is_inference()}
    versions = {name: tensor._version for name, tensor in tensors.items()}
    by_address: dict[int, list[Tensor]] = {}
    for tensor in tensors.values():
        if tensor.device.type != "meta":
            by_address.setdefault(address(tensor), []).append(tensor)
    watch = Watch(device, by_address)
    try:
        with plain_state(), settings(device), variables_restored(model), _without_accelerate_autocast(model), watch:
            model.eval()
            yield watch
    finally:
        watch.restore()
        for module, is_training, attributes, members in modules:
            _restore(module, attributes, members)
            if module.training != is_training:  # of TorchScript it is no plain attribute
                module.training = is_training
    lost = [n for n, t in tensors.items() if t._version != versions[n] and address(t) not in watch.saved]
    if lost:
        raise RuntimeError(_OVERWRITTEN.format(lost[0]))


@contextmanager
def settings(device: torch.device) -> Iterator[None]:
    """Set full precision and no fused paths, and restore all of it and the global generators on leaving."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    # nn.TransformerEncoder's fast path would hand hooks nested tensors, and compiled code would not call them at all.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with isolated_rng(), full_precision(device), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


class Watch(TorchFunctionMode):
    """A mode that copies tensors before they are overwritten, and notes autocast that a model enters itself.

    Args:
        device: where the model computes.
        tensors: those to copy, by the address of their memory.
    """

    def __init__(self, device: torch.device, tensors: Mapping[int, list[Tensor]]) -> None:
        super().__init__()
        self._tensors = tensors
        self._device_type = device.type if torch.amp.is_autocast_available(device.type) else None
        self.autocast: torch.dtype | None = None
        """The precision of autocast; None while none has been met."""
        self.saved: dict[int, list[Tensor]] = {}
        """Copies by address."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, kind = kwargs or {}, self._device_type
        if kind is not None and self.autocast is None and torch.is_autocast_enabled(kind):
            self.autocast = torch.get_autocast_dtype(kind)
        for target in _targets(func, args, kwargs):
            found = address(target)
            if found in self._tensors and found not in self.saved:
                self.saved[found] = [tensor.detach().clone() for tensor in self._tensors[found]]
        return func(*args, **kwargs)

    def restore(self) -> None:
        with torch.no_grad():
            for found, copies in self.saved.items():
                for tensor, before in zip(self._tensors[found], copies, strict=True):
                    tensor.copy_(before)


_SETTERS = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"}


def _targets(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Yield the tensors that a call may write to: the first argument of an in-place one, tensor or list; ``out``."""
    name = getattr(func, "__name__", "")
    values = [*args, *kwargs.values()]
    if name in _SETTERS or (name.endswith("_") and not name.endswith("__")):
        yield from _tensors_in(values[:1])
    elif _updates_arguments(name, kwargs):
        yield from _tensors_in(values)
    yield from _tensors_in([kwargs.get("out")])


def _updates_arguments(name: str, kwargs: Any) -> bool:
    """Return whether a function updates its arguments internally, invisibly to the mode."""
    if name in {"batch_norm", "instance_norm"}:
        return bool(kwargs.get("training") or kwargs.get("use_input_stats"))
    return name in {"embedding", "embedding_bag"} and kwargs.get("max_norm") is not None


def _tensors_in(values: list[Any]) -> Iterator[Tensor]:
    for value in values:
        parts = value if isinstance(value, list | tuple) else [value]
        yield from (part for part in parts if isinstance(part, Tensor))


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    # Private ones hold the state of wrappers such as FSDP, which must not be restored.
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and isinstance(value, bool | int | float | str | None)
    }


def _members(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    return dict(module._modules), dict(module._buffers)


def _restore(module: nn.Module, attributes: dict[str, Any], members: tuple[dict[str, Any], dict[str, Any]]) -> None:
    for name, value in attributes.items():
        if vars(module).get(name) is not value:
            vars(module)[name] = value
    for now, before in zip((module._modules, module._buffers), members, strict=True):
        if len(now) != len(before) or any(now.get(name) is not member for name, member in before.items()):
            now.clear()
            now.update(before)


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
