import pytest


@pytest.fixture(autouse=True)
def _quick_images(quick_images: None) -> None:
    """Every study ends in figures; how figures are written is tested with those of runs."""
