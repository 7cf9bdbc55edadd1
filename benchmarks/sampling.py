"""Hold the default sampling design against independent vectors, and its intervals against fresh
probes.

    python benchmarks/sampling.py
    python benchmarks/sampling.py --models llama-300 encoder-300 --probes 10

Probes of disjoint windows of one text are measured by the default design: 4,096 vectors, 8 of each
of 512 windows of 80 tokens. ``covers the mean`` is the share of probes, over all blocks, in which
value +- 1.96 std_error contains the mean over all probes, ``covers another`` the share of pairs in
which [low, high] of one contains the value of the other: both should be 95%. ``error / spread``
compares the root mean square of std_error with the spread over probes. The last two columns are the
deviation from one vector of each of 4,096 windows: of the default, and of dense windows, all tokens
of 51 windows with the neighbours of the own window.

The models that CALIBRATION names judge the factor of TwoNN's standard error (SHARED_NEIGHBOURS): no
block of theirs may have an error below 0.95 of its spread. The others test it. Small models are
trained here, on text that comes with Python; with REPDYN_DATA set to a folder that has
stories260K-hf and enwiki_extract.txt.xz, that model is measured too, and all probes are Wikipedia
text.
"""

from __future__ import annotations

import argparse
import lzma
import math
import os
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from repdyn import Probe, measure
from repdyn.data.datamodule import TextDataModule
from repdyn.data.tokens import byte_tokenizer
from repdyn.kernels.two_nn import SHARED_NEIGHBOURS
from repdyn.models import LanguageModel, objective_of
from repdyn.probe.corpus import load_corpus
from repdyn.probe.design import BATCH_VECTORS, DENSE, INDEPENDENT, Design

METRICS = ("anisotropy", "two_nn", "norm", "alignment", "step_cosine")
CALIBRATION = ("decoder-0", "decoder-60", "gpt2-300")
_LENGTH = INDEPENDENT.window_tokens or 80
_PER_WINDOW = INDEPENDENT.vectors_per_window or 8
_N_WINDOWS = BATCH_VECTORS // _PER_WINDOW
_CHARACTERS = 20_000_000


