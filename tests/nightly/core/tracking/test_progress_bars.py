"""Lines of a tracker on the screen of a terminal on which a progress bar is drawn, and without
one.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[3]
ROWS, COLUMNS = 200, 250
_CONTROL = re.compile(
    r"\x1b\[(?P<numbers>[\d;?]*)(?P<command>[A-Za-z])|(?P<character>.)", re.DOTALL
)
_PROBE = """
from pathlib import Path
from repdyn import Probe
from small import HandWritten, random_tokens

probe = Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
"""
_OWN_LOOP = """
import sys
from repdyn import Tracker
from tqdm.auto import tqdm

model = HandWritten()
bar = tqdm(range(24), mininterval=0, file={file})
with bar as steps, Tracker(model, probe, 8, report=False) as following:
    for _ in steps:
        following.step()
"""
_LIGHTNING = """
from jobs import Job, batches, tracker, trainer
from lightning.pytorch.callbacks import TQDMProgressBar

bars = {bars}
callbacks = (tracker(probe, 8, report=False), *bars)
steps = {{"max_steps": 24, "max_epochs": -1}}
trainer(Path(), *callbacks, enable_progress_bar=True, **steps).fit(Job(), batches())
"""
LOOPS = {
    "tqdm": _PROBE + _OWN_LOOP.format(file="sys.stderr"),
    "tqdm on standard output": _PROBE + _OWN_LOOP.format(file="sys.stdout"),
    "the default of Lightning": _PROBE + _LIGHTNING.format(bars="()"),
    "tqdm of Lightning": _PROBE + _LIGHTNING.format(bars="(TQDMProgressBar(),)"),
}
BAR = re.compile(r"\d+%\|.*\d+/\d+|[━╸╺]+.*\d+/\d+")


def environment(folder: Path) -> dict[str, str]:
    sources = (TESTS.parent / "src", TESTS, TESTS / "support")
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, sources)),
        "TERM": "xterm",
        "PYTHONWARNINGS": "ignore",
        "HOME": str(folder),
    }


def run_in_terminal(script: str, folder: Path) -> str:
    """Run a script whose streams are a terminal, and return all that it wrote there."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, cwd=folder, env=environment(folder)
    )
    os.close(its)
    written = b""
    try:
        while piece := os.read(mine, 1 << 16):
            written += piece
    except OSError:  # the terminal of a process that has ended
        pass
    os.close(mine)
    assert process.wait() == 0, written.decode()
    return written.decode()


def screen(written: str) -> list[str]:
    """Return the lines of a terminal that has been written to.

    >>> screen("12%|#\\r     \\rtext\\r\\n24%|##")
    ['text', '24%|##']
    >>> screen("one\\r\\ntwo\\x1b[1A\\r\\x1b[2Kthree")
    ['three', 'two']
    """
    lines, row, column = [""], 0, 0
    for token in _CONTROL.finditer(written):
        number = int(token["numbers"]) if (token["numbers"] or "").isdigit() else 1
        match token["command"] or token["character"]:
            case "A" if token["command"]:
                row = max(0, row - number)
            case "K" if token["command"]:
                lines[row] = lines[row][:column] if token["numbers"] in {"", "0"} else ""
            case "\r":
                column = 0
            case "\n":
                row += 1
                lines += ["" for _ in range(row + 1 - len(lines))]
            case character if token["character"]:
                lines[row] = (
                    lines[row].ljust(column)[:column] + character + lines[row][column + 1 :]
                )
                column += 1
    return [line.rstrip() for line in lines]


def test_the_screen():
    assert screen("12%|#\r     \rtext\r\n24%|##") == ["text", "24%|##"]
    assert screen("one\r\ntwo\x1b[1A\r\x1b[2Kthree\x1b[0m") == ["three", "two"]


@pytest.mark.process
@pytest.mark.parametrize("loop", LOOPS)
def test_lines_above_a_bar(loop, tmp_path):
    written = run_in_terminal(LOOPS[loop], tmp_path)
    lines = screen(written)
    assert sum(line.startswith("repdyn: a measurement takes ") for line in lines) == 1, lines
    assert all(line.startswith("repdyn: ") for line in lines if "repdyn: " in line)
    # the bar is drawn before the forecast, which follows some steps, and again after it
    before, after = written.split("repdyn: a measurement takes ")
    assert BAR.search(before)
    assert BAR.search(after)


@pytest.mark.process
def test_lines_in_a_file(tmp_path):
    """Where standard error is no terminal, a bar is lines of their own, and none of ours is lost
    among them.
    """
    command = [sys.executable, "-c", LOOPS["tqdm"]]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment(tmp_path), check=True
    )
    lines = screen(done.stderr.replace("\n", "\r\n"))
    assert sum(line.startswith("repdyn: a measurement takes ") for line in lines) == 1


def test_nobody_draws_a_bar(tmp_path):
    """Then tqdm is not imported for it."""
    script = (
        "import sys; from repdyn.utils.printing import print_above_bars; print_above_bars('a "
        "line'); "
        "print('tqdm' in sys.modules)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(tmp_path), check=True
    )
    assert done.stdout == "False\n"
    assert done.stderr == "a line\n"
