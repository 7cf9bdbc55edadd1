"""Drawing and writing of figures one by one, so that the failure of one does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter

from repdyn.tables.style import styled
from repdyn.utils.attempts import Attempt, attempts
from repdyn.utils.files import write_atomically
from repdyn.utils.printing import printable


def draw_all(drawings: Mapping[str, Callable[[], Figure]], attempt: Attempt) -> dict[str, Figure]:
    """Return the figures that could be drawn, by name; ``attempt`` collects or raises the errors of the others."""
    figures = {}
    for name, draw_one in drawings.items():
        with attempt():
            figures[name] = draw_one()
    return figures


_DPI = 150


@styled
def save(
    figures: Mapping[str, Figure],
    folder: Path,
    attempt: Attempt | None = None,
    formats: Sequence[str] = (".png", ".svg"),
) -> list[Path]:
    """Write figures as PNG (150 dpi) and SVG, or one of them; output is deterministic.

    Args:
        figures: by file name, or path in the folder, without suffix; if one fails, the others are still written.
        folder: created if missing; files of the same name are replaced.
        attempt: collects errors for a caller that has more to do; without it the first is raised once all are tried.

    Returns:
        The files written.
    """
    written = []
    with attempts(attempt) as each:
        with each():
            folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            paths = [folder / f"{name}{suffix}" for suffix in formats]
            with each():
                if ".." in paths[0].parts or not paths[0].is_relative_to(folder):
                    raise ValueError(f"expected the name of a figure inside its folder, got {name!r}")
                _escape(figure)
                with _laid_out(figure):
                    for path in paths:
                        options = {"dpi": _DPI} if path.suffix == ".png" else {"metadata": {"Date": None}}
                        write_atomically(path, partial(figure.savefig, **options))
                        written.append(path)
    return written


def _escape(figure: Figure) -> None:
    """Write control characters in the texts of a figure, which warnings would print, as escape sequences."""
    for text in figure.findobj(Text):
        if isinstance(text, Text) and not text.get_text().isprintable():
            text.set_text(printable(text.get_text()))
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        formatter = axis.get_major_formatter()
        if isinstance(formatter, FixedFormatter):
            formatter.seq = [printable(label) for label in formatter.seq]


@contextmanager
def _laid_out(figure: Figure) -> Iterator[None]:
    """Lay a figure out once: for each file matplotlib would draw it twice, first for the layout alone."""
    engine, dpi = figure.get_layout_engine(), figure.dpi
    if engine is not None:
        figure.dpi = _DPI
        engine.execute(figure)
        figure.dpi = dpi
        figure.set_layout_engine("none")
    # "none" keeps the colorbars' engine, for which savefig draws all the same
    figure.get_layout_engine = lambda: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        del figure.get_layout_engine
        figure.set_layout_engine(engine)