@dataclass(frozen=True)
class Subject:
    """A model, and the tokens of a text that it was not trained on."""

    name: str
    model: nn.Module
    ids: np.ndarray
    special_ids: tuple[int, ...] = ()
    affixes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def windows(self) -> np.ndarray:
        """Return all windows of the text in random order, (n, length), with special tokens around
        them.
        """
        prefix, suffix = self.affixes
        body = _LENGTH - len(prefix) - len(suffix)
        rows = self.ids[: len(self.ids) // body * body].reshape(-1, body)
        rows = rows[np.random.RandomState(0).permutation(len(rows))]
        return np.concatenate(
            [np.tile(prefix, (len(rows), 1)), rows, np.tile(suffix, (len(rows), 1))], 1
        ).astype(int)


def trained(family: str, steps: int, seed: int) -> nn.Module:
    """Train a model of 4 blocks of 64 on bytes of the built-in text."""
    torch.manual_seed(seed)
    data = TextDataModule(
        objective=objective_of(family), sequence_length=128, batch_size=32, seed=seed
    )
    module = LanguageModel(
        family=family,
        hidden_size=64,
        n_layers=4,
        n_heads=2,
        vocab_size=data.vocab_size,
        context_length=128,
        pad_token_id=data.pad_token_id,
    )
    optimizer = torch.optim.AdamW(module.model.parameters(), lr=2e-3)
    batches = iter(data.train_dataloader())
    for _ in tqdm(range(steps), desc=f"{family}, {steps} steps", disable=not steps):
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(data.train_dataloader())
            batch = next(batches)
        module.model(**batch).loss.backward()
        nn.utils.clip_grad_norm_(module.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return module.model.eval()


def subjects(text: str) -> dict[str, Callable[[], Subject]]:
    """Return what makes each model, by its name."""
    data = text.encode()
    ids = np.frombuffer(data, dtype=np.uint8).astype(np.int64)
    encoder = byte_tokenizer(for_encoder=True)
    special = tuple(sorted(encoder.all_special_ids))
    affixes = ((encoder.cls_token_id,), (encoder.sep_token_id,))
    makers: dict[str, Callable[[], Subject]] = {
        f"decoder-{steps}": lambda steps=steps: Subject(
            f"decoder-{steps}", trained("gpt_neox", steps, 0), ids
        )
        for steps in (0, 60)
    }
    makers["llama-300"] = lambda: Subject("llama-300", trained("llama", 300, 1), ids)
    makers["gpt2-300"] = lambda: Subject("gpt2-300", trained("gpt2", 300, 2), ids)
    makers["encoder-300"] = lambda: Subject(
        name="encoder-300",
        model=trained("bert", 300, 3),
        ids=ids,
        special_ids=special,
        affixes=affixes,
    )
    folder = Path(os.environ.get("REPDYN_DATA", "")) / "stories260K-hf"
    if os.environ.get("REPDYN_DATA") and folder.is_dir():
        makers["stories260K"] = lambda: _stories(folder, text, random=False)
        makers["stories260K, random"] = lambda: _stories(folder, text, random=True)
    return makers


def _stories(folder: Path, text: str, random: bool) -> Subject:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(4)
    config = AutoConfig.from_pretrained(folder)
    model = (
        AutoModelForCausalLM.from_config(config)
        if random
        else AutoModelForCausalLM.from_pretrained(folder)
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pieces = [text[start : start + 100_000] for start in range(0, len(text), 100_000)]
    ids = [
        i
        for piece in pieces
        for i in tokenizer(piece, add_special_tokens=False, verbose=False).input_ids
    ]
    return Subject("stories260K, random" if random else "stories260K", model.eval(), np.array(ids))


def held_out_text() -> tuple[str, str]:
    """Return the text of the probes, and its name."""
    folder = os.environ.get("REPDYN_DATA")
    path = Path(folder) / "enwiki_extract.txt.xz" if folder else None
    if path is not None and path.is_file():
        with lzma.open(path, "rt") as file:
            return file.read(_CHARACTERS), "Wikipedia"
    return load_corpus().data.decode(), "built-in text, on which models were trained"


# a column of the table for each branch
def table_row(subject: Subject, n_probes: int) -> list[str]:
    """Measure a model's probes and return one line for each of the two default metrics, and one for
    the others.
    """
    windows = subject.windows()
    n_probes = min(n_probes, len(windows) // _N_WINDOWS)
    rows_of: dict[tuple[str, int], list] = defaultdict(list)
    for number in tqdm(range(n_probes), desc=subject.name):
        part = windows[number * _N_WINDOWS : (number + 1) * _N_WINDOWS]
        for row in measure(subject.model, _probe(subject, part), METRICS).rows:
            if row.layer and row.subset == "all":
                rows_of[row.metric, row.layer].append(row)
    alone = _single(subject, windows[:BATCH_VECTORS], INDEPENDENT)
    dense = _single(subject, windows[: BATCH_VECTORS // _LENGTH + 2], DENSE)
    lines = []
    for metric in METRICS:
        errors = []
        covered = []
        pairs = []
        off = []
        far = []
        for (name, layer), rows in rows_of.items():
            values = np.array([row.value for row in rows])
            if name != metric or not np.isfinite(values).all() or rows[0].std_error is None:
                continue
            error = np.array([row.std_error for row in rows])
            spread = values.std(ddof=1)
            if spread < 1e-9 * abs(values.mean()):
                continue
            errors.append(math.sqrt((error**2).mean()) / spread)
            # a probe is part of the mean, from which it is so much nearer
            shrunk = math.sqrt(1 - 1 / len(values))
            covered += list(abs(values - values.mean()) <= 1.96 * error * shrunk)
            pairs += [one.low <= other.value <= one.high for one, other in permutations(rows, 2)]
            for others, deviations in ((alone, off), (dense, far)):
                reference = alone.get((metric, layer), math.nan)
                compared = (
                    values.mean() if others is alone else others.get((metric, layer), math.nan)
                )
                deviations.append(compared / reference - 1)
        if errors:
            ratio = f"{np.mean(errors):.2f} ({min(errors):.2f} to {max(errors):.2f})"
            shares = f"{np.mean(covered):.1%} | {np.mean(pairs):.1%}"
            by_design = f"{np.nanmean(off):+.1%} | {np.nanmean(far):+.1%}"
            lines.append(
                f"| {subject.name} | {metric} | {n_probes} | {ratio} | {shares} | {by_design} |"
            )
    return lines


def _probe(subject: Subject, windows: np.ndarray, **settings: object) -> Probe:
    return Probe.from_tokens(  # all windows, whatever the bound
        windows, n_windows=len(windows), special_ids=subject.special_ids, **settings
    )  # type: ignore[arg-type]


def _single(subject: Subject, windows: np.ndarray, design: Design) -> dict[tuple[str, int], float]:
    """Return the value of each metric and layer on one probe."""
    rows = measure(subject.model, _probe(subject, windows, design=design), METRICS).rows
    return {(row.metric, row.layer): row.value for row in rows if row.subset == "all" and row.layer}


def main() -> None:
    text, described = held_out_text()
    makers = subjects(text)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", choices=list(makers), default=list(makers), help="(default: all)"
    )
    parser.add_argument(
        "--probes", type=int, default=24, help="of each model (default: %(default)s)"
    )
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "the probe has")
    print(
        f"{described}; torch {torch.__version__}; factor of TwoNN's error {SHARED_NEIGHBOURS}, "
        "judged by",
        *CALIBRATION,
    )
    print(
        "| model | metric | probes | error / spread | covers the mean | covers another | deviation "
        "| dense |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in options.models:
        print(*table_row(makers[name](), options.probes), sep="\n", flush=True)


if __name__ == "__main__":
    main()
