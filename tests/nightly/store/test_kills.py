"""SIGKILL at random moments, and at each of the first file events: no row that was promised is lost, changed or twice.

This file run as a script forks one writer for each kill, so that nothing is imported again; by hand:

    PYTHONPATH=src:tests python tests/nightly/store/test_kills.py FOLDER FOLDER/store moments 300
"""

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
from pathlib import Path
from typing import Any

import pytest
from stored_rows import KEY, row

from repdyn.store import Store, open_store
from repdyn.store.files import copy_folder
from repdyn.store.frame import as_frame  # noqa: F401 - with pandas, before the first fork
from repdyn.store.remote import RemoteFolder
from repdyn.utils.files import is_url

KILLS = {"moments": 300, "events": 200}
"""Other numbers of kills are read from the variables REPDYN_KILLS_MOMENTS and REPDYN_KILLS_EVENTS."""
FILE_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "request"}
KILLS_OF_ONE_STORE, STEPS_OF_ONE_WRITER, LAYERS = 20, 4, (0, 1, 2)


@pytest.mark.once
@pytest.mark.process
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KILLS)
@pytest.mark.parametrize("place", ["local", "s3"])
def test_kills_lose_and_double_nothing(request, tmp_path, kind, place):
    url = request.getfixturevalue("bucket") if place == "s3" else str(tmp_path / "store")
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    n_kills = os.environ.get(f"REPDYN_KILLS_{kind.upper()}", str(KILLS[kind]))
    command = [sys.executable, __file__, str(tmp_path), url, kind, n_kills]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


def write(url: str, n_steps: int, attempt: int, promise: Callable[[int], Any]) -> None:
    """Write the steps that a store lacks, each with the number of the attempt, and promise each that it has."""
    store = open_store(url)
    for step in range(n_steps):
        key = replace(KEY, step=step)
        if key not in store:
            store.write(
                key, [row(step=step, layer=layer, value=step + layer / 10, seconds=attempt) for layer in LAYERS]
            )
        promise(step)
    assert store.drain(120) is None


def check(store: Store, promised: dict[int, int], *, is_complete: bool = False) -> None:
    """Compare a store with the steps that were promised, and the attempts by which they were."""
    frame = store.to_pandas().sort_values(["step", "layer"]) if promised else None
    steps = [] if frame is None else frame["step"].unique().tolist()
    assert set(promised) <= set(steps), f"lost: {set(promised) - set(steps)}"
    assert not is_complete or steps == list(promised)
    if frame is not None:
        expected = [(step, layer, step + layer / 10) for step in steps for layer in LAYERS]
        assert list(frame[["step", "layer", "value"]].itertuples(index=False, name=None)) == expected
        written = frame.groupby("step")["seconds"].max()
        assert all(written[step] <= attempt for step, attempt in promised.items()), "measured a second time"


def forked(work: Callable[[Callable[[int], Any]], None], kill_after: float | None = None) -> tuple[list[int], int]:
    """Run work in a child, killed after some seconds; return the steps that it promised, and its status."""
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
    """Kill this process at one of the file events in a folder, or of the begins and ends of requests."""
    numbers, attempt = itertools.count(1), RemoteFolder._attempt

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FILE_EVENTS and folder in str(arguments[0]) and next(numbers) == event_number:
            os.kill(os.getpid(), signal.SIGKILL)

    def audited(self: RemoteFolder, *arguments: Any) -> Any:
        sys.audit("request", folder)
        found = attempt(self, *arguments)
        sys.audit("request", folder)
        return found

    setattr(RemoteFolder, "_attempt", audited)  # noqa: B010 - in the child alone
    sys.addaudithook(hook)


def main(folder: str, url: str, kind: str, n_kills: int) -> None:
    """Kill writers of one store after another; after each kill check it, and at its end complete it."""
    began, n_killed, n_promised, per_store = time.monotonic(), 0, 0, KILLS_OF_ONE_STORE if kind == "moments" else 1
    assert not forked(lambda promise: write(f"{url}/first", STEPS_OF_ONE_WRITER, 0, promise))[1]
    seconds, generator = time.monotonic() - began, random.Random(0)
    for first in range(0, n_kills, per_store):
        place, promised = f"{url}/{first}", dict[int, int]()
        copy = Store(copy_folder(place) if is_url(place) else Path(place))
        attempts = range(first, min(first + per_store, n_kills))
        for attempt in attempts:
            n_steps = len(promised) + STEPS_OF_ONE_WRITER if kind == "moments" else n_kills

            def killed(promise: Callable[[int], Any], attempt: int = attempt, n_steps: int = n_steps) -> None:
                if kind == "events":
                    kill_at(attempt + 1, folder)
                write(place, n_steps, attempt, promise)  # noqa: B023 - called in this round

            found, status = forked(killed, generator.uniform(0, 1.2 * seconds) if kind == "moments" else None)
            n_killed += status == -signal.SIGKILL
            promised |= {step: attempt for step in found if step not in promised}
            assert status in (0, -signal.SIGKILL)
            assert not forked(lambda _: check(copy, promised))[1]  # noqa: B023

        last = len(promised) + 1
        found, status = forked(lambda promise: write(place, last, attempts[-1] + 1, promise))  # noqa: B023
        assert not status
        promised = {step: promised.get(step, attempts[-1] + 1) for step in found}
        os.environ["REPDYN_CACHE"], own = f"{folder}/elsewhere", os.environ.get("REPDYN_CACHE", f"{folder}/cache")
        assert not forked(lambda _: check(open_store(place), promised, is_complete=True))[1]  # noqa: B023
        os.environ["REPDYN_CACHE"] = own
        n_promised += len(promised)
    print(f"{n_killed} of {n_kills} killed, {n_promised} steps promised, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
