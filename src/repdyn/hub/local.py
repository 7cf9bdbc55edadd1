"""Folders of models: where a run keeps its checkpoints."""

from __future__ import annotations

from pathlib import Path

LIGHTNING = ".ckpt"
"""Suffix of Lightning's checkpoints."""


def checkpoints_folder(folder: Path) -> Path:
    """Return the absolute path of the checkpoints in a run's folder; any other path unchanged."""
    inside = folder / "hf_checkpoints"
    return inside.absolute() if inside.is_dir() else folder.absolute()


def model_folders(folder: Path) -> list[Path]:
    """List the subfolders with a model; without symbolic links to others of them, and without unfinished ones."""
    found = [path.parent for path in folder.glob("[!.]*/config.json")]
    return sorted({path.resolve(): path for path in sorted(found, key=lambda path: not path.is_symlink())}.values())
