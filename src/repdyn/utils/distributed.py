"""The processes of one job that measure together: batches and layers dealt out, results and failures told to all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class Ranks:
    """The ranks of a job, of which each holds the model or its shard of it; :data:`ALONE` where there is one process.

    Every method but the properties must be called by all ranks, in the same order. They talk over a gloo group of their
    own, so that nothing of it meets the training's traffic.

    >>> ALONE.size, ALONE.all_gather("measured"), ALONE.shard([3, 1, 4])
    (1, ['measured'], [3, 1, 4])
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    @classmethod
    def of_job(cls, timeout: timedelta = timedelta(minutes=30)) -> Ranks:
        """The ranks of ``torch.distributed``'s default group, or :data:`ALONE` where it has not been set up.

        Args:
            timeout: how long a rank waits for the others before it gives up with an error.
        """
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return ALONE
        return cls(_talking_group(dist.group.WORLD, timeout))

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is the rank that stores, logs and draws."""
        return self.rank == 0

    def shard(self, items: Sequence[T], rank: int | None = None) -> list[T]:
        """Every size-th item, beginning with the rank's own; ``rank`` asks for another one's share."""
        return list(items[self.rank if rank is None else rank :: self.size])

    def all_gather(self, value: Any) -> list[Any]:
        """What every rank tells, by rank. Values are those that JSON knows; NaN and infinities among them."""
        if self._group is None:
            return [value]
        text = torch.from_numpy(np.frombuffer(json.dumps(value).encode(), dtype=np.uint8).copy())
        lengths = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(text)]), group=self._group)
        longest = int(max(lengths))
        texts = [torch.empty(longest, dtype=torch.uint8) for _ in lengths]
        dist.all_gather(texts, _padded(text, longest), group=self._group)
        return [json.loads(told[: int(length)].numpy().tobytes()) for told, length in zip(texts, lengths, strict=True)]

    @contextmanager
    def sync_errors(self) -> Iterator[None]:
        """What fails on one rank fails on all of them, so that none waits for another for ever.

        Raises:
            Exception: on the rank that failed, what it was.
            RuntimeError: on the others, naming that rank and what it said.
        """
        failure = None
        try:
            yield
        except Exception as error:
            failure = error
        told = self.all_gather(None if failure is None else f"{type(failure).__name__}: {failure}")
        if failure is not None:
            raise failure
        if failed := [f"rank {rank}: {said}" for rank, said in enumerate(told) if said is not None]:
            raise RuntimeError(f"expected every rank to measure, but {'; '.join(failed)}")

    def on_rank_zero(self, function: Callable[[], T]) -> T:
        """What ``function()`` gives on the first rank, told to all; its failure too. The value is one JSON knows."""
        value = None
        with self.sync_errors():
            if self.is_rank_zero:
                value = function()
        return self.all_gather(value)[0]

    def require_same(self, what: str, value: Any) -> None:
        """Refuse to go on where the ranks differ in what they must have in common.

        Args:
            what: names it in the message.
            value: one that JSON knows.

        Raises:
            ValueError: on every rank, naming two that differ.
        """
        told = self.all_gather(value)
        other = next((rank for rank, said in enumerate(told) if said != told[0]), None)
        if other is not None:
            raise ValueError(
                f"expected {what} to be the same on every rank, got {told[0]!r} on rank 0 and {told[other]!r} on rank "
                f"{other}; give all ranks the same"
            )

    def gather(self, part: Tensor, longest: int, owner: int) -> list[Tensor] | None:
        """What every rank holds of something, brought to one of them.

        Args:
            part: (n_rows, dim) this rank's rows, on any device.
            longest: the most rows that a rank holds.
            owner: the rank that gets them.

        Returns:
            On the owner (longest, dim) from each rank, in memory, rows beyond the rank's own filled with zeros; None on
            the others.
        """
        # as bytes, which gloo carries for every precision; of one size, since unequal ones abort it
        sent = _padded(part.cpu().contiguous().view(torch.uint8), longest)
        received = [torch.empty_like(sent) for _ in range(self.size)] if self.rank == owner else None
        dist.gather(sent, received, group=self._group, group_dst=owner)
        return None if received is None else [piece.view(part.dtype) for piece in received]


ALONE = Ranks(None)
"""One process, which has nobody to share with."""


@lru_cache(maxsize=1)
def _talking_group(of: dist.ProcessGroup, timeout: timedelta) -> dist.ProcessGroup:
    """One for each job, however many trainings it holds: a group keeps its connections until the process ends."""
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timeout))


def _padded(tensor: Tensor, n_rows: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(n_rows - len(tensor), *tensor.shape[1:])])
