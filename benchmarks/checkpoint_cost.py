"""Measure the cost of one checkpoint of a sweep, step by step: load, forward, kernels.

python benchmarks/checkpoint_cost.py                  the size of Pythia-70m, weights at random
python benchmarks/checkpoint_cost.py --size 410m --repeats 3

The download is left out: it is a matter of the network. The probe is the default one of a sweep (4 batches of 4096
vectors, 8 of each window of 80 tokens) on the built-in text. Weights at random cost what trained ones do in load and
forward; in the kernels, trained states may differ a little.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from repdyn import Probe, open_store
from repdyn.data.byte_tokenizer import byte_tokenizer
from repdyn.checkpoints.loading import Loading
from repdyn.probe.design import MAX_VECTORS
from repdyn.checkpoints.run import Timing, measure_checkpoint
from repdyn.checkpoints.downloads import LocalFiles
from repdyn.checkpoints.targets import Target
from repdyn.checkpoints.plan import Settings, Task
from repdyn.text.source import load_corpus

# width, layers, heads of the published configurations
SIZES = {"14m": (128, 6, 4), "31m": (256, 6, 8), "70m": (512, 6, 8), "160m": (768, 12, 12), "410m": (1024, 24, 16)}
VOCABULARY = 50304


def save_model(size: str, folder: Path) -> None:
    """Return a model of a published size in the precision of the Pythia models."""
    width, n_layers, n_heads = SIZES[size]
    config = GPTNeoXConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=n_layers,
        num_attention_heads=n_heads,
        intermediate_size=4 * width,
    )
    torch.manual_seed(0)
    GPTNeoXForCausalLM(config).half().save_pretrained(folder)


def time_once(folder: Path, step: int, probe: Probe) -> Timing:
    """Load, run and measure the model as a sweep does."""
    task = Task(Target("benchmark", step, f"step{step}", path=folder), probe)
    settings = Settings(loading=Loading(dtype="float32"))
    return measure_checkpoint(task, LocalFiles(folder, 0, 0.0), open_store(folder / "store"), settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="70m", help="of Pythia (default: %(default)s)")
    parser.add_argument(
        "--max-vectors", type=int, default=MAX_VECTORS, help="measured per layer (default: %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="(default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        save_model(options.size, Path(folder))
        n_bytes = sum(path.stat().st_size for path in Path(folder).iterdir() if path.is_file())
        text = load_corpus("builtin").data.decode()
        probe = Probe.from_texts([text], byte_tokenizer(), max_vectors=options.max_vectors)
        timings = [time_once(Path(folder), step, probe) for step in range(options.repeats)]
    print(f"Pythia-{options.size}'s size, {n_bytes / 1e9:.2f} GB on disk, {torch.get_num_threads()} threads")
    for name in ("load", "forward", "kernels", "total"):
        seconds = [getattr(timing, name) for timing in timings]
        print(f"{name:>8}: median {median(seconds):6.2f} s, {min(seconds):.2f} to {max(seconds):.2f}")
    print(f"share of the kernels: {median(timing.kernels / timing.total for timing in timings):.0%}")


if __name__ == "__main__":
    main()
