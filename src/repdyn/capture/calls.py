"""How a model is called on a batch of a probe."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from repdyn.capture.blocks import hugging_face_model
from repdyn.probe import ProbeBatch

Forward: TypeAlias = Callable[[nn.Module, ProbeBatch], Any]
Call: TypeAlias = Callable[..., Any]
"""Calls a model, or a part of it, with a batch; ``logits`` says whether they are needed."""
TARGETS = frozenset(
    {"decoder_input", "prev_output_tokens", "target", "target_ids", "targets", "tgt", "trg"}
)
"""Names of a second sequence of tokens, by which a forward without a default asks for it."""
LENGTHS = frozenset({"input_lengths", "lengths", "seq_lengths", "seq_lens", "src_lengths"})
"""Names of the numbers of tokens in each row, where a forward requires them."""
PADDING_MASKS = ("key_padding_mask", "src_key_padding_mask", "padding_mask", "pad_mask")
"""Names of masks that are of the padding alone."""
MASK = "mask"
"""Name of a mask of the padding where a forward requires it; of another, it may be of what each
position sees."""


def as_batch(ids: Tensor) -> ProbeBatch:
    """Return whole sequences of token ids, (n_sequences, length), as a batch."""
    numbers = np.arange(ids.numel())
    return ProbeBatch(
        input_ids=ids, attention_mask=torch.ones_like(ids), positions=numbers, tokens=numbers
    )


def call_with_tokens(
    model: nn.Module,
    batch: ProbeBatch,
    *,
    logits: bool = True,
    mask_by_name: Mapping[str, Tensor] | None = None,
) -> Any:
    """Call a model with ``input_ids``, ``attention_mask`` and ``use_cache=False``, as far as it
    takes them.

    The decoder of an encoder-decoder gets the tokens of its encoder: ``decoder_input_ids`` and,
    where it takes one, ``decoder_attention_mask``; so do targets that a forward requires
    (:data:`TARGETS`), and :data:`LENGTHS` are those of the rows. Without ``logits``, it computes
    those of the last position alone, where it can. ``mask_by_name`` is the mask of a forward that
    calls it otherwise.
    """
    accepted = accepted_by(model)
    parameters, takes_any, required = accepted
    takes_mask = takes_any or "attention_mask" in parameters
    if not (takes_mask or mask_by_name) and bool((batch.attention_mask == 0).any()):
        raise ValueError(
            f"expected a probe without padding, because {type(model).__name__}.forward takes no "
            "attention_mask; use sequences of one length, as Probe.from_dataset(data, "
            "equal_lengths=True) cuts them, or run the model with forward=lambda model, batch: ..."
        )
    arguments: dict[str, Any] = {}
    if takes_mask:
        arguments["attention_mask"] = batch.attention_mask
    if takes_any or "use_cache" in parameters:
        arguments["use_cache"] = False
    if not logits and "logits_to_keep" in parameters:
        arguments["logits_to_keep"] = 1
    arguments |= _required_arguments(batch, required)
    if "decoder_input_ids" in parameters:
        arguments["decoder_input_ids"] = batch.input_ids
        if "decoder_attention_mask" in parameters:
            arguments["decoder_attention_mask"] = batch.attention_mask
    arguments |= mask_by_name or {}
    keyword = _keyword_of_ids(accepted, arguments)
    if keyword is None:
        return model(batch.input_ids, **arguments)
    return model(**{keyword: batch.input_ids}, **arguments)


def _keyword_of_ids(accepted: Accepted, arguments: Collection[str]) -> str | None:
    """Return the keyword by which a forward takes the token ids, beside the other arguments; None
    where it takes them by position.
    """
    parameters = accepted.parameters
    if "input_ids" in parameters:
        return "input_ids"
    first = next(iter(parameters.values()))
    if first.kind is first.POSITIONAL_OR_KEYWORD:
        return None
    lacking = [name for name in accepted.required if name not in arguments]
    if len(lacking) == 1 and parameters[lacking[0]].kind is first.KEYWORD_ONLY:
        return lacking[0]
    return "input_ids"


def _required_arguments(batch: ProbeBatch, required: Collection[str]) -> dict[str, Any]:
    """Return what a forward requires beside the tokens and can be told from them."""
    ids = batch.input_ids
    arguments: dict[str, Any] = dict.fromkeys(TARGETS.intersection(required), ids)
    for name in LENGTHS.intersection(required):
        arguments[name] = batch.attention_mask.sum(1)
    if "token_type_ids" in required:
        arguments["token_type_ids"] = torch.zeros_like(ids)
    if "position_ids" in required:
        arguments["position_ids"] = torch.arange(ids.shape[1]).expand_as(ids).to(ids)
    return arguments


@dataclass(frozen=True)
class MaskedCall:
    """Calls a model with the tokens and with a mask that its forward has a name of its own for."""

    name: str
    marks_tokens: bool
    """Whether the mask is True at tokens, rather than at the padding."""
    dtype: torch.dtype

    def __call__(self, model: nn.Module, batch: ProbeBatch, *, logits: bool = True) -> Any:
        is_token = batch.attention_mask.bool()
        mask = is_token if self.marks_tokens else ~is_token
        mask_by_name = {self.name: mask.to(self.dtype)}
        return call_with_tokens(model, batch, logits=logits, mask_by_name=mask_by_name)


def ways_to_call(model: nn.Module) -> list[Call]:
    """Return the ways in which a forward that no library defines may take tokens, in the order in
    which a trial goes through them.

    With a mask of another name than ``attention_mask`` these begin with what may be meant by it:
    nobody but a trial can tell what is True in it.
    """
    calls: list[Call] = []
    mask = _mask_of(model)
    if mask is not None:
        calls += [
            MaskedCall(mask, marks_tokens=True, dtype=torch.bool),
            MaskedCall(mask, marks_tokens=False, dtype=torch.bool),
            MaskedCall(mask, marks_tokens=True, dtype=torch.int64),
        ]
    calls.append(call_with_tokens)
    parameters, takes_any, _ = accepted_by(model)
    required = [
        p
        for p in parameters.values()
        if p.default is p.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}
    ]
    is_one_of_any_type = (
        len(required) == 1
        and "Tensor" not in str(required[0].annotation)
        and required[0].name != "input_ids"
    )
    if is_one_of_any_type or takes_any:
        calls += [call_with_ids, call_with_dict]
    return calls


def takes_padding(model: nn.Module) -> bool:
    """Return whether a forward can be told of padding: it takes a mask, or any keyword."""
    parameters, takes_any, _ = accepted_by(model)
    return takes_any or "attention_mask" in parameters or _mask_of(model) is not None


def _mask_of(model: nn.Module) -> str | None:
    """Return the name of the mask of the padding that a forward takes instead of
    ``attention_mask``; None without one."""
    parameters = accepted_by(model).parameters
    if "attention_mask" in parameters:
        return None
    if MASK in parameters and parameters[MASK].default is inspect.Parameter.empty:
        return MASK
    return next((name for name in PADDING_MASKS if name in parameters), None)


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
    parameters, takes_any, _ = accepted_by(model)
    taken = {name: value for name, value in inputs.items() if takes_any or name in parameters}
    if not taken:
        raise ValueError(
            f"expected inputs that {type(model).__name__}.forward({', '.join(parameters)}) takes, "
            f"got {', '.join(inputs)}; name them as the forward does, give them as a tuple in its "
            "order, or run the model with forward=lambda model, batch: model(batch.inputs)"
        )
    return model(**taken)


class Accepted(NamedTuple):
    """The parameters of a model's forward."""

    parameters: Mapping[str, inspect.Parameter]
    takes_any: bool
    """Whether it takes any keyword."""
    required: frozenset[str]
    """The names of those without a default."""


