"""The layout of TensorBoard's tab Custom Scalars: the layers of a metric in one chart, their mean with its range."""

from __future__ import annotations

import re
from collections.abc import Collection

Layout = dict[str, dict[str, list[str | list[str]]]]
"""Chart type and keys by category and title, as ``SummaryWriter.add_custom_scalars`` takes it."""


def layout_of(keys: Collection[str]) -> Layout:
    """Return a category for each metric and token subset: a chart of its layers, and one of mean, minimum and maximum.

    Args:
        keys: names of logged values, as :func:`repdyn.publish.keys.logged_values` makes them; others are left out.

    >>> layout_of(["two_nn/layer_00", "two_nn/mean", "train/loss"])
    {'two_nn': {'two_nn: layers': ['Multiline', ['^two_nn/layer_\\\\d+$']], 'two_nn: mean, min, max': \
['Multiline', ['^two_nn/(mean|min|max)$']]}}
    """
    layout: Layout = {}
    for section in dict.fromkeys(key.rpartition("/")[0] for key in sorted(keys) if key.endswith("/mean")):
        patterns = {"layers": r"layer_\d+", "mean, min, max": "(mean|min|max)"}
        charts = {
            title: f"^{re.escape(section)}/{pattern}$"
            for title, pattern in patterns.items()
            if any(re.fullmatch(f"{re.escape(section)}/{pattern}", key) for key in keys)
        }
        layout[section] = {f"{section}: {title}": ["Multiline", [tag]] for title, tag in charts.items()}
    return layout
