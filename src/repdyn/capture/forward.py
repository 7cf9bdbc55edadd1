"""Forward passes that leave a model unchanged: how it is called, and the settings of PyTorch that
it runs under.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from repdyn.capture.blocks import hugging_face_model, is_a, is_fsdp
from repdyn.capture.shadow import Shadow, address, variables_restored
from repdyn.kernels import full_precision
from repdyn.probe import ProbeBatch
from repdyn.utils.caller_state import defaults_of_model, isolated_rng, plain_state

T = TypeVar("T")
Forward: TypeAlias = Callable[[nn.Module, ProbeBatch], Any]


def call_with_tokens(model: nn.Module, batch: ProbeBatch, *, logits: bool = True) -> Any:
    """Call a model with ``input_ids``, ``attention_mask`` and ``use_cache=False``, as far as it
    takes them.

    The decoder of an encoder-decoder gets the tokens of its encoder: ``decoder_input_ids`` and,
    where it takes one, ``decoder_attention_mask``. Without ``logits``, it computes those of the
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


@contextmanager
def evaluating(
    model: nn.Module,
    device: torch.device,
    *,
    parameters: Mapping[str, Tensor] | None = None,
    onlookers: set[int] | None = None,
) -> Iterator[tuple[Shadow, Watch]]:
    """Yield a shadow of a model in evaluation mode, and run what is inside without gradients and in
    full precision.

    Raises:
        repdyn.capture.shadow.ShadowError: the model has none; see :func:`restoring`.
        RuntimeError: the weights were overwritten by code invisible to PyTorch.
    """
    with plain_state(), variables_restored(model) as (tensors, objects):
        shadow = Shadow(model, parameters=parameters, onlookers=onlookers, shared=objects)
        watch = Watch(device, shadow.module, [*shadow.shared, *tensors])
        dtype = next((p.dtype for p in shadow.module.parameters() if p.is_floating_point()), None)
        with settings(device), defaults_of_model(device, dtype), shadow.global_hooks(), watch:
            shadow.module.eval()  # in which LoRA layers may merge their weights
            yield shadow, watch


@contextmanager
def restoring(model: nn.Module, device: torch.device) -> Iterator[Watch]:
    """Run a model that has no shadow in evaluation mode, and restore on leaving what it changes in
    itself.

    These are its flags, submodules, weights and buffers, and attributes without a leading
    underscore, with what is in these lists, dictionaries, generators and objects; a new attribute
    persists. A weight that is replaced by another one, or whose ``data`` is, stays replaced: FSDP
    gathers weights in that way and accelerate loads them.

    Raises:
        RuntimeError: a weight or a buffer was overwritten by code invisible to PyTorch, and cannot
            be restored.
    """
    modules = []
    for module in model.modules():
        # Private attributes hold the state of wrappers such as FSDP, which must not be restored.
        public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        attributes = {
            name: value for name, value in public.items() if not isinstance(value, Tensor)
        }
        modules.append((module, module.training, attributes))
    held = [
        part for each, _, own in modules for part in (*own.values(), each._modules, each._buffers)
    ]
    try:
        with (
            plain_state(),
            settings(device),
            variables_restored(model, held) as (tensors, _),
            Watch(device, model, [*model.parameters(), *model.buffers(), *tensors]) as watch,
        ):
            if {"_original_forward", "forward"} <= vars(
                model
            ).keys():  # accelerate has wrapped it in autocast
                vars(model).update(forward=vars(model)["_original_forward"])
            model.eval()
            yield watch
    finally:
        for module, is_training, attributes in modules:
            vars(module).update(attributes)
            if module.training != is_training:  # of TorchScript it is no plain attribute
                module.training = is_training


@contextmanager
def settings(device: torch.device) -> Iterator[None]:
    """Set full precision and no fused paths, and restore all of it and the global generators on
    leaving.
    """
    fast_path = torch.backends.mha.get_fastpath_enabled()
    # nn.TransformerEncoder's fast path would hand hooks nested tensors, and compiled code would not
    # call them at all.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # a seed, so that noise that a model adds even in evaluation is the same in a training and
        # in a sweep
        with isolated_rng(seed=0), full_precision(device), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


