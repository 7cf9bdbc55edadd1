"""Attach the tracker to a script that does not mention it, by environment variables.

Lightning calls :func:`lightning_callbacks` for every Trainer, through the entry point
``lightning.pytorch.callbacks_factory``; the command ``repdyn attach`` runs a script in which every
Trainer of transformers has :func:`hugging_face_callbacks` too. Both attach nothing unless
``REPDYN`` is 1 or a probe is named:

    REPDYN=1 python their_lightning_script.py
    repdyn attach their_script.py --its options

===================  ==========================================================================
``REPDYN``           ``1`` attaches, ``0`` does not
``REPDYN_PROBE``     a file written by ``Probe.save``; by default the trainer's held-out data
``REPDYN_SCHEDULE``  ``1000``, ``0,10,100``, ``pythia`` (the default) or ``checkpoints``
``REPDYN_METRICS``   names separated by spaces; ``all`` for every one that the probe allows
``REPDYN_LAYERS``    patterns of module names separated by spaces; by default the blocks
``REPDYN_STORE``     folder or URL of the store
===================  ==========================================================================
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from transformers import TrainerCallback

    from repdyn.probe import Probe

_PREFIX = "REPDYN_"
_TRAINER = "transformers.trainer"
_attached: list[str] = []
"""The classes of the trackers that were attached in this process."""


def lightning_callbacks() -> list[Callback]:
    """Return the tracker that the environment asks for, as a list; an empty one where it asks for
    none.

    Raises:
        ValueError, OSError: what it asks for cannot be had, which stops the script before its
        training.
    """
    if (settings := settings_of_environment()) is None:
        return []
    # every Trainer of Lightning calls this function: torch's and repdyn's import would cost it
    from repdyn.callbacks.representation_dynamics import RepresentationDynamics

    _attached.append(RepresentationDynamics.__name__)
    return [RepresentationDynamics(**settings)]


def hugging_face_callbacks() -> list[TrainerCallback]:
    """Return the tracker for a ``transformers.Trainer``, as :func:`lightning_callbacks` does:
    ``Trainer(model, arguments, callbacks=hugging_face_callbacks())``.
    """
    if (settings := settings_of_environment()) is None:
        return []
    from repdyn.callbacks.hugging_face_trainer import HuggingFaceTracker

    _attached.append(HuggingFaceTracker.__name__)
    return [HuggingFaceTracker(**settings)]


def settings_of_environment() -> dict[str, Any] | None:
    """Return the arguments of a tracker that the environment variables give; None unless ``REPDYN``
    is 1 or ``REPDYN_PROBE`` is set.

    Raises:
        ValueError: a value that cannot be read.
        OSError: the probe cannot be read.
    """
    values = {name: os.environ.get(f"{_PREFIX}{name}", "").strip() for name in _SETTINGS}
    is_asked_for = os.environ.get("REPDYN", "").strip() or ("1" if values["PROBE"] else "0")
    if is_asked_for not in {"0", "1"}:
        raise ValueError(
            f"expected REPDYN=1 or REPDYN=0, got {is_asked_for!r}; a probe is REPDYN_PROBE=FILE"
        )
    if is_asked_for == "0":
        return None
    return {name.lower(): _SETTINGS[name](value) for name, value in values.items() if value}


def _probe_in(path: str) -> Probe:
    from repdyn.probe import Probe  # with torch

    return Probe.load(path)


def _schedule_of(text: str) -> Any:
    steps = [int(step) if step.strip().isdecimal() else step for step in text.split(",")]
    return steps if "," in text else steps[0]


def _metrics_of(text: str) -> str | tuple[str, ...]:
    return text if text == "all" else tuple(text.split())


_SETTINGS: dict[str, Callable[[str], Any]] = {
    "PROBE": _probe_in,
    "SCHEDULE": _schedule_of,
    "METRICS": _metrics_of,
    "LAYERS": str.split,
    "STORE": str,
}
"""Functions that make the argument of a variable's name from its text."""


def run_script(arguments: Sequence[str]) -> None:
    """Run a script, or ``-m`` and a module, with its arguments as ``python`` does, and attach the
    tracker to every trainer that it makes.

    Raises:
        ValueError: no script is named.
        Exception: whatever the script raises.
    """
    os.environ["REPDYN"] = "1"  # for Lightning's entry point, also in processes that it starts
    is_module = list(arguments[:1]) == ["-m"]
    names = [*arguments[1:]] if is_module else [*arguments]
    if not names:
        raise ValueError("expected a script, got nothing; write repdyn attach SCRIPT ARGUMENTS")
    # as python itself has them: the first entry of the path is the script's folder
    sys.argv[:] = names
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.abspath(names[0]))
    sys.meta_path.insert(0, _TrainerFinder())
    if is_module:
        runpy.run_module(names[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(names[0], run_name="__main__")
    if not _attached:
        print(
            "repdyn: no Trainer of Lightning or transformers was made, so nothing was measured; "
            "a loop of your own has three lines: with repdyn.Tracker(model, probe) as tracker: "
            "..., tracker.step(loss=loss)",
            file=sys.stderr,
        )


class _TrainerFinder(MetaPathFinder):
    """Adds the tracker to the callbacks of every Trainer of transformers, once that is imported.

    Only then: a script that trains with something else must not pay for the import of transformers.
    """

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Return the spec of the Trainer's module; its loader adds the tracker afterwards."""
        if name != _TRAINER:
            return None
        # the other finders find the module as usual; this one would call itself for ever
        sys.meta_path.remove(self)
        spec = find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return spec
        execute = loader.exec_module

        def run_and_add(module: ModuleType) -> None:
            execute(module)
            _add_to_default_callbacks(module)

        loader.exec_module = run_and_add
        return spec


def _add_to_default_callbacks(trainers: Any) -> None:
    """Add the tracker to the classes of which every Trainer makes its callbacks."""
    from repdyn.callbacks.hugging_face_trainer import HuggingFaceTracker

    class Attached(HuggingFaceTracker):
        """The tracker that the environment asks for."""

        def __init__(self) -> None:
            super().__init__(**(settings_of_environment() or {}))
            _attached.append(HuggingFaceTracker.__name__)

    trainers.DEFAULT_CALLBACKS = [*trainers.DEFAULT_CALLBACKS, Attached]
