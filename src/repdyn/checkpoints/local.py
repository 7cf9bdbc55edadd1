"""The checkpoints in a local folder.

Their steps are in their names, or in what is in the files. A digest of the files' sizes and times
tells apart two checkpoints that were saved under one name.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from repdyn.checkpoints.errors import CheckpointError, model_errors
from repdyn.checkpoints.revisions import parse_revision
from repdyn.checkpoints.suites import require_distinct_steps
from repdyn.checkpoints.targets import Selection, Target
from repdyn.checkpoints.weight_files import ADAPTER, GGUF
from repdyn.store.schema import FINISHED
from repdyn.utils.extras import install_line
from repdyn.utils.printing import shorten_list
from repdyn.utils.steps import DEFAULT_PATTERN, step_of, whole_number

LIGHTNING = ".ckpt"
"""Suffix of Lightning's checkpoints."""
_LAST = re.compile(r"last(-v\d+)?\.ckpt")
_LONGEST_METADATA = 1 << 28
"""Bytes at the beginning of a GGUF file in which its metadata are searched."""
_FILES = (LIGHTNING, GGUF)
_LOADED = {".pt", ".pth", ".bin", ".safetensors"}
"""Suffixes of files that a function of the user's may load, beside Lightning's."""
_WEIGHTS = {".safetensors", ".bin", ".json", *_FILES}


def checkpoints_folder(folder: Path) -> Path:
    """Return the absolute path of the checkpoints in a run's folder; any other path unchanged."""
    inside = folder / "hf_checkpoints"
    return inside.absolute() if inside.is_dir() else folder.absolute()


def is_model(folder: Path) -> bool:
    """Return whether a folder has the configuration of a model, or of an adapter of one."""
    return any((folder / name).exists() for name in ("config.json", ADAPTER))


def find_checkpoints(
    folder: str | Path, run: str | None = None, pattern: str | None = None
) -> Selection:
    """Return the checkpoints in a folder, by ascending step, and the names of what is not used as
    one.

    A checkpoint is a subfolder with a ``config.json``, or an adapter's, and its step in the name
    (``step512``, ``checkpoint-512``). A folder with such a file but without such subfolders, or a
    single file, is one checkpoint; without a step in its name it is a finished model. Where there
    is neither, Lightning files (``last.ckpt``) of :class:`repdyn.models.LanguageModel` are used,
    which contain their step, or else GGUF files, of which each has a step in its name or one is
    there alone. A step without a model beside them counts too, so that a sweep reports it.

    Args:
        folder: folder of the checkpoints, or of a run with a subfolder ``hf_checkpoints``.
        run: name of the run in the rows; by default the last two parts of the path.
        pattern: of the names of folders and GGUF files, as for :func:`parse_revision`.
    """
    pattern = pattern or DEFAULT_PATTERN
    folder = checkpoints_folder(Path(folder))
    run = run or _default_name(folder)
    # its configuration is beside it
    if folder.is_file() and is_model(folder.parent) and folder.suffix not in _FILES:
        folder = folder.parent  # of a single file of weights
    candidates = _candidates(folder)
    targets = _targets_among(candidates, pattern)
    # Lightning's version_0 and accelerate's project folder have their checkpoints one level below
    inner = folder / "checkpoints"
    if not targets and not candidates.models and inner.is_dir():
        return find_checkpoints(inner, run, pattern)
    if not targets:
        raise _nothing_found(folder, candidates)
    _require_distinct(targets)
    # a folder without a model counts where no other checkpoint has its step
    by_step = {target.step: target for target in _with_steps(candidates.unfinished, pattern)}
    by_step |= {target.step: target for target in targets}
    used = {target.path for target in by_step.values()}
    unused = [path.name for path in candidates.listed(used) if path not in used]
    targets = _of_run(by_step.values(), run)
    return Selection(run, targets, unmatched=tuple(dict.fromkeys(unused)))


def _nothing_found(folder: Path, candidates: _Candidates) -> ValueError:
    """Return the error of a folder without any usable checkpoint."""
    if candidates.models:
        return ValueError(
            "expected the steps of checkpoints in their names, got "
            f"{shorten_list([path.name for path in candidates.models])} in {folder}; say where the "
            "number is, as in pattern='.*?(?P<step>[0-9]+).*', or give one of the folders"
        )
    got, way = _what_is_there(folder)
    return ValueError(
        "expected checkpoints (folders such as step512 with a config.json, .ckpt or .gguf files) "
        f"in {folder}, got {got}; {way}"
    )


