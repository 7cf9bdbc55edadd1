"""State of the caller's process that must not influence a measurement, and that a measurement must
not change: settings of torch and numpy, random generators.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar

import numpy as np
import torch

from repdyn.utils.internals import (
    default_device,
    without_dispatch_modes,
    without_function_modes,
)

_DEFAULTS: ContextVar[tuple[torch.device, torch.dtype] | None] = ContextVar(
    "defaults", default=None
)
"""The caller's default device and dtype, inside :func:`plain_state`."""


@contextmanager
def plain_state() -> Iterator[None]:
    """Run under torch's and numpy's own defaults, and restore the caller's settings on leaving.

    These are the default device and dtype, gradient and inference mode, anomaly detection,
    deterministic algorithms, autocast, modes that see or change operations (flop counters, default
    devices), and what numpy does at an overflow. Nested, it does nothing more.
    """
    if _DEFAULTS.get() is not None:
        yield
        return
    with ExitStack() as stack:
        # first: a mode would see, and a default device change, the calls of torch that follow
        stack.enter_context(without_dispatch_modes())
        stack.enter_context(without_function_modes())
        device = default_device()
        dtype = torch.get_default_dtype()
        is_strict = torch.are_deterministic_algorithms_enabled()
        only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
        stack.callback(_DEFAULTS.reset, _DEFAULTS.set((device, dtype)))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda", "mps", "xpu"):
            if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.is_anomaly_enabled():
            stack.enter_context(torch.autograd.set_detect_anomaly(False))
        stack.enter_context(np.errstate(all="warn", under="ignore"))
        if is_strict:
            stack.callback(torch.use_deterministic_algorithms, True, warn_only=only_warns)
            torch.use_deterministic_algorithms(False)
        if dtype != torch.float32:
            stack.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(torch.float32)
        yield


@contextmanager
def defaults_of_model(device: torch.device, dtype: torch.dtype | None) -> Iterator[None]:
    """Give a model's own code the caller's default device and dtype where the model has the same.

    A forward that makes positions without a device, ``torch.arange(n)``, works for a model on CUDA
    only where CUDA is the default device, as its user has made it.
    """
    caller_device, caller_dtype = _DEFAULTS.get() or (torch.device("cpu"), torch.float32)
    is_on_default = device.type == caller_device.type and device.type != "cpu"
    before = torch.get_default_dtype()
    with caller_device if is_on_default else nullcontext():
        if dtype == caller_dtype:
            torch.set_default_dtype(caller_dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


@contextmanager
def isolated_rng(seed: int | None = None) -> Iterator[None]:
    """Restore the global generators of Python, NumPy and PyTorch on leaving: on the CPU and, once
    in use, on CUDA.

    With a seed all of them start with it.
    """
    python = random.getstate()
    numpy = np.random.get_state()
    cpu = torch.get_rng_state()
    # asking for the state of CUDA would initialize it, on every device of the machine
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    if seed is not None:
        random.seed(seed)
        np.random.seed(seed)
        # not torch.manual_seed, which would leave a seed for CUDA where that is not in use yet
        for generator in [
            torch.default_generator,
            *(torch.cuda.default_generators if cuda else ()),
        ]:
            generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
