"""The hub on this machine and the family of checkpoints that the sweep's tests use."""

from __future__ import annotations

from sweep.conftest import family, hub, waits

__all__ = ["family", "hub", "waits"]