def _what_is_there(folder: Path) -> tuple[str, str]:
    """Return what a folder without checkpoints has in place of them, and what to do."""
    inside = [folder] if folder.is_file() else sorted(folder.glob("[!.]*"))
    files = [path.name for path in inside if path.suffix in _LOADED]
    if files:
        return (
            f"files of weights without a configuration: {shorten_list(files)}",
            'give the function that loads one, load="module:function", or '
            "repdyn.sweep([(step, load), ...], probe=...)",
        )
    trainings = [path for path in inside if path.is_dir() and _has_checkpoints(path)]
    if trainings:
        names = shorten_list([path.name for path in trainings])
        return f"folders of them: {names}", f"sweep one, such as {trainings[0]}"
    return (
        "none",
        "give the folder that contains them, such as runs/quickstart/TIME/hf_checkpoints",
    )


def _has_checkpoints(folder: Path) -> bool:
    """Return whether a folder, as that of one of several trainings, has checkpoints."""
    places = (folder, folder / "checkpoints", checkpoints_folder(folder))
    return any(
        path.suffix in _FILES or is_model(path) for place in places for path in place.glob("[!.]*")
    )


@dataclass(frozen=True)
class _Candidates:
    """The files and folders at a path that may be checkpoints, by their kind."""

    itself: list[Path]
    """The path, if it is a model or a file with one."""
    models: list[Path]
    """Folders inside with a model, without links to others of them."""
    lightning: list[Path]
    quantised: list[Path]
    """GGUF files."""
    unfinished: list[Path]
    """Folders inside that are named by a step and have no model."""

    def listed(self, used: Collection[Path | None]) -> list[Path]:
        """Return all that may be reported as unused."""
        # where Lightning files are used, one that is not used is a last.ckpt that repeats another
        is_lightning = any(path in used for path in self.lightning)
        lightning = [] if is_lightning else self.lightning
        return [*self.itself, *self.models, *lightning, *self.quantised, *self.unfinished]


def _candidates(folder: Path) -> _Candidates:
    inside = sorted(folder.glob("[!.]*"))  # hidden ones are not saved to their end
    # links first, so that a folder replaces the links that lead to it
    models = sorted(filter(is_model, inside), key=lambda path: not path.is_symlink())
    return _Candidates(
        itself=[folder] if is_model(folder) or folder.suffix in _FILES else [],
        models=sorted({path.resolve(): path for path in models}.values()),
        lightning=[path for path in inside if path.suffix == LIGHTNING],
        quantised=[path for path in inside if path.suffix == GGUF],
        unfinished=[path for path in inside if path.is_dir() and _is_named_by_step(path)],
    )


def _targets_among(candidates: _Candidates, pattern: str) -> list[Target]:
    """Return the checkpoints of the first kind that has any, see :func:`find_checkpoints`."""
    return (
        _with_steps(candidates.models, pattern)
        or _with_steps(candidates.itself, pattern)
        or _finished(candidates.itself)
        or _without_repetition(_with_steps(candidates.lightning, pattern))
        or _with_steps(candidates.quantised, pattern)
        or _finished(candidates.quantised)
    )


def _default_name(folder: Path) -> str:
    """Return the last two parts of a path, without its root."""
    return "/".join(folder.resolve().parts[1:][-2:])


def _require_distinct(targets: Iterable[Target]) -> None:
    named = [(target.step, str(target.path)) for target in targets]
    require_distinct_steps(named, "sweep them separately")


def _of_run(targets: Iterable[Target], run: str) -> tuple[Target, ...]:
    """Return checkpoints as those of a run, by ascending step, with the digests of their files."""
    return tuple(
        replace(target, run=run, commit=_fingerprint(Path(str(target.path))))
        for target in sorted(targets, key=lambda target: target.step)
    )


def find_own_files(
    folder: str | Path, run: str | None = None, pattern: str | None = None
) -> Selection:
    """Return the checkpoints in a folder that a function of the user's loads: Lightning files, else
    files of weights and folders with a step in their names; or a single file.

    The arguments are those of :func:`find_checkpoints`.
    """
    pattern = pattern or DEFAULT_PATTERN
    folder = Path(folder).absolute()
    run = run or _default_name(folder)
    inside = [folder] if folder.is_file() else sorted(folder.glob("[!.]*"))
    lightning = [_lightning(path) for path in inside if path.suffix == LIGHTNING]
    targets = _without_repetition(lightning) or _named_by_step(inside, pattern)
    if not targets and (folder / "checkpoints").is_dir():
        return find_own_files(folder / "checkpoints", run, pattern)
    if not targets:
        raise ValueError(
            f"expected .ckpt files, or files of weights or folders with a step in their names, in "
            f"{folder}, got none; give the folder that contains them, or say where the number is, "
            "as in pattern='.*?(?P<step>[0-9]+).*'"
        )
    _require_distinct(targets)
    # what the function returns is the weights that it chose, of whatever kind
    targets = [replace(target, weights_kind=None) for target in targets]
    return Selection(run, _of_run(targets, run))


