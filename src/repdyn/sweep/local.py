"""Checkpoints in local folders: a run's own, whatever ``save_pretrained`` wrote, and Lightning's of our module."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from repdyn.models import LanguageModel
from repdyn.sweep.failures import model_errors
from repdyn.sweep.revisions import DEFAULT_PATTERN, Revision, parse
from repdyn.sweep.targets import Target

LIGHTNING = ".ckpt"


def find_checkpoints(folder: str | Path, run: str) -> list[Target]:
    """Checkpoints in a folder, by ascending step.

    A checkpoint is a subfolder with a ``config.json`` whose name holds its step (``step512``, ``checkpoint-512``), or a
    Lightning file (``last.ckpt``) of :class:`repdyn.models.LanguageModel`, which knows its step. A folder that holds a
    ``config.json`` itself, or a single file, is one checkpoint; without a number in its name its step is 0.

    Args:
        folder: where they lie. A run's folder is searched in its ``hf_checkpoints``.
        run: their name in the rows.

    Raises:
        ValueError: there is none, or two have the same step.
    """
    folder = Path(folder)
    folder = folder / "hf_checkpoints" if (folder / "hf_checkpoints").is_dir() else folder
    if (folder / "config.json").exists() or folder.suffix == LIGHTNING:
        return [_target(run, folder, _place(folder) or Revision(folder.resolve().name, 0, None, None))]
    found = [path.parent for path in folder.glob("*/config.json")] or _lightning_files(folder)
    places = {path: _place(path) for path in found}
    targets = sorted(
        (_target(run, path, place) for path, place in places.items() if place), key=lambda target: target.step
    )
    if not targets:
        raise ValueError(
            "expected checkpoints (folders such as step512 with a config.json, or Lightning's .ckpt files) in "
            f"{folder}, found none; give the folder that holds them, for example runs/quickstart/TIME/hf_checkpoints"
        )
    for one, other in pairwise(targets):
        if one.step == other.step:
            raise ValueError(
                f"expected one checkpoint for each step, got {one.path} and {other.path}; sweep them apart"
            )
    return targets


def load_lightning(path: Path) -> nn.Module:
    """The model inside a Lightning checkpoint of :class:`repdyn.models.LanguageModel`, read without running pickles.

    Raises:
        CheckpointError: the file is damaged, or holds another module.
    """
    with model_errors(f"{path} does not load as a checkpoint of repdyn.models.LanguageModel"):
        return LanguageModel.load_from_checkpoint(path, map_location="cpu", weights_only=True).model


def _target(run: str, path: Path, place: Revision) -> Target:
    return Target(run, place.step, place.name, place.tokens_seen, place.stage, path=path)


def _place(path: Path) -> Revision | None:
    if path.suffix == LIGHTNING:
        with model_errors(f"{path} does not load"):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            return Revision(path.name, int(content["global_step"]), None, None)
    return parse(path.resolve().name, DEFAULT_PATTERN)


def _lightning_files(folder: Path) -> list[Path]:
    """Lightning's files, without the ``last.ckpt`` that repeats the newest of the others."""
    files = sorted(folder.glob(f"*{LIGHTNING}"))
    steps = {place.step for path in files if path.stem != "last" and (place := _place(path))}
    return [path for path in files if path.stem != "last" or ((place := _place(path)) and place.step not in steps)]
