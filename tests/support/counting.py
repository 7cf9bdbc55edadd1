"""A mode that counts the functions of torch that are called."""

from __future__ import annotations

from torch.overrides import TorchFunctionMode


class Counting(TorchFunctionMode):
    n = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.n += 1
        return func(*args, **(kwargs or {}))
