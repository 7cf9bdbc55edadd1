"""What a model's forward takes, as it is read from its signature."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from repdyn.capture.calls import accepted_by


def passing_on(method):
    """Return a wrapper without the signature of what it wraps, as many decorators leave it."""

    def wrapper(*args, **kwargs):
        return method(*args, **kwargs)

    return wrapper


class Plain(nn.Module):
    def forward(self, tokens: Tensor, scale: float = 1.0) -> Tensor:
        return tokens


class Decorated(nn.Module):
    @passing_on
    def forward(self, tokens: Tensor) -> Tensor:
        return tokens


class Static(nn.Module):
    @staticmethod
    def forward(tokens: Tensor) -> Tensor:
        return tokens


@pytest.mark.parametrize(
    ("model", "names", "takes_any"),
    [
        (Plain(), ["tokens", "scale"], False),
        (Decorated(), ["args", "kwargs"], True),
        (Static(), ["tokens"], False),
    ],
)
def test_the_first_parameter_is_left_out_where_it_is_self(model, names, takes_any):
    """A reader of the class's function takes the arguments of a decorator, or of a static method,
    for self."""
    accepted = accepted_by(model)
    assert list(accepted.parameters) == names
    assert accepted.takes_any is takes_any
