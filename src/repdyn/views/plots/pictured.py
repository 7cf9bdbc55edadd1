"""A figure of Plotly with a picture beside it, for readers that run no JavaScript."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class PicturedFigure(go.Figure):
    """Shows itself in a notebook, and in what is made of a notebook without Plotly, such as the
    HTML of nbconvert, as the picture that matplotlib draws of the same values.
    """

    _drawing: Callable[[], Figure] | None = None
    """Draws the picture; a copy of the figure has none."""

    def _repr_mimebundle_(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Return what the renderers of Plotly show, and the picture as PNG."""
        bundle = dict(super()._repr_mimebundle_(*arguments, **options) or {})
        # a picture that fails must not take the figure with it
        with suppress(Exception):
            if self._drawing is not None:
                file = BytesIO()
                self._drawing().savefig(file, format="png", dpi=100)
                bundle.setdefault("image/png", b64encode(file.getvalue()).decode())
        return bundle

    def _ipython_display_(self) -> None:
        """Show the bundle where Plotly would show its own, and a page where it opens one."""
        from plotly.io import renderers

        shown = self._repr_mimebundle_() if renderers.render_on_display else {}
        if set(shown) <= {"image/png"}:
            super()._ipython_display_()
            return
        from IPython.display import display  # only within it

        display(shown, raw=True)
