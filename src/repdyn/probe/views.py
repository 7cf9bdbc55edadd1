"""Views of a point cloud: which vectors are taken from a window of tokens.

By default each sampled token is a vector, as the block left it. A view is named like a token subset, after the "@" of a
metric, and recorded as one, so that values of different views never form one curve:

- ``last_token``: the last token of each window that is not special.
- ``window_mean``: the mean over all tokens of each window.
- ``differences``: the difference of each sampled token's vector to that of the next one in its window.
- ``all.normed``, ``last_token.normed`` ...: the same after the model's final norm, at every layer; the last layer's are
  the states that the output head reads.
"""

from __future__ import annotations

from typing import NamedTuple

SUBSETS = ("all", "no_sink")
"""The token subsets that every probe of tokens has."""
NO_MASSIVE = "no_massive"
"""The subset without vectors of massive norm, which is selected at each layer separately."""
LAST_TOKEN = "last_token"
WINDOW_MEAN = "window_mean"
DIFFERENCES = "differences"
VIEWS = (LAST_TOKEN, WINDOW_MEAN, DIFFERENCES)
"""The views that select or combine tokens by their position in a window."""
NORMED = ".normed"


class View(NamedTuple):
    """A selection of vectors from each window, with or without the model's final norm."""

    vectors: str
    """A token subset, or one of :data:`VIEWS`."""
    normed: bool

    @property
    def sampled(self) -> str:
        """Subset or view by which tokens of the probe are sampled."""
        return "all" if self.vectors == NO_MASSIVE else self.vectors

    @property
    def of_single_tokens(self) -> bool:
        """True if each vector is the state of one token, without the final norm."""
        return not self.normed and self.vectors not in {WINDOW_MEAN, DIFFERENCES}


def view_of(subset: str) -> View:
    """Return the view that a subset in a metric's name, or in a row, stands for.

    >>> view_of("no_sink"), view_of("last_token.normed").normed
    (View(vectors='no_sink', normed=False), True)
    """
    return View(subset.removesuffix(NORMED), subset.endswith(NORMED))
