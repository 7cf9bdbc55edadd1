"""How many files and rooms of repdyn a sweep from the command line goes through, and how often it
goes from one file to another before it measures.

    python benchmarks/walk_of_a_sweep.py           # the figures
    python benchmarks/walk_of_a_sweep.py --list    # the functions too, file by file

The sweep is `repdyn sweep FOLDER --probe FILE` over two checkpoints of a small Llama on this
machine. A visit is a stay in one file: it ends where a function of another file is called, or
returned to. What is counted runs in the main thread of the second of two such sweeps, in which
nothing is imported any more.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from repdyn import Probe
from repdyn.cli.main import main as run_command

MEASURES = "measure_with"
"""The function in which a measurement of a model begins."""


class Walk:
    """The files of repdyn that a program is in, one after the other."""

    def __init__(self) -> None:
        self.visits: list[str] = []
        self.functions: dict[str, set[str]] = {}
        self.n_before_measuring: int | None = None

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            self._enter(frame)
        elif event == "return" and frame.f_back is not None:
            self._enter(frame.f_back)

    def _enter(self, frame: FrameType) -> None:
        file = _file_of(frame)
        if file is None:
            return
        name = frame.f_code.co_qualname
        self.functions.setdefault(file, set()).add(name)
        if name == MEASURES and self.n_before_measuring is None:
            self.n_before_measuring = len(self.visits)
        if not self.visits or self.visits[-1] != file:
            self.visits.append(file)


def _file_of(frame: FrameType) -> str | None:
    """Return the file of a function within the package; None for those of others."""
    _, package, file = frame.f_code.co_filename.partition("/src/repdyn/")
    return file if package else None


def room_of(file: str) -> str:
    """Return the folder of a file, which is its room; a file beside the rooms is one itself."""
    return file.rpartition("/")[0] or file


def save_checkpoints(folder: Path) -> None:
    """Save two checkpoints of a small model."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
    for step in (0, 1):
        LlamaForCausalLM(config).save_pretrained(folder / f"step{step}")


def walk_of_a_sweep() -> Walk:
    """Return the walk of a sweep of two checkpoints."""
    walk = Walk()
    with tempfile.TemporaryDirectory() as temporary, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(temporary)
        save_checkpoints(folder / "run")
        tokens = torch.randint(0, 64, (64, 32))
        probe = folder / "probe.safetensors"
        Probe.from_tokens(tokens, max_vectors=512, batch_vectors=256).save(probe)
        sweep = ["sweep", str(folder / "run"), f"--probe={probe}"]
        _succeed([*sweep, f"--store={folder / 'first'}"])
        sys.setprofile(walk.note)
        try:
            _succeed([*sweep, f"--store={folder / 'second'}"])
        finally:
            sys.setprofile(None)
    return walk


def _succeed(arguments: list[str]) -> None:
    """Run a command of repdyn, which has to succeed."""
    if status := run_command(arguments):
        raise RuntimeError(f"expected a command that succeeds, got status {status}: {arguments}")


def _extent(visits: list[str]) -> str:
    files = set(visits)
    return f"{len(files)} files in {len(set(map(room_of, files)))} rooms"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="name the functions")
    options = parser.parse_args()
    walk = walk_of_a_sweep()
    before = walk.visits[: walk.n_before_measuring]
    print(f"before it measures: {len(before)} visits to {_extent(before)}")
    print(f"to the end of its figures and report: {_extent(walk.visits)}")
    if options.list:
        for file, names in sorted(walk.functions.items()):
            print(f"  {file} ({before.count(file)} visits): {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
