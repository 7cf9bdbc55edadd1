"""List the files of planned checkpoints, and read the shapes of their models."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from repdyn.hub.client import Hub, total_bytes
from repdyn.hub.errors import CheckpointError
from repdyn.hub.model_config import parse_config, reason_not_loadable, shape_of
from repdyn.hub.transfer import map_concurrently
from repdyn.sweep.estimate import CheckpointFiles, ModelFiles, weights_on_disk
from repdyn.sweep.targets import Target

_MAX_CONFIG_BYTES = 1_000_000


@dataclass(frozen=True)
class PlannedFiles:
    """The files of the checkpoints of a model that can be measured, and why the others cannot."""

    files: ModelFiles = field(default_factory=lambda: ModelFiles(()))
    problems: Sequence[str] = ()

    @property
    def total(self) -> int:
        """Bytes to download."""
        return sum(each.download_bytes for each in self.files.checkpoints)

    @property
    def largest(self) -> int:
        """Bytes to download for the largest checkpoint."""
        return max((each.download_bytes for each in self.files.checkpoints), default=0)


def list_files(models: Sequence[Sequence[Target]], hub: Hub) -> list[PlannedFiles]:
    """List the files of the checkpoints of several models, and read one configuration of each model."""
    listed = [map_concurrently(lambda target: _list(target, hub), targets) for targets in models]
    present = [
        [target for target, files in zip(targets, found, strict=True) if not isinstance(files, str)]
        for targets, found in zip(models, listed, strict=True)
    ]
    configs = map_concurrently(lambda targets: _read_config(targets[0], hub) if targets else b"", present)
    return [_planned(found, content, targets) for found, content, targets in zip(listed, configs, present, strict=True)]


def _planned(found: Sequence[CheckpointFiles | str], content: bytes, present: Sequence[Target]) -> PlannedFiles:
    problems = [reason for reason in found if isinstance(reason, str)]
    config = parse_config(content)
    if reason := reason_not_loadable(config):
        return PlannedFiles(problems=[*problems, f"{present[0].run}: {reason}"])
    files = [each for each in found if not isinstance(each, str)]
    return PlannedFiles(ModelFiles(files, shape_of(config)), problems)


def _list(target: Target, hub: Hub) -> CheckpointFiles | str:
    """Return the size of a checkpoint, or why it cannot be measured."""
    if target.path is not None:
        return CheckpointFiles(weights_on_disk(target.path), 0)
    try:
        files = target.remote_files(hub)
    except CheckpointError as error:
        return f"{target}: {error}"
    n_bytes = total_bytes(files)
    is_cached = hub.cached(target.repository, target.commit, files) is not None
    return CheckpointFiles(n_bytes, 0 if is_cached else n_bytes, len(files))


def _read_config(target: Target, hub: Hub) -> bytes:
    """Return the configuration of a model; nothing if it cannot be read, which the estimate does without."""
    with suppress(OSError, CheckpointError):
        if target.path is not None:
            file = target.path / "config.json"
            # a named pipe would be waited for
            return file.read_bytes() if file.is_file() and file.stat().st_size <= _MAX_CONFIG_BYTES else b""
        path = f"{target.subfolder}/config.json" if target.subfolder else "config.json"
        n_bytes = target.remote_files(hub)[path].n_bytes
        if 0 < n_bytes <= _MAX_CONFIG_BYTES:
            return hub.read_range(target.repository, target.commit, path, 0, n_bytes)
    return b""