def _named_by_step(paths: Iterable[Path], pattern: str) -> list[Target]:
    """Return the folders and files of weights that have a step in their names."""
    targets = []
    for path in paths:
        if path.is_dir() or path.suffix in _LOADED:
            target = parse_revision(path.stem if path.is_file() else path.name, pattern)
            if target is not None:
                targets.append(replace(target, path=path, revision=path.name))
    return targets


def _is_named_by_step(folder: Path) -> bool:
    """Return whether a folder is named as a checkpoint and has no model, not saved to its end."""
    return step_of(folder.name) is not None and not is_model(folder)


def _finished(paths: Iterable[Path]) -> list[Target]:
    return [
        Target(
            run="",
            step=0,
            revision=path.resolve().name,
            stage=FINISHED,
            path=path,
            weights_kind=_quantisation(path),
        )
        for path in paths
    ]


def _with_steps(paths: Iterable[Path], pattern: str) -> list[Target]:
    """Return the checkpoints that have a step in their names, or in the content of a Lightning
    file.
    """
    targets = []
    for path in paths:
        if path.suffix == LIGHTNING:
            targets.append(_lightning(path))
            continue
        # a link may be called latest: the step is in the name of what it leads to
        target = parse_revision(path.resolve().name, pattern)
        if target is not None:
            targets.append(replace(target, path=path, weights_kind=_quantisation(path)))
    return targets


def _without_repetition(targets: Sequence[Target]) -> list[Target]:
    """Leave out a ``last.ckpt`` that duplicates the newest of the other Lightning files."""
    # with save_last, Lightning saves the newest checkpoint once more under this name
    last = [target for target in targets if _LAST.fullmatch(target.revision)]
    steps = {target.step for target in targets if target not in last}
    return [target for target in targets if target not in last or target.step not in steps]


def _lightning(path: Path) -> Target:
    """Return the step in the content of a Lightning file, and whether it has raw weights beside
    averaged ones, as Lightning's WeightAveraging saves it."""
    # with torch, which other folders do without
    from repdyn.checkpoints.weights import lightning_content

    try:
        with model_errors(f"{path} does not load"):
            content = lightning_content(path)
            step = whole_number(str(content["global_step"]), "global_step")
    except CheckpointError as error:
        by_name = parse_revision(path.resolve().name)
        if by_name is None:
            raise ValueError(
                "expected Lightning checkpoints, got a damaged one without a step in its name: "
                f"{error}; move it away"
            ) from error
        # measuring stores the failure for this step
        return replace(by_name, revision=path.name, path=path)
    kind = "raw" if "current_model_state" in content else None
    return Target(run="", step=step, revision=path.name, path=path, weights_kind=kind)


def _quantisation(path: Path) -> str | None:
    """Return the name of a GGUF file's quantisation, such as "Q4_K_M".

    It is "GGUF" where the file does not say, and None for any other file.
    """
    if path.suffix != GGUF:
        return None
    try:
        from gguf import LlamaFileType
    except ImportError as error:
        raise ValueError(
            f"expected the package gguf for {path.name}; {install_line('gguf')}"
        ) from error
    try:
        number = _gguf_file_type(path)
        return "GGUF" if number is None else LlamaFileType(number).name.removeprefix("MOSTLY_")
    # damaged, or newer than the package: measuring it says more
    except (OSError, ValueError, struct.error):
        return "GGUF"


def _gguf_file_type(path: Path) -> int | None:
    """Return the number of a GGUF file's type, or None where the file does not say."""
    key = b"general.file_type"
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        # of all its metadata this alone, since the strings of a vocabulary take seconds to read
        start = content.find(key, 0, _LONGEST_METADATA)
        if start < 0:
            return None
        # behind the key stand the type of the value, and the value
        _, number = struct.unpack_from("<II", content, start + len(key))
        return number


def _fingerprint(path: Path) -> str:
    """Return a digest of file sizes and times, which distinguishes checkpoints saved under the same
    name.
    """
    # sizes and times: to read the weights would take as long as to load them
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in _WEIGHTS)
    stats = []
    for file in files:
        status = file.stat() if file.exists() else file.lstat()  # links may be broken
        stats.append((file.name, status.st_size, status.st_mtime_ns))
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:12]
