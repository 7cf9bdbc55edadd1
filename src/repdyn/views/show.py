"""What a run ends with: figures beside the store, in the loggers, and a summary in the terminal.

python -m repdyn.views runs/quickstart/TIME/repdyn          the same again, from the store
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lightning.pytorch.loggers import Logger

from repdyn.store import Store
from repdyn.views.figures import all_figures, write_figures
from repdyn.views.loggers import log_figures
from repdyn.views.summary import print_summary


def show_run(
    store: Store,
    run: str,
    *,
    probe: str | None = None,
    loggers: Iterable[Logger] = (),
    tracking_seconds: float | None = None,
    total_seconds: float | None = None,
) -> list[Path]:
    """Draw, log and summarise what the store holds of a run.

    Args:
        store: with at least one measured checkpoint of the run.
        run: its name.
        probe: hash of the probe to show, needed where the run was measured on several.
        loggers: usually ``trainer.loggers``; those that take pictures get the figures.
        tracking_seconds: wall-clock seconds spent measuring.
        total_seconds: wall-clock seconds of the training, measuring included.

    Returns:
        The figures' files, in ``figures`` inside the store, in a folder of the run's own where there are several.

    Raises:
        ValueError: nothing is stored of the run, or it was measured on several probes and none is named.
    """
    frame = store.to_pandas(run)
    if probe is not None:
        frame = frame.loc[frame["probe"] == probe]
    folder = store.path / "figures"
    written = write_figures(frame, folder if store.runs() == [run] else folder / store.folder_of(run).name)
    log_figures(all_figures(frame), loggers, step=store.steps(run)[-1])
    print_summary(frame, figures=written, tracking_seconds=tracking_seconds, total_seconds=total_seconds)
    return written
