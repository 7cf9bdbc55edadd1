"""The views of an interrupted training, after every other callback has dealt with it."""

from __future__ import annotations

from typing import Protocol

from lightning.pytorch import Callback, LightningModule, Trainer


class ShowsInterrupted(Protocol):
    """A tracker that can draw what was measured before an exception."""

    def show_interrupted(self, exception: BaseException) -> None: ...


class ViewsLast(Callback):
    """Draws the views of an interrupted training after every other callback.

    Lightning calls checkpoint callbacks last, and one that saves on an exception must not wait for figures.
    """

    def __init__(self, tracker: ShowsInterrupted) -> None:
        self.tracker = tracker

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.tracker.show_interrupted(exception)
