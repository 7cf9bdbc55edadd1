"""Choose checkpoints in the folder of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from repdyn.checkpoints.local import checkpoints_folder, model_folders

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
    folders = _checkpoints(Path(models[0])) if len(models) == 1 else {}
    if not folders:
        return tuple(revisions), []
    steps = sorted(folders)
    if not revisions:
        places = dict.fromkeys((0, (len(steps) - 1) // 2, len(steps) - 1))
        chosen = tuple(folders[steps[place]] for place in places)
        return chosen, [f"{', '.join(chosen)} of {len(steps)} checkpoints; choose others with --revisions"]
    names, notes = [], []
    for name in revisions:
        if (wanted := _STEP.fullmatch(name)) is None:
            names.append(name)
            continue
        step = int(wanted[1])
        nearest = min(steps, key=lambda each, step=step: abs(each - step))
        names.append(folders[nearest])
        if nearest != step:
            notes.append(f"no checkpoint {name}: the nearest one is {folders[nearest]}")
    return tuple(dict.fromkeys(names)), notes


def _checkpoints(folder: Path) -> dict[int, str]:
    """Return the names of a run's checkpoints by step; none for a single model or a name of the hub."""
    if not folder.is_dir() or (folder / "config.json").is_file():
        return {}
    found = (_STEP.fullmatch(path.name) for path in model_folders(checkpoints_folder(folder)))
    return {int(match[1]): match[0] for match in found if match}