def accepted_by(model: nn.Module) -> Accepted:
    """Return what a model's forward takes; that of the model inside where it passes everything on,
    as wrappers do.
    """
    of_instance = vars(model).get("forward")
    # as it is written: a static method has no self to leave out
    of_class = inspect.getattr_static(type(model), "forward", None)
    if of_instance is None and isinstance(of_class, FunctionType):
        accepted = _accepted_by_method(of_class)
    else:
        accepted = _accepted(inspect.signature(model.forward).parameters.values())
    kinds = {parameter.kind for parameter in accepted.parameters.values()}
    if kinds <= {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}:
        inner = hugging_face_model(model)
        if inner is not None and inner is not model:
            return accepted_by(inner)
    return accepted


@cache
def _accepted_by_method(method: FunctionType) -> Accepted:
    parameters = list(inspect.signature(method).parameters.values())
    # a decorator's wrapper may have self among its *args
    has_self = bool(parameters) and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL
    return _accepted(parameters[1:] if has_self else parameters)


def _accepted(parameters: Iterable[inspect.Parameter]) -> Accepted:
    by_name = {parameter.name: parameter for parameter in parameters}
    return Accepted(
        parameters=by_name,
        takes_any=any(p.kind is p.VAR_KEYWORD for p in by_name.values()),
        required=frozenset(name for name, p in by_name.items() if p.default is p.empty),
    )
