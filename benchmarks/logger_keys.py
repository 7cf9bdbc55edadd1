"""Count the names that a logger gets from one measurement, for each choice of layers.

    OMP_NUM_THREADS=1 python benchmarks/logger_keys.py

Rows are made up: the metrics on their default token subsets, with single heads where a metric has them. Charts are
those of TensorBoard's tab Custom Scalars; elsewhere each name has a chart of its own by default.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from report_cost import layer_row

from repdyn.metrics import DEFAULT_METRICS, Metric, resolve
from repdyn.publish.keys import LogLayers, logged_values
from repdyn.publish.targets import layout_of
from repdyn.store.schema import Checkpoint, Row

CHOICES = ("all", "default", "none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=32, help="of attention, in a layer (default: %(default)s)")
    options = parser.parse_args()
    print("| measured | `log_layers` | names | sections | charts in Custom Scalars |")
    print("|---|---|---|---|---|")
    for metrics, layers, title in ((DEFAULT_METRICS, 7, "anisotropy, TwoNN"), ("all", 33, "all metrics")):
        pairs = resolve(metrics)
        for choice in CHOICES:
            names, sections, charts = count(pairs, layers, options.heads, choice)
            print(f'| {title}, {layers} layers | "{choice}" | {names:,} | {sections} | {charts} |')


def count(pairs: list[tuple[Metric, str]], n_layers: int, n_heads: int, log_layers: LogLayers) -> tuple[int, int, int]:
    """Return the number of names, of their sections, and of charts in TensorBoard's layout."""
    values = logged_values([*_rows(pairs, n_layers, n_heads)], log_layers)
    charts = sum(len(category) for category in layout_of(values).values())
    return len(values), len({name.rpartition("/")[0] for name in values}), charts


def _rows(pairs: list[tuple[Metric, str]], n_layers: int, n_heads: int) -> Iterator[Row]:
    checkpoint = Checkpoint(run="decoder", model="GPTNeoXForCausalLM", step=8)
    for metric, subset in pairs:
        for layer in range(n_layers):
            if metric.is_defined_at(layer, is_last=layer == n_layers - 1):
                for head in (None, *(range(n_heads) if metric.per_head else ())):
                    yield layer_row(checkpoint, metric, subset, layer, head, 1.0, n_layers)


if __name__ == "__main__":
    main()
