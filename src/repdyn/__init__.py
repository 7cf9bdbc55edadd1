"""Representation dynamics: watch the inner geometry of a transformer evolve while it trains."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from repdyn.utils.extras import lazy_names

if TYPE_CHECKING:
    from repdyn import kernels
    from repdyn.activations import attention_weights, layer_states, load_model, output_head
    from repdyn.checkpoints.sweep import Sweep, sweep
    from repdyn.measurement.measure import Profile, measure
    from repdyn.metrics import Metric, register_metric
    from repdyn.probe import Probe
    from repdyn.probe.design import Design
    from repdyn.store import Store, open_store
    from repdyn.tracking.schedule import Schedule
    from repdyn.tracking.tracker import Tracker
    from repdyn.utils.distributed import Ranks
    from repdyn.views.display import Display
    from repdyn.views.judging import insights
    from repdyn.views.tables.sql import query

__all__ = [
    "Design",
    "Display",
    "Metric",
    "Probe",
    "Profile",
    "Ranks",
    "Schedule",
    "Store",
    "Sweep",
    "Tracker",
    "attention_weights",
    "insights",
    "kernels",
    "layer_states",
    "load_model",
    "measure",
    "open_store",
    "output_head",
    "query",
    "register_metric",
    "sweep",
]

_HOMES = {
    "Design": "repdyn.probe.design",
    "Display": "repdyn.views.display",
    "Metric": "repdyn.metrics",
    "Probe": "repdyn.probe",
    "Profile": "repdyn.measurement.measure",
    "Ranks": "repdyn.utils.distributed",
    "Schedule": "repdyn.tracking.schedule",
    "Store": "repdyn.store",
    "Sweep": "repdyn.checkpoints.sweep",
    "Tracker": "repdyn.tracking.tracker",
    "attention_weights": "repdyn.activations",
    "insights": "repdyn.views.judging",
    "layer_states": "repdyn.activations",
    "load_model": "repdyn.activations",
    "measure": "repdyn.measurement.measure",
    "open_store": "repdyn.store",
    "output_head": "repdyn.activations",
    "query": "repdyn.views.tables.sql",
    "register_metric": "repdyn.metrics",
    "sweep": "repdyn.checkpoints.sweep",
}


_named = lazy_names("repdyn", _HOMES)


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: torch takes seconds, and `repdyn --help` has no use for
    it.
    """
    if name in {"kernels", "lab", "torchmetrics", "views"}:
        return import_module(f"repdyn.{name}")
    return _named(name)


def _picture(shown: Any) -> bytes | None:
    try:
        return import_module("repdyn.views.plots.notebook").picture(shown)
    except ImportError:  # the packages that draw are optional
        return None


def _show_in_notebooks() -> None:
    """Have IPython, where this runs in one, show the picture of a profile or a store on the last
    line of a cell.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        for name in ("Profile", "Store"):
            home = "repdyn.store.store" if name == "Store" else _HOMES[name]
            shell.display_formatter.formatters["image/png"].for_type_by_name(home, name, _picture)


_show_in_notebooks()
