"""Kept states: the vectors of the checkpoint measured last, on disk until the next one has been compared with them.

    FOLDER/<16 digits: run, probe, choice of layers>/step000000008/[<stack>/]layer003.safetensors

A step's states are kept before its rows are stored, and those of the step before are forgotten after. So a process
that is killed at any moment, and measures the same step again, finds what it found the first time. Files are written
whole or not at all; each process keeps and reads the layers that are its own, so there is nothing to lock.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from repdyn.kernels import Undefined
from repdyn.store import open_store
from repdyn.utils.atomic_files import write_atomically

log = logging.getLogger(__name__)

KEPT = "kept_states"
"""Folder beside a run's rows in which they are kept."""
_STATES = "states"
_SEAL = "whole"
_STEP = re.compile(r"step(\d{9,})")


class StateCache:
    """The states of earlier checkpoints of one run on one probe, of the layers as they were chosen.

    Args:
        folder: where they are kept; it may hold those of other runs, probes and choices too.
        run: name of the run.
        probe: hash of the probe.
        layers: the choice of layers, as rows record it.
    """

    def __init__(self, folder: Path, *, run: str, probe: str, layers: str = "") -> None:
        self._subject = {"run": run, "probe": probe, "layers": layers}
        digest = hashlib.sha256(json.dumps(self._subject, sort_keys=True).encode()).hexdigest()
        self._folder = folder / digest[:16]
        self._not_kept: dict[tuple[int, str | None, int], str] = {}

    def begin(self, step: int) -> None:
        """Say that a step is being measured: only :meth:`seal` makes it whole.

        What an earlier attempt at it has kept is of other weights, perhaps; with some layers of this one it would be a
        mixture.
        """
        self._not_kept = {lost: why for lost, why in self._not_kept.items() if lost[0] != step}
        # where a file cannot be removed none can be written either, which is told then
        with suppress(OSError):
            (self._of_step(step) / _SEAL).unlink(missing_ok=True)

    def keep(self, step: int, stack: str | None, layer: int, states: Tensor) -> None:
        """Keep the states of a layer, (n, dim), in place of any that the step has.

        Where that cannot be done (a full disk, say) a warning is logged, and the next step is told why it has nothing
        to compare with: a measurement is not lost for want of a place for its states.
        """
        target = self._path(step, stack, layer)
        content = states.detach().cpu().contiguous()
        told = {**self._of(step, stack, layer), "content": _digest(content)}
        try:
            write_atomically(target, lambda path: save_file({_STATES: content}, path, metadata=told))
            self._not_kept.pop((step, stack, layer), None)
        except (OSError, SafetensorError) as error:
            self._not_kept[step, stack, layer] = str(error)
            log.warning("The states of layer %d at step %d were not kept for the next step: %s", layer, step, error)
            # what an earlier attempt at the step left is of other weights, perhaps
            with suppress(OSError):
                target.unlink(missing_ok=True)

    def seal(self, step: int) -> None:
        """Say that all layers of a step have been kept: only then will another step be compared with it.

        A measurement that failed half way leaves none behind to be compared with.
        """
        try:
            write_atomically(self._of_step(step) / _SEAL, lambda path: path.write_text("whole\n"))
        except OSError as error:
            log.warning("Step %d will not be compared with: %s", step, error)

    def before(self, step: int, stack: str | None, layer: int, like: Tensor) -> tuple[int, Tensor]:
        """The newest step before this one that is kept, and the layer's states at it.

        Args:
            step, stack, layer: what they are to be compared with.
            like: its states, (n, dim).

        Returns:
            The earlier step, and states of the shape of ``like``, on its device, in the precision they were kept in.

        Raises:
            Undefined: none are kept, or those that are do not read or do not fit. An older step does not stand in: all
                layers of a step are compared with the same one.
        """
        try:
            kept = sorted(self._whole())
        except OSError as error:
            raise Undefined(f"the states of earlier steps do not read: {error}") from error
        earlier = [other for other in kept if other < step]
        if not earlier:
            only = f", only of step {kept[-1]}" if kept and kept[-1] > step else ""
            raise Undefined(f"no states of a step before {step} are kept{only}")
        newest = earlier[-1]
        if lost := self._not_kept.get((newest, stack, layer)):
            raise Undefined(f"the states of step {newest} were not kept: {lost}")
        states = self._read(newest, stack, layer)
        if states.shape != like.shape:
            raise Undefined(
                f"the states of step {newest} are of shape {tuple(states.shape)}, those of step {step} of "
                f"{tuple(like.shape)}"
            )
        return newest, states.to(like.device)

    def forget_before(self, step: int) -> None:
        """Delete the states of all steps before this one; to be called when its rows are stored."""
        self._forget(range(step))

    def forget_after(self, step: int) -> None:
        """Delete the states of all steps after this one.

        A training that has gone back to it will come to them, if it does, with other weights.
        """
        self._forget(range(step + 1, sys.maxsize))

    def _forget(self, steps: range) -> None:
        # what cannot be deleted, by this process or for another that is at it too, is tried again the next time
        with suppress(OSError):
            for step in self._kept():
                if step in steps:
                    shutil.rmtree(self._of_step(step), ignore_errors=True)
        self._not_kept = {lost: why for lost, why in self._not_kept.items() if lost[0] not in steps}

    def _kept(self) -> set[int]:
        """Steps of which something was kept, or was to be."""
        found = [_STEP.fullmatch(path.name) for path in self._folder.iterdir()] if self._folder.exists() else []
        return {int(match[1]) for match in found if match} | {lost for lost, _, _ in self._not_kept}

    def _whole(self) -> set[int]:
        """Steps that are kept with all their layers, or were to be."""
        lost = {lost for lost, _, _ in self._not_kept}
        return {step for step in self._kept() if step in lost or (self._of_step(step) / _SEAL).exists()}

    def _read(self, step: int, stack: str | None, layer: int) -> Tensor:
        try:
            with safe_open(self._path(step, stack, layer), framework="pt") as file:
                told, states = file.metadata() or {}, file.get_tensor(_STATES)
        except FileNotFoundError as error:
            raise Undefined(f"the states of step {step} are kept without this layer") from error
        except (OSError, SafetensorError) as error:
            raise Undefined(f"the states of step {step} do not read: {error}") from error
        for name, wanted in self._of(step, stack, layer).items():
            if told.get(name) != wanted:
                raise Undefined(f"the states of step {step} are those of {name} {told.get(name)!r}, not {wanted!r}")
        if told.get("content") != _digest(states):
            raise Undefined(f"the states of step {step} are damaged: they are not what was written")
        return states

    def _of(self, step: int, stack: str | None, layer: int) -> dict[str, str]:
        """Return the metadata that the file of a layer records."""
        return {**self._subject, "step": str(step), "stack": stack or "", "layer": str(layer)}

    def _path(self, step: int, stack: str | None, layer: int) -> Path:
        folder = self._of_step(step)
        return (folder if stack is None else open_store(folder).folder_of(stack)) / f"layer{layer:03d}.safetensors"

    def _of_step(self, step: int) -> Path:
        return self._folder / f"step{step:09d}"


def _digest(states: Tensor) -> str:
    """Return a digest of shape, precision and every bit, since a flipped bit would otherwise be another number."""
    digest = hashlib.sha256(f"{states.dtype} {tuple(states.shape)}".encode())
    digest.update(states.view(torch.uint8).numpy().data)
    return digest.hexdigest()
