"""Watches for autocast that a model's own forward pass enters, which makes it compute in another precision."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class AutocastWatch(TorchFunctionMode):
    """A mode that notes the precision of autocast, if any operation runs under it.

    Args:
        device: where the model computes.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device_type = device.type if torch.amp.is_autocast_available(device.type) else None
        self.dtype: torch.dtype | None = None
        """That of autocast; None while none has been met."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = self._device_type
        if kind is not None and self.dtype is None and torch.is_autocast_enabled(kind):
            self.dtype = torch.get_autocast_dtype(kind)
        return func(*args, **(kwargs or {}))
