"""The command line of ``repdyn study``: dispatches to one kind of study."""

# Imports only what loads quickly: the list of kinds must not wait for torch.
from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module

from repdyn.utils.arguments import SuggestingParser

KINDS = {
    "convergence": "how tokens approach their last layer, and at what rate",
    "tokens": "the tokens of a sentence against the vocabulary, layer by layer",
    "topics": "topics in embeddings and attention",
    "anatomy": "embedding tables, and paths of tokens through the layers",
    "sentences": "sentence vectors at every layer",
}
"""Each in ``repdyn.studies.KIND``, as ``STUDY``."""

_EXAMPLES = """examples:
  repdyn study convergence bert-base-uncased distilbert-base-uncased --text builtin -o FOLDER
  repdyn study tokens roberta-base -o FOLDER
  repdyn study KIND --help                        every option of a kind
"""


def main(arguments: Sequence[str], prog: str = "repdyn study") -> None:
    """Run one study.

    Raises:
        ValueError, OSError: an invalid option or input, such as a model that does not load.
        SystemExit: after ``--help``, or for an invalid command line.
    """
    kind = build_parser(prog).parse_args(arguments[:1]).kind
    try:
        _run(kind, arguments[1:], f"{prog} {kind}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in {"", "repdyn"}:
            raise
        raise ValueError(
            f"expected the package {package!r}, which this study needs, found none; pip install 'repdyn[topics,train]' "
            "installs the optional packages of studies"
        ) from error


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return a parser of the kind alone, whose own parser is loaded when it is known."""
    width = max(map(len, KINDS))
    kinds = "\n".join(f"  {name:{width}}  {text}" for name, text in KINDS.items())
    parser = SuggestingParser(
        choice="a kind of study",
        prog=prog,
        usage=f"{prog} KIND MODEL... [options] -o FOLDER",
        description=f"Study one aspect of one or several models.\n\nkinds:\n{kinds}",
        epilog=_EXAMPLES,
    )
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help="which aspect")
    return parser


def _run(kind: str, arguments: Sequence[str], prog: str) -> None:
    from repdyn.checkpoints.errors import CheckpointError, SweepStoppedError

    try:
        import_module(f"repdyn.studies.{kind}").STUDY.main(arguments, prog)
    except (CheckpointError, SweepStoppedError) as error:
        raise ValueError(str(error)) from error
