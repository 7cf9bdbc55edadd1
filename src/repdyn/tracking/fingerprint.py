"""Whether two models have the same weights, told from a sample of them."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_PER_TENSOR = 64


def fingerprint(model: nn.Module) -> str:
    """16 hexadecimal digits of up to 64 evenly spread values of each weight; of a sharded model, of this rank's part.

    Two steps of one training differ in it, unless every change missed the sample. Weights that do not show their
    values, such as some quantised or not yet loaded ones, are left out.
    """
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode())
        digest.update(_sample(parameter.detach()).numpy().tobytes())
    return digest.hexdigest()[:16]


def _sample(weight: Tensor) -> Tensor:
    here = weight.to_local() if isinstance(weight, DTensor) else weight
    if here.device.type == "meta":
        return torch.empty(0)
    try:
        return here.flatten()[:: max(1, here.numel() // _PER_TENSOR)][:_PER_TENSOR].double().cpu()
    except (NotImplementedError, RuntimeError):
        return torch.empty(0)
