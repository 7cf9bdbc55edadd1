"""SIGKILL at random moments, and at each of the first file events: no row that was promised is
lost, changed or twice.

Run as a script, this file forks a writer for each kill, so that nothing is imported again."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import fsspec
import pandas as pd  # noqa: F401 - before the first fork
import pyarrow as pa
import pytest
from stored_rows import KEY, row

from repdyn.store import open_store
from repdyn.store.files import copy_folder, read_tables
from repdyn.store.remote import RemoteFolder
from repdyn.utils.files import is_url

KILLS = {"moments": 300, "events": 200}
FILE_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "request"}
LAYERS = (0, 1, 2)
Promise: TypeAlias = Callable[[int], Any]


@pytest.mark.once
@pytest.mark.process
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KILLS)
@pytest.mark.parametrize("place", ["local", "s3"])
def test_kills_lose_and_double_nothing(request, tmp_path, kind, place):
    url = request.getfixturevalue("bucket") if place == "s3" else str(tmp_path / "store")
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [
        sys.executable,
        __file__,
        str(tmp_path),
        url,
        kind,
        os.environ.get("REPDYN_KILLS", str(KILLS[kind])),
    ]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


def write(
    url: str, n_steps: int, attempt: int, promise: Promise, *, event: int = 0, folder: str = ""
) -> None:
    """Write what a store lacks, with the number of the attempt, and promise each step; end at a
    file event, if any.
    """
    if event:
        kill_at(event, folder)
    store = open_store(url)
    for step in range(n_steps):
        key = replace(KEY, step=step)
        if key not in store:
            store.write(
                key,
                [
                    row(step=step, layer=layer, value=step + layer / 10, seconds=attempt)
                    for layer in LAYERS
                ],
            )
        promise(step)
    assert store.drain(120) is None


def check(location: str | Path, promised: dict[int, int], _: Promise) -> None:
    """Compare the files of a copy, or all rows at a URL or path, with the promised steps and their
    attempts.
    """
    is_copy = isinstance(location, Path)
    # each file of a copy: one that cannot be read is an error
    files = list(location.glob("run/[!.]*.parquet")) if is_copy else ()
    table = read_tables(files) if is_copy else pa.table(open_store(location).to_pandas())
    columns = table.select(["step", "layer", "value", "seconds"]).sort_by(
        [("step", "ascending"), ("layer", "ascending")]
    )
    rows = [tuple(row.values()) for row in columns.to_pylist()]
    written = {step: int(attempt) for step, _, _, attempt in rows}
    assert set(promised) <= set(written), f"lost: {set(promised) - set(written)}"
    assert is_copy or list(promised) == list(written)
    assert rows == [
        (step, layer, step + layer / 10, written[step]) for step in written for layer in LAYERS
    ]
    assert all(written[step] <= attempt for step, attempt in promised.items()), (
        "measured a second time"
    )


def forked(
    work: Callable[[Promise], None], kill_after: float | None = None
) -> tuple[list[int], int]:
    """Run work in a child, killed after some seconds; return the steps that it promised, and its
    status.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(lambda step: os.write(writer, b"%d\n" % step))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader) as pipe:
        promised = [int(line) for line in pipe]
    return promised, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at(event_number: int, folder: str) -> None:
    """Kill this process at one of the file events in a folder, or of the begins and ends of
    requests.
    """
    numbers, attempt = itertools.count(1), RemoteFolder._request

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FILE_EVENTS and folder in str(arguments[0]) and next(numbers) == event_number:
            os.kill(os.getpid(), signal.SIGKILL)

    def audited(self: RemoteFolder, *arguments: Any, **named: Any) -> Any:
        sys.audit("request", folder)
        try:
            return attempt(self, *arguments, **named)
        finally:
            sys.audit("request", folder)

    setattr(RemoteFolder, "_request", audited)  # noqa: B010 - in the child alone
    sys.addaudithook(hook)


def kill_writers(
    folder: str, location: str, attempts: range, seconds: float | None
) -> tuple[int, int]:
    """Kill the writers of one store, at moments of so many seconds or at an event each, and
    complete it.

    Returns the numbers of kills and of promised steps."""
    n_killed, promised = 0, dict[int, int]()
    copy = copy_folder(location) if is_url(location) else Path(location)
    for attempt in attempts:
        if seconds is None:
            work, moment = (
                partial(write, location, attempt + 1, attempt, event=attempt + 1, folder=folder),
                None,
            )
        else:
            work = partial(write, location, len(promised) + 4, attempt)
            moment = random.uniform(0, 1.2 * seconds)
        steps, status = forked(work, moment)
        assert status in (0, -signal.SIGKILL)
        n_killed += status != 0
        promised = {step: attempt for step in steps} | promised
        assert not forked(partial(check, copy, promised))[1]
    steps, status = forked(partial(write, location, len(promised) + 1, attempts.stop))
    assert not status
    promised = {step: promised.get(step, attempts.stop) for step in steps}
    cache = os.environ["REPDYN_CACHE"]
    os.environ["REPDYN_CACHE"] = f"{folder}/elsewhere"
    assert not forked(partial(check, location, promised))[1]
    os.environ["REPDYN_CACHE"] = cache
    return n_killed, len(promised)


def main(folder: str, url: str, kind: str, n_kills: int) -> None:
    """Kill writers, those at moments 20 to a store."""
    os.environ["REPDYN_CACHE"] = f"{folder}/cache"
    fsspec.get_filesystem_class(
        url.partition("://")[0] if is_url(url) else "file"
    )  # imports it before the first fork
    began = time.monotonic()
    assert not forked(partial(write, f"{url}/first", 4, 0))[1]
    seconds, size = (time.monotonic() - began, 20) if kind == "moments" else (None, 1)
    starts = range(0, n_kills, size)
    counts = [
        kill_writers(folder, f"{url}/{first}", range(first, first + size), seconds)
        for first in starts
    ]
    n_killed, n_promised = map(sum, zip(*counts, strict=True))
    print(
        f"{n_killed} of {n_kills} killed, {n_promised} steps promised, in "
        f"{time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
