"""Utilities: suggestions for mistyped names, attempts, time limits, locked temporary files."""

import random
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from repdyn.checkpoints.downloads import Downloads
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.options import SweepOptions
from repdyn.utils.attempts import TimeoutRunner, attempts
from repdyn.utils.caller_state import isolated_rng


def test_every_part_is_tried_and_the_first_failure_raised():
    done = []

    def look_up(keys):
        with attempts() as attempt:
            for key in keys:
                with attempt():
                    done.append({"a": 1, "d": 4}[key])

    with pytest.raises(KeyError, match="'b'"):
        look_up("abcd")
    assert done == [1, 4]


def test_an_interruption_is_no_failure_to_be_kept():
    done = []

    def interrupted():
        with attempts() as attempt:
            with attempt():
                raise KeyboardInterrupt
            done.append("more")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not done


def test_values_and_errors_come_back():
    patience = TimeoutRunner(5)
    assert patience("adding", lambda: 1 + 1) == 2
    with pytest.raises(ZeroDivisionError):
        patience("dividing", lambda: 1 / 0)


def test_a_call_that_hangs_is_given_up_and_the_next_not_tried_until_it_has_returned():
    patience = TimeoutRunner(0.05)
    release = threading.Event()
    with pytest.raises(
        TimeoutError,
        match=r"writing took more than 0.05 s; is the disk or the network mount there\?",
    ):
        patience("writing", release.wait)
    with pytest.raises(TimeoutError, match="reading was not tried: writing still has not returned"):
        patience("reading", lambda: 1)
    release.set()
    assert patience._running is not None
    assert patience._running[1].result(5)
    assert TimeoutRunner(5)("reading", lambda: 1) == 1
    assert patience("reading", lambda: 1) == 1


OWNER = """
import sys, time
from pathlib import Path
from repdyn.checkpoints.hub import Hub
from repdyn.checkpoints.options import SweepOptions
from repdyn.checkpoints.downloads import Downloads

downloads = Downloads(Hub(), SweepOptions(downloads=Path(sys.argv[1])))
with downloads.opened():
    (downloads.folder / "weights.dat").touch()
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def temporary(tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.fixture
def owner(temporary):
    """A process with a temporary folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(temporary)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def test_what_a_killed_process_left_is_removed_and_what_a_running_one_has_is_not(owner, temporary):
    (folder,) = (temporary / "repdyn-downloads").iterdir()
    downloads = Downloads(Hub(), SweepOptions(downloads=temporary))
    downloads.purge()
    assert (folder / "weights.dat").exists()

    owner.send_signal(signal.SIGKILL)
    owner.wait()
    downloads.purge()
    assert list(folder.parent.iterdir()) == []


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


@pytest.mark.parametrize("fails", [False, True])
def test_generators_go_on_as_if_nothing_had_been_drawn(fails):
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    first = draw()
    expected = draw()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert draw() == first
    try:
        with isolated_rng():
            torch.manual_seed(7)
            assert draw() != expected
            if fails:
                raise ValueError
    except ValueError:
        assert fails
    assert draw() == expected
