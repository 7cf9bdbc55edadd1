"""Lists the files of many commits, and keeps the lists in a folder: a commit never changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from repdyn.hub.client import Files, Hub, RemoteFile
from repdyn.hub.errors import CheckpointError
from repdyn.hub.transfer import map_concurrently
from repdyn.utils.files import write_atomically

Commit: TypeAlias = tuple[str, str]
"""A repository and a full commit hash."""


def list_commits(
    hub: Hub,
    commits: Iterable[Commit],
    *,
    folder: Path | None = None,
    with_dates: bool = False,
    listed: Callable[[], None] = lambda: None,
) -> dict[Commit, Files | CheckpointError]:
    """Return the files of each commit, or the reason why the hub does not list them; one request for each.

    Args:
        hub: the hub to ask, at most eight times at once.
        commits: the commits; each is listed once.
        folder: folder that keeps the lists; what it has is not asked for again. None for none.
        with_dates: whether the date of each file is needed.
        listed: called after each commit.

    Raises:
        SweepStoppedError: no connection.
    """

    def look_up(commit: Commit) -> Files | CheckpointError:
        try:
            return _files(hub, commit, folder, with_dates)
        except CheckpointError as error:
            return error
        finally:
            listed()

    wanted = list(dict.fromkeys(commits))
    return dict(zip(wanted, map_concurrently(look_up, wanted), strict=True))


def _files(hub: Hub, commit: Commit, folder: Path | None, with_dates: bool) -> Files:
    if folder is None:
        return hub.files(*commit, with_dates=with_dates)
    digest = hashlib.sha256(f"{hub.endpoint} {commit[0]} {with_dates}".encode()).hexdigest()[:16]
    path = folder / digest / f"{commit[1]}.json"
    try:
        return {name: _remote_file(fields) for name, fields in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        pass  # not listed before, or the file is damaged, and is written anew
    files = hub.files(*commit, with_dates=with_dates)
    text = json.dumps({name: asdict(file) for name, file in files.items()}, default=datetime.isoformat)
    write_atomically(path, lambda temporary: temporary.write_text(text))
    return files


def _remote_file(fields: dict[str, Any]) -> RemoteFile:
    date = fields["date"] and datetime.fromisoformat(fields["date"])
    return RemoteFile(**{**fields, "n_bytes": int(fields["n_bytes"]), "date": date})
