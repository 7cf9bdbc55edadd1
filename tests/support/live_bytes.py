"""The memory of the tensors that operations create: torch's own counters know no CPU."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from internals import TorchDispatchMode, tree_iter
from torch import Tensor


class LiveBytes(TorchDispatchMode):
    """A context that counts the bytes of the storages that are created in it and still alive.

    What an operation allocates and frees again inside itself is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        for tensor in _tensors(
            (args, kwargs)
        ):  # those from before count nothing, nor do views of them
            self._known.setdefault(tensor.untyped_storage()._cdata, 0)
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                self._known[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                weakref.finalize(storage, self._freed, storage._cdata)
        self.peak = max(self.peak, self.now)
        return result

    def _freed(self, storage: int) -> None:
        self.now -= self._known.pop(storage, 0)


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_iter(values) if isinstance(value, Tensor)]
