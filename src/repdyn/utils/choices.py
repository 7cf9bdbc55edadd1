"""Words that arguments of several functions take, in Python and on the command line."""

from typing import Literal, TypeAlias

Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
"""Precision of a model's weights; "auto" is the one that they were saved in."""
Destination: TypeAlias = Literal["wandb", "tensorboard", "csv", "mlflow", "trackio"]
"""Loggers that get the runs of a store."""
