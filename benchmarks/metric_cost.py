"""Measure the cost of each metric relative to the two default metrics.

    python benchmarks/metric_cost.py
    python benchmarks/metric_cost.py --hidden-size 256 --vocabulary 8192 --repeats 5
    python benchmarks/metric_cost.py -o docs/metric_cost.md

A decoder with weights at random reads random tokens, as frequent as words are. Each metric is measured alone, with
nothing to share, and its time is given as a ratio to anisotropy and two_nn together, all in one process, the median
over interleaved repeats. The last column is its share of the metrics' time where all are measured at once: then the
search for neighbours, the spectrum and the ranks among the vocabulary are charged to the first metric that asks.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import torch
from machine import facts
from tqdm import tqdm
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from repdyn import Probe, measure
from repdyn.measurement.measure import Profile
from repdyn.metrics import DEFAULT_METRICS, METRICS, MetricLike
from repdyn.store.schema import Checkpoint
from repdyn.store.state_cache import StateCache

_HEADING = """# What each metric costs

    OMP_NUM_THREADS=1 python benchmarks/metric_cost.py -o docs/metric_cost.md

Each metric measured alone, as a ratio to anisotropy and two_nn together, all in one process: the median over
interleaved repeats. The last column is its share where all are measured at once; then the search for neighbours, the
spectrum and the ranks among the vocabulary are charged to the first that asks. What a metric costs in your own run
stands in its summary.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden-size", type=int, default=768, help="dimension of the vectors (default: %(default)s)")
    parser.add_argument("--vocabulary", type=int, default=50_304, help="input embeddings (default: %(default)s)")
    parser.add_argument("--vectors", type=int, default=4096, help="measured per layer (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="interleaved repeats (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, help="write the table to this file too")
    options = parser.parse_args()
    report = _report(_measured(options), _described(options))
    print(report)
    if options.output:
        options.output.write_text(report)


def model_and_probe(size: int, vocabulary: int, n_vectors: int) -> tuple[GPTNeoXForCausalLM, Probe]:
    """Return a decoder with weights at random and a probe on which every metric is defined."""
    torch.manual_seed(0)
    shape = {"hidden_size": size, "intermediate_size": 4 * size, "num_attention_heads": size // 64}
    model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=vocabulary, num_hidden_layers=2, **shape)).eval()
    # as frequent as words are (Zipf): equally frequent ones would hardly ever be followed by the same token twice
    frequencies = 1 / torch.arange(1, vocabulary + 1)
    tokens = frequencies.multinomial(n_vectors // 200 * 256, replacement=True).view(-1, 256)
    probe = Probe.from_tokens(tokens, max_vectors=n_vectors, batch_vectors=n_vectors)
    return model, probe.with_topics(tokens.flatten() % 10)


def _measured(options: argparse.Namespace) -> dict[str, list[Profile]]:
    """Return profiles of each metric alone, of the defaults and of all, by name."""
    model, probe = model_and_probe(options.hidden_size, options.vocabulary, options.vectors)
    choices: dict[str, list[MetricLike]] = {
        "default": list(DEFAULT_METRICS),
        "all": ["all"],
        **{m: [m] for m in METRICS},
    }
    profiles: dict[str, list[Profile]] = {name: [] for name in choices}
    with (
        tempfile.TemporaryDirectory() as folder,
        tqdm(total=options.repeats * len(choices), unit="measurement") as bar,
    ):
        state_cache = StateCache(Path(folder), run="r", probe=probe.hash)
        measure(model, probe, "all", state_cache=state_cache)  # warms up, and leaves the states to compare with
        for _ in range(options.repeats):
            for name, metrics in choices.items():
                bar.set_postfix_str(name)
                profiles[name].append(
                    measure(model, probe, metrics, checkpoint=Checkpoint(step=1), state_cache=state_cache)
                )
                bar.update()
    return profiles


def _described(options: argparse.Namespace) -> str:
    about = facts("")
    size = f"3 layers of {options.vectors} vectors of {options.hidden_size}, {options.vocabulary} input embeddings"
    return f"{size}; {about['machine']}, threads: {about['threads']}, {about['versions']}, {about['date']}"


def _report(profiles: dict[str, list[Profile]], described: str) -> str:
    default = [profile.kernel_seconds for profile in profiles["default"]]
    lines = [
        "| metric | time alone / default two | range | share of all |",
        "|---|---|---|---|",
    ]
    together: dict[str, float] = {}
    for row in profiles["all"][-1].rows:
        if row.head is None:
            together[row.metric] = together.get(row.metric, 0.0) + row.seconds
    for name in ("all", *METRICS):
        ratios = sorted(own.kernel_seconds / two for own, two in zip(profiles[name], default, strict=True))
        share = 1.0 if name == "all" else together[name] / sum(together.values())
        middle = statistics.median(ratios)
        lines.append(f"| {name} | {middle:.2f} | {ratios[0]:.2f} to {ratios[-1]:.2f} | {share:.0%} |")
    forward = [a.forward_seconds / d.forward_seconds for a, d in zip(profiles["all"], profiles["default"], strict=True)]
    passes = f"The forward passes of all metrics take {statistics.median(forward):.2f} times those of the default two."
    return "\n".join([_HEADING, described + ".", "", *lines, "", passes, ""])


if __name__ == "__main__":
    main()
