"""Isolation of the random number generators of a training from what is run beside it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def isolated_rng() -> Iterator[None]:
    """Restore the global generators of Python, NumPy and PyTorch on leaving: on the CPU and, once in use, on CUDA."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    # asking for the state of CUDA would initialize it, on every device of the machine
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
