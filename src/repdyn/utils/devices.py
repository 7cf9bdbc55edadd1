"""Devices without float64, in which layers are measured and outputs compared."""

import torch
from torch import Tensor


def exact_device(device: torch.device) -> torch.device:
    """Return a device itself, or the CPU for one without float64: Apple's GPUs."""
    return torch.device("cpu") if device.type == "mps" else device


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, on its device or on the CPU."""
    return tensor.to(exact_device(tensor.device)).double()
