"""How a model is loaded, the same for sweeps, studies and the explorer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Loading:
    """Settings for loading models.

    Args:
        device: device of the model; with a device map, device of its input.
        dtype: precision of the weights; "auto" keeps the published one. Kernels always compute in float32 and float64.
        device_map: "auto" spreads a model that is larger than the GPU over GPU, memory and disk with accelerate; or a
            device for each module.
        trust_remote_code: run Python code that comes with the model.
        attention: implementation of the attention, such as "eager" or "sdpa"; None for that of the configuration.
    """

    device: str = "cpu"
    dtype: str = "auto"
    device_map: str | Mapping[str, str] | None = None
    trust_remote_code: bool = False
    attention: str | None = None


def resolved_device(device: str) -> str:
    """Return the device that "auto" stands for on this machine; any other unchanged."""
    if device != "auto":
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str) -> None:
    """Raise ValueError unless this machine has the device."""
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        raise ValueError(
            f"expected an available device, such as cpu, cuda or cuda:1, got {device!r}: {str(error).splitlines()[0]}"
        ) from error
