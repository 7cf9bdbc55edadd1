"""What the options of commands have in common: their types, and how models are loaded.

Commands are functions; cyclopts makes their options of the signature, and the help of the
docstring.
"""

# Imports only what is quick to import: --help must not wait for torch.
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from repdyn.utils.choices import Dtype

OPTIONS, PROBE, MEASUREMENT, MODELS, EXECUTION = map(
    Group.create_ordered, ("Options", "Probe", "Measurement", "Models", "Execution")
)
"""Titles of the help, in their order."""
Place: TypeAlias = Annotated[str | Path, Parameter(metavar="FOLDER|URL")]
"""A folder, or the URL of a store, which a path would spoil."""
Output: TypeAlias = Annotated[Path | None, Parameter(alias="-o")]
Count: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1))]
Models: TypeAlias = Annotated[
    Sequence[str],
    Parameter(
        name="MODEL",
        help=(
            "Hub repository, also as REPOSITORY@REVISION, folder of save_pretrained, or folder of "
            "a run."
        ),
    ),
]
SENTENCES = (
    "She walked to the river bank this morning.",
    "She walked to the savings bank this morning.",
)
"""Two sentences that share a word with two meanings."""


def converted(convert: Callable[[str], Any], metavar: str) -> Parameter:
    """Return the parameter of an option whose text a function converts, which raises ValueError."""
    return Parameter(
        converter=lambda _, tokens: convert(tokens[0].value),
        n_tokens=1,
        accepts_keys=False,
        metavar=metavar,
    )


def at_least(smallest: int) -> Parameter:
    """Return the parameter of an option that takes a number of at least ``smallest``."""
    return Parameter(validator=Number(gte=smallest))


def listed(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(f"expected names separated by commas, got {text!r}")
    return names


@Parameter(name="*", group=MODELS)
@dataclass(frozen=True)
class ModelOptions:
    """Set how studies and the explorer load models."""

    revisions: Annotated[tuple[str, ...], converted(listed, "NAMES")] = ()
    """Branches, tags or commits of each repository, or a run's checkpoints, separated by commas."""
    tokenizer: str | None = None
    """Folder or hub repository of the tokenizer (default: the model's own)."""
    device: str = "auto"
    """Device to run models on, such as cpu, cuda or cuda:1; auto is cuda if available."""
    dtype: Dtype = "float32"
    """Precision of the weights; auto keeps the one they were saved in."""
    trust_remote_code: bool = False
    """Run Python code that comes with a model."""
    layers: str | None = None
    """Pattern of the blocks' names, such as "layers.*" (default: detected)."""
    timeout: Count = 3600
    """Seconds for one download or listing."""
