import pytest
from test_studies import files as files  # the fixture of small inputs


@pytest.fixture(autouse=True)
def _quick_images(quick_images: None) -> None:
    """Every study ends in figures; how figures are written is tested with those of runs."""
