"""The probe of the training jobs, and what is drawn at their end."""

import pytest
from small import random_tokens

from repdyn import Probe


@pytest.fixture
def probe() -> Probe:
    return Probe.from_tokens(random_tokens(24, 12), max_vectors=192, batch_vectors=96)


@pytest.fixture(autouse=True)
def _views_only_where_tested(request: pytest.FixtureRequest) -> None:
    """Draw at the end of a training only in tests marked ``views``."""
    if request.node.get_closest_marker("views") is None:
        request.getfixturevalue("without_figures")