class Watch(TorchFunctionMode):
    """A mode that copies tensors before they are overwritten, and notes autocast that a model
    enters itself.
    """

    def __init__(self, device: torch.device, model: nn.Module, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._model = model
        self._device_type = device.type if torch.amp.is_autocast_available(device.type) else None
        self._versions: list[tuple[Tensor, int]] = []
        self._by_address: dict[int, list[Tensor]] = {}
        for tensor in tensors:
            if not tensor.is_inference():  # such a tensor refuses to be written to
                self._versions.append((tensor, tensor._version))
                if tensor.device.type != "meta":
                    self._by_address.setdefault(address(tensor), []).append(tensor)
        self._saved: dict[int, list[Tensor]] = {}
        self.autocast: torch.dtype | None = None
        """The precision of autocast; None while none has been met."""
        self._is_resting = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, kind, name = kwargs or {}, self._device_type, getattr(func, "__name__", "")
        if kind is not None and self.autocast is None and torch.is_autocast_enabled(kind):
            self.autocast = torch.get_autocast_dtype(kind)
        written = [kwargs["out"]] if "out" in kwargs else []
        if name in _SETTERS or (name.endswith("_") and not name.endswith("__")):
            written += [*args, *kwargs.values()][:1]
        elif name in _UPDATING and kwargs.get(_UPDATING[name]) not in (None, False):
            written += [*args, *kwargs.values()]
        for value in written:
            for part in value if isinstance(value, list | tuple) else [value]:
                found = address(part) if isinstance(part, Tensor) else None
                if found in self._by_address and found not in self._saved:
                    self._saved[found] = [
                        tensor.detach().clone() for tensor in self._by_address[found]
                    ]
        return func(*args, **kwargs)

    def rest_after_first_pass(self, body: nn.Module) -> None:
        """See no more operations, each of which costs a call of Python, where all code is of torch
        and transformers.

        Their modules overwrite no weight in a later pass that they left alone in the first; a
        user's own may.
        """
        is_plain = not self._is_resting and all(
            type(each).__module__.startswith(_PACKAGES)
            and not ("forward" in vars(each) or each._forward_hooks or each._forward_pre_hooks)
            for each in body.modules()
        )
        if is_plain:
            super().__exit__(None, None, None)
            self._is_resting = True

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Restore what was overwritten; raise RuntimeError where something was that was
        not seen.
        """
        if not self._is_resting:
            super().__exit__(kind, error, trace)
        with torch.no_grad():
            for found, copies in self._saved.items():
                for tensor, before in zip(self._by_address[found], copies, strict=True):
                    tensor.copy_(before)
        written = {
            address(t) for t, version in self._versions if t._version != version
        } - self._saved.keys()
        if written and kind is None:
            named = [*self._model.named_parameters(), *self._model.named_buffers()]
            lost = next((name for name, tensor in named if address(tensor) in written), "a tensor")
            raise RuntimeError(
                "expected a forward pass that does not change the weights, but it overwrote "
                f"{lost!r}, which cannot be restored; measure a copy of the model, "
                "copy.deepcopy(model)"
            )


_PACKAGES = ("torch.nn.", "transformers.")
_SETTERS = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"}
"""Operations that write to their first argument, beside those whose names end with an underscore.
"""
_UPDATING = {
    "batch_norm": "training",
    "instance_norm": "use_input_stats",
    "embedding": "max_norm",
    "embedding_bag": "max_norm",
}
"""Operations that update some of their arguments internally, invisibly to a mode, and the argument
that says so.
"""


@contextmanager
def inside_fsdp_root(
    root_module: nn.Module, body: nn.Module
) -> Iterator[Callable[[Callable[[], T]], T]]:
    """Yield a function that calls another one inside the outermost sharded module, with the weights
    gathered.

    FSDP needs each forward pass to begin there: the module called first becomes the root that
    gathers the weights. Where nothing is sharded it is a plain call.
    """
    outer = next(
        (
            m
            for m in root_module.modules()
            if is_fsdp(m) and any(body is inner for inner in m.modules())
        ),
        None,
    )
    try:
        if outer is None or outer is body:
            yield lambda function: function()
        else:
            yield partial(_inside, outer)
    finally:
        # A root would wait for the backward pass, which never comes. A forward pass that failed
        # leaves a module in the state of running it, where it would not reshard, and the next
        # training step would run on stale weights.
        for module in [each for each in root_module.modules() if is_a(each, "torch.FSDPModule")]:
            state: Any = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None) or [
                getattr(state, "_fsdp_param_group", None)
            ]
            for part in filter(None, (state, *groups)):
                part._training_state = type(part._training_state).IDLE
            module.reshard()


def _inside(outer: nn.Module, function: Callable[[], T]) -> T:
    wrapped = outer.module if is_a(outer, "torch.FullyShardedDataParallel") else outer
    own = {
        name: value for name, value in vars(wrapped).items() if name == "forward"
    }  # accelerate's, under autocast
    outcome: list[T] = []

    def forward() -> None:
        restore()  # the function may call this very module
        # its result bypasses the wrapper, which would search it for tensors
        outcome.append(function())

    def restore() -> None:
        vars(wrapped).pop("forward", None)
        vars(wrapped).update(own)

    wrapped.forward = forward
    try:
        outer()
    finally:
        restore()
    return outcome.pop()
