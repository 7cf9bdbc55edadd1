"""Options for loading a model, the same for sweeps, studies and the explorer."""

# Imports torch only when an option is parsed: --help must be quick.
from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from repdyn.utils.arguments import at_least

DTYPE_NAMES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Loading:
    """Settings for loading models.

    Args:
        device: device of the model; with a device map, device of its input.
        dtype: precision of the weights; "auto" keeps the published one. Kernels always compute in float32 and float64.
        device_map: "auto" spreads a model that is larger than the GPU over GPU, memory and disk with accelerate; or a
            device for each module.
        trust_remote_code: run Python code that comes with the model.
        attention: implementation of the attention, such as "eager" or "sdpa"; None for that of the configuration.
    """

    device: str = "cpu"
    dtype: str = "auto"
    device_map: str | Mapping[str, str] | None = None
    trust_remote_code: bool = False
    attention: str | None = None


def add_loading_options(parser: argparse._ActionsContainer, *, dtype: str | None = "float32") -> None:
    """Add ``--tokenizer``, ``--device``, ``--dtype`` and ``--trust-remote-code``.

    Args:
        parser: a parser or an argument group.
        dtype: default precision; None where it depends on what is loaded, as in a sweep.
    """
    parser.add_argument("--tokenizer", help="folder or hub repository of the tokenizer (default: the model's own)")
    parser.add_argument(
        "--device",
        type=device_name,
        default="auto",
        help="device to run models on, such as cpu, cuda or cuda:1 (default: cuda if available, else cpu)",
    )
    default = "float32 for published models, auto for local ones" if dtype is None else dtype
    parser.add_argument(
        "--dtype",
        choices=DTYPE_NAMES,
        default=dtype,
        help=f"precision of the weights; auto keeps the one they were saved in (default: {default})",
    )
    parser.add_argument("--trust-remote-code", action="store_true", help="run Python code that comes with a model")


def add_timeout_option(parser: argparse._ActionsContainer) -> None:
    """Add ``--timeout``."""
    parser.add_argument(
        "--timeout",
        type=at_least(1),
        default=3600,
        metavar="SECONDS",
        help="limit of one download or listing (default: %(default)s)",
    )


def revision_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list; an argparse type."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected revisions separated by commas, got {text!r}")
    return names


def device_name(text: str) -> str:
    """Return the name of a device, or "auto", which :func:`resolved_device` resolves; an argparse type."""
    if text == "auto":
        return text
    import torch

    try:
        torch.device(text)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"expected a device such as cpu, cuda or cuda:1, got {text!r}") from error
    return text


def resolved_device(device: str) -> str:
    """Return the device that "auto" stands for on this machine; any other unchanged."""
    if device != "auto":
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str) -> None:
    """Raise ValueError unless this machine has the device."""
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        raise ValueError(
            f"expected an available device, such as cpu, cuda or cuda:1, got {device!r}: {str(error).splitlines()[0]}"
        ) from error
