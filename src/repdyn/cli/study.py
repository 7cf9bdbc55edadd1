"""The command line of ``repdyn study``: which kinds of study there are, and the way into each."""

# Only what is quick to import stands here: the list of kinds must not wait for torch.
from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from repdyn.utils.arguments import SuggestingParser


class Kind(NamedTuple):
    """One kind of study."""

    module: str
    """With ``HELP``, ``EXAMPLES``, ``add_options(parser)`` and ``run(options)``."""
    does: str
    """In the list of kinds."""


KINDS = {
    "convergence": Kind("repdyn.studies.convergence", "how tokens approach their last layer, and at what rate"),
    "tokens": Kind("repdyn.studies.tokens", "the tokens of a sentence against the vocabulary, layer by layer"),
    "topics": Kind("repdyn.studies.topics", "topics in embeddings and attention"),
    "anatomy": Kind("repdyn.studies.anatomy", "the embedding tables, and the paths of tokens through the layers"),
    "sentences": Kind("repdyn.studies.sentences", "sentence vectors after the last layer"),
}

_EXAMPLES = """examples:
  repdyn study convergence bert-base-uncased distilbert-base-uncased --text builtin -o FOLDER
  repdyn study tokens roberta-base -o FOLDER
  repdyn study KIND --help                        every option of a kind
"""


def main(arguments: Sequence[str], prog: str = "repdyn study") -> None:
    """Run one study.

    Raises:
        ValueError, OSError: something is not as expected, a model that does not load among others.
        SystemExit: after help, or options that are mistaken.
    """
    kind = _parser(prog).parse_args(arguments[:1]).kind
    try:
        _study(kind, arguments[1:], prog)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in {"", "repdyn"}:
            raise
        raise ValueError(
            f"expected the package {package!r}, which this study needs, found none; pip install 'repdyn[topics,train]' "
            "brings the optional packages of studies"
        ) from error


def _parser(prog: str) -> argparse.ArgumentParser:
    width = max(map(len, KINDS))
    kinds = "\n".join(f"  {name:{width}}  {kind.does}" for name, kind in KINDS.items())
    parser = SuggestingParser(
        choice="a kind of study",
        prog=prog,
        usage=f"{prog} KIND MODEL... [options] -o FOLDER",
        description=f"Study one aspect of one or several models.\n\nkinds:\n{kinds}",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help="which aspect")
    return parser


def _study(kind: str, arguments: Sequence[str], prog: str) -> None:
    from repdyn.hub.errors import CheckpointError, SweepStoppedError

    study = import_module(KINDS[kind].module)
    parser = SuggestingParser(
        prog=f"{prog} {kind}",
        description=study.HELP,
        epilog=study.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    study.add_options(parser)
    try:
        study.run(parser.parse_args(arguments))
    except (CheckpointError, SweepStoppedError) as error:
        raise ValueError(str(error)) from error
