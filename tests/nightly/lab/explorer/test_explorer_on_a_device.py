"""The explorer on a device other than the CPU: what it shows is the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pandas as pd
import pytest
import torch
from pretend_cuda import CudaTensor, PretendCuda
from torch import Tensor

from repdyn.lab.explorer.session import Session

SENTENCE = "The £1 coin"


ENCODER, DECODER = 0, 1


def leaves(value: Any) -> Iterator[Any]:
    """Yield the tensors, tables and plain values of nested results, models left out."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from leaves(getattr(value, field.name))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, Tensor | pd.DataFrame | str | int | float):
        yield value


SHOWN = {
    "token": lambda session: session.token(SENTENCE, 5),
    "lens of an encoder": lambda session: session.lens(SENTENCE, ENCODER),
    "lens of a decoder": lambda session: session.lens(SENTENCE, DECODER),
    "attention of an encoder": lambda session: session.attention(SENTENCE, ENCODER, 1),
    "attention of a decoder": lambda session: session.attention(SENTENCE, DECODER, 2),
}


@pytest.mark.parametrize("what", SHOWN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_shown_is_that_of_the_cpu(session, what, dtype):
    for loaded in session.models:
        (loaded.with_head or loaded.model).to(dtype)
    expected = list(leaves(SHOWN[what](session)))
    with PretendCuda() as cuda:
        for loaded in session.models:
            (loaded.with_head or loaded.model).to("cuda")
            assert loaded.model.device.type == "cuda"
        # another session, since each keeps what it has worked out
        values = list(leaves(SHOWN[what](Session(session.models, nearest=3, max_tokens=40))))
        assert cuda.syncs
        values = [value.cpu() if isinstance(value, CudaTensor) else value for value in values]
    assert len(values) == len(expected) >= 3
    for value_of_device, other in zip(values, expected, strict=True):
        if isinstance(other, pd.DataFrame):
            pd.testing.assert_frame_equal(value_of_device, other, rtol=1e-9)
        elif isinstance(other, Tensor):
            assert torch.allclose(value_of_device, other, rtol=1e-9, atol=1e-12, equal_nan=True)
        else:
            assert value_of_device == (
                pytest.approx(other, rel=1e-9, nan_ok=True) if isinstance(other, float) else other
            )
