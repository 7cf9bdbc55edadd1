"""Drawing and writing of figures one by one, so that the failure of one does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from matplotlib.figure import Figure

from repdyn.tables.style import styled
from repdyn.utils.atomic_files import write_atomically
from repdyn.utils.attempts import Attempt, attempts


def draw_all(drawings: Mapping[str, Callable[[], Figure]], attempt: Attempt) -> dict[str, Figure]:
    """Return the figures that could be drawn, by name; ``attempt`` collects or raises the errors of the others."""
    figures = {}
    for name, draw_one in drawings.items():
        with attempt():
            figures[name] = draw_one()
    return figures


@styled
def save(figures: Mapping[str, Figure], folder: Path, attempt: Attempt | None = None) -> list[Path]:
    """Write figures as PNG (150 dpi) and SVG; output is deterministic.

    Args:
        figures: by file name, or path in the folder, without suffix; if one fails, the others are still written.
        folder: created if missing; files of the same name are replaced.
        attempt: collects errors for a caller that has more to do; without it they are raised here.

    Returns:
        The files written.

    Raises:
        Exception: the error of the first figure that could not be written, once the others are written.
    """
    written = []
    with attempts(attempt) as each:
        with each():
            folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            png, svg = (folder / f"{name}{suffix}" for suffix in (".png", ".svg"))
            with each():
                if ".." in png.parts or not png.is_relative_to(folder):
                    raise ValueError(f"expected the name of a figure inside its folder, got {name!r}")
                write_atomically(png, lambda path, one=figure: one.savefig(path, dpi=150))
                written.append(png)
                with _fixed_layout(figure):
                    write_atomically(svg, lambda path, one=figure: one.savefig(path, metadata={"Date": None}))
                written.append(svg)
    return written


@contextmanager
def _fixed_layout(figure: Figure) -> Iterator[None]:
    """Freeze the layout of a figure: computing that of many panels takes longer than drawing them."""
    engine = figure.get_layout_engine()
    figure.set_layout_engine("none")
    try:
        yield
    finally:
        figure.set_layout_engine(engine)
