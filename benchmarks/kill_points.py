"""Kill sweeps at system calls, and check that the same command then completes them as if nothing had happened.

    apt-get install strace
    python benchmarks/kill_points.py                              # a store in a folder, killed at every 9th call
    python benchmarks/kill_points.py --work compact --every 1
    python benchmarks/kill_points.py --store s3 --every 40        # on an S3-compatible server that it starts (moto)

Each trial runs in a process under strace, which sends SIGKILL at the n-th system call that opens, writes, renames or
removes a file. A second process then does the same to its end. What is read from the store must equal, to the last bit,
what an undisturbed process leaves, with the same files in the store and none in the temporary folder.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from machine import facts
from tqdm import tqdm
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
from transformers.utils import logging

from repdyn import Probe, open_store
from repdyn.cli.sweep import run
from repdyn.checkpoints.options import parser as sweep_parser

CALLS = "openat,write,pwrite64,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,fsync,fdatasync,ftruncate"
N_CHECKPOINTS = 3
KEYS = ["run", "step", "layer", "metric", "subset"]
COMPARED = [*KEYS, "value", "std", "n_unique", "checkpoint", "dtype", "probe"]
_SECONDS = 120
"""Limit of one process; an undisturbed one takes a few seconds."""


@dataclass(frozen=True)
class Trial:
    """One piece of work in folders of its own."""

    folder: Path
    source: Path
    """Folder with the checkpoints and the probe."""
    work: str
    url: str | None
    """URL of the store; None for a folder."""

    @property
    def store(self) -> str:
        return f"{self.url}/{self.folder.name}" if self.url else str(self.folder / "store")

    def prepare(self) -> None:
        for name in ("tmp", "cache"):
            (self.folder / name).mkdir(parents=True)
        if self.work == "compact" and run_forked(self, "sweep") != 0:
            raise RuntimeError("the sweep of the store to be made compact failed")

    def do(self, work: str) -> int:
        """Do the work in this process, and return the exit status."""
        if work == "compact":
            store = open_store(self.store)
            for name in store.runs():
                store.compact(name)
            return 1 if store.drain(_SECONDS) else 0
        options = {"--probe": self.source / "probe.safetensors", "--store": self.store, "--device": "cpu"}
        arguments = [str(self.source / "steps"), *(str(part) for pair in options.items() for part in pair)]
        return run(sweep_parser("repdyn sweep").parse_args(arguments), views=False)

    def rows(self) -> pd.DataFrame:
        """Return the rows of the store but the times that measurements took; downloaded anew if it is on a server."""
        os.environ["REPDYN_CACHE"] = str(self.folder / "reader")
        frame = open_store(self.store).to_pandas()
        kept = ~frame["metric"].str.startswith("seconds")
        return frame.loc[kept, COMPARED].sort_values(KEYS).reset_index(drop=True)

    def files(self) -> Counter[str]:
        """Return the files of the store and of the temporary folder, without the digests in names of compact files."""
        roots = [self.folder / "tmp", *([] if self.url else [self.folder / "store"])]
        names = (str(path.relative_to(self.folder)) for root in roots for path in root.rglob("*"))
        return Counter(re.sub("-[0-9a-f]{32}", "", name) for name in names)


def fork(trial: Trial, work: str) -> tuple[int, int]:
    """Return the process that will do the work, and the descriptor to which a byte is written to let it begin."""
    waiting, begin = os.pipe()
    process = os.fork()
    if process:
        os.close(waiting)
        return process, begin
    status = 1
    try:
        os.close(begin)
        os.read(waiting, 1)
        output = os.open(trial.folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.environ["REPDYN_CACHE"] = str(trial.folder / "cache")
        tempfile.tempdir = str(trial.folder / "tmp")
        status = trial.do(work)
    finally:
        sys.stdout.flush()
        os._exit(status)


def wait(process: int) -> int:
    """Return the exit status of a process, or minus the signal that ended it.

    Raises:
        TimeoutError: it did not end in time.
    """
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    raise TimeoutError(f"a process did not end within {_SECONDS} s")


def run_forked(trial: Trial, work: str | None = None) -> int:
    """Do the work in a process of its own, and return its exit status."""
    process, begin = fork(trial, work or trial.work)
    os.write(begin, b"x")
    os.close(begin)
    return wait(process)


def run_traced(trial: Trial, arguments: list[str]) -> int:
    """Do the work in a process under strace, and return its exit status, or minus the signal that ended it."""
    process, begin = fork(trial, trial.work)
    tracer = subprocess.Popen(
        ["strace", "-f", "-p", str(process), "-e", f"trace={CALLS}", *arguments], stderr=subprocess.PIPE, text=True
    )
    assert tracer.stderr is not None
    if "attached" not in (line := tracer.stderr.readline()):
        os.kill(process, signal.SIGKILL)
        raise RuntimeError(f"expected strace to attach to a process of this user, got {line.strip()!r}")
    os.write(begin, b"x")
    os.close(begin)
    status = wait(process)
    tracer.communicate()
    return status


def count_calls(trial: Trial) -> int:
    """Do the work undisturbed, and return the number of its calls in the thread that makes most of them."""
    log = trial.folder.parent / "calls.txt"
    if status := run_traced(trial, ["-o", str(log)]):
        raise RuntimeError(f"undisturbed, the work ended with {status}: {(trial.folder / 'output.txt').read_text()}")
    threads = Counter(line.split()[0] for line in log.read_text().splitlines() if "(" in line)
    return threads.most_common(1)[0][1]


def kill(trial: Trial, at_call: int) -> bool:
    """Kill the work at a call, and return whether it came so far: threads of a client do not repeat theirs exactly."""
    status = run_traced(trial, ["-e", f"inject={CALLS}:signal=SIGKILL:when={at_call}", "-o", "/dev/null"])
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError(f"expected the process to be killed at call {at_call}, it ended with {status}")
    return status != 0


def complete(trial: Trial, rows: pd.DataFrame, files: Counter[str]) -> str:
    """Do the work again after a kill, and return what is wrong; an empty text if nothing is."""
    if status := run_forked(trial):
        return f"the second process ended with {status}"
    found = trial.rows()
    if found.duplicated(KEYS).any():
        return "rows occur twice"
    if not found.equals(rows):
        return f"{len(found)} rows in place of {len(rows)}, or other values"
    if (left := trial.files() - files) or (lost := files - trial.files()):
        return f"files left: {', '.join(left)}" if left else f"files lost: {', '.join(lost)}"
    return ""


def publish(folder: Path) -> None:
    """Write the checkpoints of a tiny model, and a probe."""
    logging.disable_progress_bar()
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    model = GPTNeoXForCausalLM(config)
    for step in range(N_CHECKPOINTS):
        model.save_pretrained(folder / "steps" / f"step{step}")
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.01 * torch.randn_like(weight))
    Probe.from_tokens(torch.randint(64, (24, 12)), max_vectors=192, batch_vectors=96).save(folder / "probe.safetensors")


@contextmanager
def s3_server() -> Iterator[str]:
    """Run an S3-compatible server, and yield the URL of a bucket in it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.environ |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    try:
        # in a process of its own: a process with threads of the client cannot be forked safely
        make = "import time, s3fs\nfor _ in range(100):\n try: s3fs.S3FileSystem().mkdir('kills'); break\n"
        subprocess.run([sys.executable, "-c", make + " except Exception: time.sleep(0.3)"], check=True)
        yield "s3://kills"
    finally:
        server.terminate()
        server.wait()


