"""The ranks of a job that measure together: they share batches and layers, results and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
WhichRanks: TypeAlias = Literal["zero", "all"]

_TIMEOUT = timedelta(minutes=30)
"""The time that a rank waits for the others before it raises an error."""


class Ranks:
    """The ranks of a job, each with the model or its shard of it; :data:`ALONE` for a single
    process.

    Every method must be called by all ranks, in the same order. They communicate over a gloo group
    of their own, apart from the training's traffic.

    >>> ALONE.size, ALONE.all_gather("measured"), ALONE.shard([3, 1, 4])
    (1, ['measured'], [3, 1, 4])
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        self.is_rank_zero = self.rank == 0
        """True for the rank that stores, logs and draws."""

    @classmethod
    def of_job(cls) -> Ranks:
        """Return the ranks of ``torch.distributed``'s default group, or :data:`ALONE` where it is
        not initialized.
        """
        if n_processes() == 1:
            return ALONE
        return cls(_gloo_group(dist.group.WORLD))

    @classmethod
    def measuring(cls, which: WhichRanks, *, is_sharded: bool) -> Ranks | None:
        """Return the ranks that measure a model together with this one; None where this one has
        nothing to do.

        Decided without communication: a tracker may be on one rank alone.
        """
        if n_processes() == 1:
            return ALONE
        if which == "all" or is_sharded:
            return cls.of_job()
        return ALONE if dist.get_rank() == 0 else None

    def shard(self, items: Sequence[T], rank: int | None = None) -> list[T]:
        """Return every size-th item, from the rank's own on; those of another rank with
        ``rank``.
        """
        return list(items[self.rank if rank is None else rank :: self.size])

    def all_gather(self, value: Any) -> list[Any]:
        """Return every rank's value, by rank."""
        values = [value for _ in range(self.size)]
        if self._group is not None:
            # pickled, so that a rank may share an error or any record
            dist.all_gather_object(values, value, group=self._group)
        return values

    @contextmanager
    def sync_errors(self) -> Iterator[None]:
        """Raise an error of one rank on all of them: on the others as a RuntimeError that names the
        rank and its error.

        A rank that leaves alone would let the others wait for it at their next communication.
        """
        if self._group is None:
            yield
            return
        failure = None
        try:
            yield
        except Exception as error:
            failure = error
        errors = self.all_gather(
            None if failure is None else f"{type(failure).__name__}: {failure}"
        )
        if failure is not None:
            raise failure
        failed = [f"rank {rank}: {error}" for rank, error in enumerate(errors) if error is not None]
        if failed:
            raise RuntimeError(f"expected every rank to measure, but {'; '.join(failed)}")

    def on_rank_zero(self, function: Callable[[], T]) -> T:
        """Call ``function()`` on the first rank alone; return its value, or raise its error, on
        all.
        """
        value = None
        with self.sync_errors():
            if self.is_rank_zero:
                value = function()
        return self.all_gather(value)[0]

    def require_same(self, what: str, value: Any) -> None:
        """Raise ValueError on all ranks unless a value is the same on all; it names two that
        differ.
        """
        values = self.all_gather(value)
        other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            raise ValueError(
                f"expected {what} to be the same on every rank, got {values[0]!r} on rank 0 and "
                f"{values[other]!r} on rank {other}; give all ranks the same"
            )

    def gather(self, tensor: Tensor, longest: int, owner: int) -> list[Tensor] | None:
        """Return the rows of all ranks on the rank that owns the result; None on the others.

        Args:
            tensor: this rank's rows, (n_rows, dim), on any device.
            longest: the largest number of rows that a rank has.
            owner: the rank that gets all of them.

        Returns:
            (longest, dim) from each rank, in the CPU's memory, zero-padded.
        """
        # as bytes, because gloo cannot carry bfloat16; padded to one size, because gloo aborts the
        # process where sizes differ
        sent = tensor.cpu().contiguous().view(torch.uint8)
        sent = torch.cat([sent, sent.new_zeros(longest - len(sent), *sent.shape[1:])])
        received = (
            [torch.empty_like(sent) for _ in range(self.size)] if self.rank == owner else None
        )
        dist.gather(sent, received, group=self._group, group_dst=owner)
        return None if received is None else [piece.view(tensor.dtype) for piece in received]


ALONE = Ranks(None)
"""A single process."""


@lru_cache(maxsize=1)
def _gloo_group(parent: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return one group per job, for all its trainings: a group keeps its connections until the
    process ends.
    """
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=_TIMEOUT))


def n_processes() -> int:
    """Return how many processes the job has."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
