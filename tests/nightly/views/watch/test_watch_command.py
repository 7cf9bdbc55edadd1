"""``repdyn watch``: what it takes, where it serves, and how it ends."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest
from synthetic_runs import fill, make_rows


@pytest.fixture
def started():
    """Start the command; returns the process."""
    processes = []

    def start(*arguments):
        command = [sys.executable, "-m", "repdyn", "watch", *map(str, arguments)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.process
def test_it_waits_for_runs_takes_the_next_port_and_ends_at_once(started, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = started(
            tmp_path / "later", "--port", port, "--interval", "0.1", "--token", "a-token-of-mine"
        )
        lines = [process.stdout.readline() for _ in range(3)]
    address = urlsplit(lines[1].split()[6])
    assert lines == [
        f"port {port} is not free, port {address.port} is used instead\n",
        (
            f"the table of runs is at http://127.0.0.1:{address.port}/?token=a-token-of-mine "
            f"(Ctrl-C ends it)\n"
        ),
        f"no measurement in {tmp_path / 'later'} yet; the page shows them as they appear\n",
    ]
    connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=20)
    connection.request("GET", f"/?{address.query}")
    answer = connection.getresponse()
    answer.read()
    cookie = answer.headers["set-cookie"].partition(";")[0]
    connection.request("GET", "/events", headers={"Cookie": cookie})
    stream = connection.getresponse()
    fill(tmp_path / "later" / "repdyn", make_rows(run="first", steps=(0,), n_blocks=1))
    while b'"label": "first"' not in stream.readline():
        pass
    # an open stream of events is no reason to wait
    started_to_end = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    assert time.monotonic() - started_to_end < 5
    assert process.stderr.read() == "stopped\n"
