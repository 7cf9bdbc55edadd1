import pytest
from studied_sentences import files as files  # the fixture of small inputs


@pytest.fixture(autouse=True)
def _quick_images(quick_images: None) -> None:
    """Every study ends in figures; how figures are written is tested with those of runs."""


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Names of the figures of each model, which take longer to write than all else."""
    names: list[set[str]] = []

    def note(figures, folder) -> list:
        names.append(set(figures))
        return []

    monkeypatch.setattr("repdyn.lab.studies.result.save", note)
    return names
