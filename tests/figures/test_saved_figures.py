"""Figures saved as files."""

import pytest
from matplotlib.figure import Figure
from synthetic_runs import make_rows, to_frame

from repdyn.figures.files import save
from repdyn.figures.heatmaps import heatmap
from repdyn.tables.style import styled


def test_a_figure_that_cannot_be_written_keeps_none_of_the_others_from_its_file(tmp_path):
    class Broken(Figure):
        def savefig(self, fname, **given):
            raise OSError(f"no place for {self.get_label()} as {fname.suffix}")

    figures = {name: Broken() if name in "bd" else Figure() for name in "abcd"}
    for name, figure in figures.items():
        figure.set_label(name)
    with pytest.raises(OSError, match="^no place for b as .png$"):
        save(figures, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg", "c.png", "c.svg"]


def test_a_figure_laid_out_once_has_the_bytes_of_one_that_savefig_lays_out(tmp_path):
    def drawn():
        return heatmap(to_frame(make_rows()), "anisotropy", "all")

    figure = drawn()
    png, _ = save({"heatmap": figure}, tmp_path)
    styled(drawn().savefig)(tmp_path / "plain.png", dpi=150)
    assert png.read_bytes() == (tmp_path / "plain.png").read_bytes()
    assert figure.get_layout_engine() is not None
