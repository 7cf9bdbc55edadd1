"""A logger of Lightning's Trainer that writes to Trackio, the local and free counterpart of W&B by
Hugging Face.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

# of the package that a job has imported: lightning, or pytorch_lightning, its other name with
# classes of its own
if TYPE_CHECKING or "pytorch_lightning" not in sys.modules or "lightning.pytorch" in sys.modules:
    from lightning.fabric.loggers.logger import rank_zero_experiment
    from lightning.pytorch.loggers import Logger
    from lightning.pytorch.utilities import rank_zero_only
else:
    from lightning_fabric.loggers.logger import rank_zero_experiment
    from pytorch_lightning.loggers import Logger
    from pytorch_lightning.utilities import rank_zero_only


class TrackioLogger(Logger):
    """Log the metrics of a trainer to a run of Trackio; with a tracker attached, its values,
    figures and alerts too.

    ``Trainer(logger=TrackioLogger("my-project"))``; then ``trackio show --project my-project``. The
    values of one step are at that step on Trackio's axis, whoever logs them.

    Args:
        project: of Trackio.
        name: of the run; by default Trackio chooses one. A run of this name that is there already
            goes on.
        options: more arguments of ``trackio.init``, such as ``space_id="me/my-space"``.
    """

    def __init__(self, project: str = "repdyn", name: str | None = None, **options: Any) -> None:
        super().__init__()
        self._project, self._name, self._options = project, name, options
        self._run: Any = None

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """Return the run of Trackio, opened where it is first asked for."""
        if self._run is None:
            import trackio  # an optional dependency

            self._run = trackio.init(
                self._project, self._name, **{"resume": "allow", "embed": False} | self._options
            )
            self._name = self._run.name
        return self._run

    @property
    def name(self) -> str:
        """Return the project."""
        return self._project

    @property
    def version(self) -> str | None:
        """Return the name of the run, None before it is opened without one."""
        return self._name

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log values at a step."""
        self.experiment.log(dict(metrics), step=step)

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Add to the configuration of the run; values that are no numbers, texts or lists as their
        text.
        """
        values = vars(params) if isinstance(params, Namespace) else params
        plain_types = (str, int, float, bool, list, dict, type(None))
        self.experiment.config.update(
            {
                key: value if isinstance(value, plain_types) else str(value)
                for key, value in values.items()
            }
        )

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Write what is not yet written; the run stays open for a later fit."""
        if self._run is not None:
            self._run.finish()
            self._run = None
