"""Figures saved as files."""

import pytest
from matplotlib.figure import Figure

from repdyn.views.charts.on_matplotlib import save


def test_a_figure_that_cannot_be_written_keeps_none_of_the_others_from_its_file(tmp_path):
    class Broken(Figure):
        def savefig(self, fname, **given):
            raise OSError(f"no place for {self.get_label()} as {fname.suffix}")

    figures = {name: Broken() if name in "bd" else Figure() for name in "abcd"}
    for name, figure in figures.items():
        figure.set_label(name)
    with pytest.raises(OSError, match="^no place for b as .png$"):
        save(figures, tmp_path / ".." / tmp_path.name)  # as ../store is
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg", "c.png", "c.svg"]