@contextmanager
def no_server() -> Iterator[None]:
    yield None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=("sweep", "compact"), default="sweep", help="default: %(default)s")
    parser.add_argument("--store", choices=("folder", "s3"), default="folder", help="default: %(default)s")
    parser.add_argument("--every", type=int, default=9, help="kill at every n-th call (default: %(default)s)")
    options = parser.parse_args()
    if shutil.which("strace") is None:
        parser.error("expected strace, found none; apt-get install strace")
    torch.set_num_threads(1)
    for name, fact in facts(" ".join(["python", "benchmarks/kill_points.py", *sys.argv[1:]])).items():
        print(f"{name}: {fact}")
    with tempfile.TemporaryDirectory() as root, s3_server() if options.store == "s3" else no_server() as url:
        source = Path(root) / "source"
        publish(source)

        def trial(name: str) -> Trial:
            made = Trial(Path(root) / name, source, options.work, url)
            made.prepare()
            return made

        undisturbed = trial("undisturbed")
        n_calls = count_calls(undisturbed)
        rows, files = undisturbed.rows(), undisturbed.files()
        points = range(1, n_calls + 1, options.every)
        faults, n_killed = {}, 0
        for at_call in tqdm(points, unit="kill", disable=None):
            killed = trial(f"call{at_call}")
            n_killed += kill(killed, at_call)
            if fault := complete(killed, rows, files):
                faults[at_call] = fault
            shutil.rmtree(killed.folder)
    print(f"{n_killed} kills among {n_calls} calls; {len(rows)} rows; {len(faults)} faults")
    for at_call, fault in faults.items():
        print(f"  call {at_call}: {fault}")
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
