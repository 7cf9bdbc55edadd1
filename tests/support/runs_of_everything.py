"""Frames with every metric that there is."""

import pytest
from synthetic_families import make_everything


@pytest.fixture
def everything(frame_of):
    def make(**given):
        return frame_of(make_everything(**({"n_blocks": 4, "steps": (0, 8, 64)} | given)))

    return make
