"""What running a model on the probe costs beside a plain pass over the same windows, part by part.

    OMP_NUM_THREADS=1 python benchmarks/forward_cost.py
    OMP_NUM_THREADS=1 python benchmarks/forward_cost.py --size 6x384 --family bert --repeats 3

The plain pass runs the body of the model on whole windows, without hidden states, in batches as
large as a measurement's. A measurement finds out how the model runs ("prepare", which a tracker
does once), runs it on the tokens that are needed, and records the sampled ones of each block.
Processor time, interleaved in one process; medians of ratios with their ranges.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import yaml
from machine import facts
from measurement_cost import ROOT, interleaved, job_of, sized

from repdyn import Probe
from repdyn.capture.capture import capture
from repdyn.capture.states import Recorder
from repdyn.measurement.measure import prepare_for
from repdyn.measurement.options import Measurement, MeasurementOptions

TOKENS_PER_FORWARD = 2048
"""Of a forward pass on a CPU."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="quickstart", help="LAYERSxWIDTH (default: %(default)s)")
    parser.add_argument("--family", default="gpt_neox", help="of train.py (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=7, help="(default: %(default)s)")
    options = parser.parse_args()
    config = yaml.safe_load(Path(ROOT / "configs" / "quickstart.yaml").read_text())
    config["model"]["family"] = options.family
    module, probe, _, _ = job_of(sized(config, options.size), torch.device("cpu"), True)
    for name, fact in facts(f"forward_cost.py, {options.family}, {options.size}").items():
        print(f"{name}: {fact}")
    model = module.model.eval()
    measurement = Measurement(probe=probe, options=MeasurementOptions())
    prepared = prepare_for(model, measurement)
    subsets = measurement.subsets
    whole = list(probe.batches(TOKENS_PER_FORWARD // int(probe.lengths.max())))
    needed = needed_batches(probe, subsets, prepared.is_causal is True and prepared.any_length)
    recorded: list[float] = []
    work: dict[str, Callable[[], Any]] = {
        "plain pass": partial(run, model, whole),
        "plain pass over the tokens needed": partial(run, model, needed),
        "prepare": partial(prepare_for, model, measurement),
        "run and record": partial(captured, recorded, prepared, probe, subsets),
    }
    times = interleaved(work, options.repeats)
    times["of it recording"] = recorded[-options.repeats :]
    for name, batches in (("whole windows", whole), ("needed", needed)):
        print(f"tokens, {name}: {sum(batch.input_ids.numel() for batch in batches):,}")
    for name, seconds in times.items():
        ratios = [s / plain for s, plain in zip(seconds, times["plain pass"], strict=True)]
        print(
            f"{name}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), "
            f"{1000 * statistics.median(seconds):.0f} ms"
        )


def needed_batches(probe: Probe, subsets: Sequence[str], is_cut: bool) -> list[Any]:
    """Return the batches that a measurement of the subsets runs."""
    sampled = torch.cat([torch.as_tensor(probe.tokens_of(subset)) for subset in subsets]).unique()
    needed = probe.tokens_needed(sampled.numpy(), is_cut)
    return list(probe.batches(TOKENS_PER_FORWARD // int(needed.max()), needed))


@torch.no_grad()
def run(model: Any, batches: list[Any]) -> None:
    """Run the body of a model on batches."""
    for batch in batches:
        model.base_model(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False
        )


def captured(recorded: list[float], prepared: Any, probe: Probe, subsets: Sequence[str]) -> None:
    """Run a model on a probe, and add the seconds that recording took to ``recorded``."""
    keep = Recorder._keep
    seconds = 0.0

    def clocked(recorder: Recorder, *arguments: Any) -> None:
        nonlocal seconds
        start = time.process_time()
        keep(recorder, *arguments)
        seconds += time.process_time() - start

    with mock.patch.object(Recorder, "_keep", clocked):
        capture(prepared, probe, subsets)
    recorded.append(seconds)


if __name__ == "__main__":
    main()
