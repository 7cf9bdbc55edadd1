"""Hidden states of the last measured checkpoint, stored on disk until the next one has been
compared with them.

    FOLDER/<hash of run, probe and layer selection>/step000000008/[<stack>/]layer003.safetensors

The states of a step are saved before its rows are stored; those of the previous step are deleted
afterwards. A process that is killed at any time and measures the same step again therefore finds
the same previous states. Files are written atomically, and each process accesses only its own
layers, so no locks are needed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from torch import Tensor

from repdyn.kernels import UndefinedError
from repdyn.store.files import folder_name
from repdyn.utils.files import write_atomically

log = logging.getLogger(__name__)

_TENSOR_NAME = "states"
# a file in the folder of a step all of whose layers are saved
_COMPLETE_MARKER = "whole"
_STEP = re.compile(r"step(\d{9,})")


class StateCache:
    """The stored states of earlier checkpoints of one run, on one probe and one selection of
    layers, in a folder that others may share.

    ``earlier`` is the cache of the run that this one goes on from, which is looked into before the
    first step of this one is complete, and left as it is; ``last_step`` is then the only step that
    is loaded from it: the last one that it measured before another run left it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        run: str,
        probe: str,
        layers: str = "",
        earlier: StateCache | None = None,
        last_step: int | None = None,
    ) -> None:
        self._earlier = earlier
        self._last_step = last_step
        identity = json.dumps({"run": run, "probe": probe, "layers": layers}, sort_keys=True)
        self._folder = folder / hashlib.sha256(identity.encode()).hexdigest()[:16]

    def begin(self, step: int) -> None:
        """Begin to save the states of a step, which stay incomplete until :meth:`complete`: those
        of an earlier attempt may stem from other weights and must not be mixed with new ones."""
        # if a file cannot be deleted, saving fails too and is reported then
        with suppress(OSError):
            (self._step_folder(step) / _COMPLETE_MARKER).unlink(missing_ok=True)

    def save(self, step: int, stack: str | None, layer: int, states: Tensor) -> None:
        """Save the states of a layer, (n, dim), in place of any that the step already has; where
        that fails, as on a full disk, the values that need them are undefined."""
        path = self._path(step, stack, layer)
        try:
            # not save_file, which leaves a file of its own if it is killed, readable by its owner
            # alone
            data = to_safetensors({_TENSOR_NAME: states.detach().cpu().contiguous()})
            write_atomically(path, lambda written: written.write_bytes(data))
        except (OSError, SafetensorError) as error:
            log.warning(
                "The states of layer %d at step %d could not be saved: %s", layer, step, error
            )
            # those of an earlier attempt may stem from other weights
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def complete(self, step: int) -> None:
        """Mark a step as complete, so that later steps are compared with it."""
        try:
            (self._step_folder(step) / _COMPLETE_MARKER).touch()
        except OSError as error:
            log.warning("Later steps cannot be compared with step %d: %s", step, error)

    def take_over(self, step: int, other: StateCache) -> bool:
        """Copy the states of a step that another run has measured on the same weights; return
        whether it has them.

        They are copied at once, since that run deletes them with its next step.
        """
        source = other._step_folder(step)
        target = self._step_folder(step)
        if not (source / _COMPLETE_MARKER).exists():
            return False
        self.begin(step)
        try:
            for path in sorted(source.rglob("*.safetensors")):
                write_atomically(target / path.relative_to(source), partial(shutil.copyfile, path))
        except OSError:  # deleted meanwhile, or no space here
            return False
        self.complete(step)
        # it logs where it fails
        return (target / _COMPLETE_MARKER).exists()

    def load_previous(
        self, step: int, stack: str | None, layer: int, like: Tensor
    ) -> tuple[int, Tensor]:
        """Return the newest complete step before ``step``, and a layer's states there, on the
        device of ``like``.

        Raises:
            UndefinedError: there is no such step, or its states cannot be read or have another
                shape than ``like``. Older steps are not tried, because all layers of a step are
                compared with the same one.
        """
        markers = self._folder.glob(f"step*/{_COMPLETE_MARKER}")
        matches = filter(None, (_STEP.fullmatch(path.parent.name) for path in markers))
        complete = sorted(int(match[1]) for match in matches)
        earlier = [other for other in complete if other < step and self._last_step in {None, other}]
        # the first step after a resumption is compared with the last one before it
        if not earlier and self._earlier is not None:
            return self._earlier.load_previous(step, stack, layer, like)
        if not earlier:
            raise UndefinedError(f"no states of a step before {step} are stored")
        newest = earlier[-1]
        try:
            states = load_file(self._path(newest, stack, layer))[_TENSOR_NAME]
        except FileNotFoundError as error:
            raise UndefinedError(
                f"the states of step {newest} are stored without this layer"
            ) from error
        except (OSError, SafetensorError, KeyError) as error:
            raise UndefinedError(f"the states of step {newest} cannot be read: {error}") from error
        if states.shape != like.shape:
            raise UndefinedError(
                f"the states of step {newest} are of shape {tuple(states.shape)}, those of step "
                f"{step} of {tuple(like.shape)}"
            )
        return newest, states.to(like.device)

    def delete_before(self, step: int) -> None:
        """Delete the states of all steps before this one; to be called when its rows are stored."""
        # what another process is deleting too is retried with the next step
        with suppress(OSError):
            for path in self._folder.iterdir():
                match = _STEP.fullmatch(path.name)
                if match is not None and int(match[1]) < step:
                    shutil.rmtree(path, ignore_errors=True)

    def _path(self, step: int, stack: str | None, layer: int) -> Path:
        folder = self._step_folder(step)
        if stack is not None:
            folder = folder / folder_name(stack)
        return folder / f"layer{layer:03d}.safetensors"

    def _step_folder(self, step: int) -> Path:
        return self._folder / f"step{step:09d}"
