"""Choose checkpoints in the folder of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from repdyn.hub.local import checkpoints_folder, model_folders

_STEP = re.compile(r"step([0-9]+)", re.ASCII)


def choose_checkpoints(models: Sequence[str], revisions: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Choose the first, middle and last step of a run, or the steps nearest to those that are requested.

    Args:
        models: as on the command line; nothing is chosen unless it is the folder of one run with checkpoints ``stepN``.
        revisions: names of checkpoints; a ``stepN`` that the run does not have becomes the nearest one, the earlier of
            two equally near.

    Returns:
        The names to load, and a note for each choice.
    """
    steps = _steps(Path(models[0])) if len(models) == 1 else []
    if not steps:
        return tuple(revisions), []
    if not revisions:
        chosen = tuple(f"step{step}" for step in dict.fromkeys((steps[0], steps[(len(steps) - 1) // 2], steps[-1])))
        return chosen, [f"{', '.join(chosen)} of {len(steps)} checkpoints; choose others with --revisions"]
    names, notes = [], []
    for name in revisions:
        wanted = _STEP.fullmatch(name)
        nearest = min(steps, key=lambda step: abs(step - int(wanted[1]))) if wanted else None
        if nearest is None or nearest == int(name.removeprefix("step")):
            names.append(name)
            continue
        names.append(f"step{nearest}")
        notes.append(f"no checkpoint {name}: the nearest one is step{nearest}")
    return tuple(dict.fromkeys(names)), notes


def _steps(folder: Path) -> list[int]:
    """Return the steps of a run's checkpoints in order; none for a single model or a name of the hub."""
    if not folder.is_dir() or (folder / "config.json").is_file():
        return []
    found = (_STEP.fullmatch(path.name) for path in model_folders(checkpoints_folder(folder)))
    return sorted(int(match[1]) for match in found if match and match[0] == f"step{int(match[1])}")
