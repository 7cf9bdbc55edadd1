"""The machine, date and versions of a benchmark."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import psutil
import torch


def facts(command: str) -> dict[str, str]:
    """Return processor, cores, memory, threads, date, versions and command line as text,
    by name.
    """
    cores = os.cpu_count() or 1
    return {
        "machine": (
            f"{processor()}, {cores} {'core' if cores == 1 else 'cores'}, "
            f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
        ),
        "threads": str(torch.get_num_threads()),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}",
        "command": command,
    }


def processor() -> str:
    """Return the processor's name if the system reports it, otherwise its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
