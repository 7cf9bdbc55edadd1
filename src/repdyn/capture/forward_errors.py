"""What to do about a forward pass that fails in code of the model."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from repdyn.capture.blocks import hugging_face_model
from repdyn.capture.calls import accepted_by
from repdyn.capture.wrappers import class_name
from repdyn.probe import ProbeBatch

_VALUES = {
    "attention_mask": "batch.attention_mask",
    "mask": "my_mask(batch)",  # no mask of the padding, which has been tried
    "labels": "batch.input_ids",
    "targets": "batch.input_ids",
}
"""What is likely meant by arguments of a forward."""


class ForwardError(ValueError):
    """A forward pass that failed in code of the model, with what to do.

    Args:
        message: what was expected, what came, and what to do.
        longest: how many tokens the model can read, where that is known and less than it got.
    """

    def __init__(self, message: str, longest: int | None = None) -> None:
        super().__init__(message)
        self.longest = longest


def is_own(error: Exception) -> bool:
    """Return whether an error was raised by this package, whose messages say what to do, rather
    than by the model.
    """
    # operations of the model pass through a mode of this package
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.name != "__torch_function__"
    ]
    return Path(__file__).parent in Path(frames[-1].filename).resolve().parents if frames else False


def explained(
    model: nn.Module, batch: ProbeBatch, error: Exception, *, by_caller: bool = False
) -> ForwardError:
    """Return an error that says what to do about an error of a model's forward pass, which a
    function of the caller's has run, or this package.
    """
    longest = None
    if batch.inputs is None and not by_caller:
        longest = _longest_window(model, batch.input_ids, error)
    message = _explanation(model, batch, error, longest, by_caller=by_caller)
    return ForwardError(message, longest)


def _explanation(
    model: nn.Module, batch: ProbeBatch, error: Exception, longest: int | None, *, by_caller: bool
) -> str:
    name = class_name(model)
    shape = tuple(batch.input_ids.shape)
    failure = f"{type(error).__name__}: {error}"
    if {weight.device.type for weight in model.parameters()} == {"meta"}:
        return (
            f"expected weights that have values, got a {name} on the meta device: {failure}; load "
            "them first"
        )
    signature = f"({', '.join(accepted_by(model).parameters)})"
    if batch.inputs is not None:
        how = "forward= to run" if by_caller else "the inputs to run"
        return (
            f"expected {how} {name}.forward{signature}, got {failure}; name the inputs as the "
            "forward does, give them as a tuple in its order, or run the model with forward=lambda "
            "model, batch: model(batch.inputs)"
        )
    if by_caller:
        return f"expected forward= to run {name} on a ProbeBatch of shape {shape}, got {failure}"
    if longest is not None:
        return (
            f"expected windows of at most {longest} tokens, which {name} can read, got {shape[1]} "
            f"({failure}); make the probe with sequence_length={longest}, which from_dataset and "
            "from_texts take"
        )
    return (
        f"expected {name}.forward{signature} to run on token ids up to "
        f"{int(batch.input_ids.max())} of shape {shape}, got {failure}; where it takes something "
        f"else, say how to run it: forward={_example(model, error)}"
    )


def _longest_window(model: nn.Module, input_ids: Tensor, error: Exception) -> int | None:
    """Return how many tokens a model can read where that is less than it got."""
    whole = hugging_face_model(model)
    longest = None
    if whole is not None:
        longest = getattr(whole.config.get_text_config(), "max_position_embeddings", None)
    if longest is None and isinstance(error, IndexError):
        longest = _learned_positions(input_ids, error)
    return longest if isinstance(longest, int) and 0 < longest < input_ids.shape[1] else None


def _learned_positions(input_ids: Tensor, error: Exception) -> int | None:
    """Return how many positions have an embedding, where an error comes from a lookup in it; None
    where it comes from elsewhere, as from a lookup of the tokens.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        looked_up, weight = (frame.f_locals.get(name) for name in ("input", "weight"))
        if (
            frame.f_code is F.embedding.__code__
            and isinstance(looked_up, Tensor)
            and isinstance(weight, Tensor)
            and not _are_same_ids(looked_up, input_ids)
        ):
            return len(weight)
    return None


def _are_same_ids(ids: Tensor, others: Tensor) -> bool:
    return ids.shape == others.shape and bool((ids.cpu() == others.cpu()).all())


def _example(model: nn.Module, error: Exception) -> str:
    """Return a function for ``forward=`` as source, with a value for each argument that the forward
    requires.
    """
    parameters = accepted_by(model).parameters
    required = [
        p.name for p in parameters.values() if p.default is p.empty and p.kind < p.VAR_KEYWORD
    ]
    first, *others = required or ["input_ids"]
    if not others and isinstance(error, ValueError) and "to unpack" in str(error):
        # a batch of inputs and targets
        return "lambda model, batch: model((batch.input_ids, batch.input_ids))"
    if not others and first in {"batch", "inputs", "features", "sample"}:
        return (
            'lambda model, batch: model({"input_ids": batch.input_ids, "attention_mask": '
            "batch.attention_mask})"
        )
    values = [f"{name}={_VALUES.get(name, '...')}" for name in others]
    return f"lambda model, batch: model({', '.join(['batch.input_ids', *values])})"
