"""The probe of the training jobs."""

import pytest
from small import random_tokens

from repdyn import Probe


@pytest.fixture
def probe() -> Probe:
    return Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)
