"""Representation dynamics: watch the inner geometry of a transformer evolve while it trains."""

from repdyn import kernels
from repdyn.measure import Profile, measure
from repdyn.probe import Probe
from repdyn.schedule import Schedule
from repdyn.store import Store, open_store

__all__ = ["Probe", "Profile", "Schedule", "Store", "kernels", "measure", "open_store"]
