"""Checks that a model and a probe are what they are passed as, before anything is asked of them."""

from __future__ import annotations

from torch import Tensor, nn

from repdyn.probe import Probe


def check_model(model: object) -> None:
    """Raise TypeError unless a model is a module of torch."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"expected the model as a torch.nn.Module, got {type(model).__name__}; pass the module that is trained, "
            "and a function that calls it in a way of its own as forward="
        )


def check_probe(probe: object) -> None:
    """Raise TypeError unless a probe is one."""
    if isinstance(probe, Probe):
        return
    how = "Probe.from_tokens(tokens)" if isinstance(probe, Tensor | list) else "Probe.from_texts(texts, tokenizer)"
    raise TypeError(f"expected a repdyn.Probe, got {type(probe).__name__}; make one with {how}")
