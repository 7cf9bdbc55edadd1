"""The command line of ``repdyn study``: which kinds of study there are, and the way into each."""

# Only what is quick to import stands here: the list of kinds must not wait for torch.
from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, NoReturn


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
    parser = _SuggestingParser(
        prog=prog,
        usage=f"{prog} KIND MODEL... [options] -o FOLDER",
        description=f"Study one aspect of one or several models.\n\nkinds:\n{kinds}",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help="which aspect")
    return parser


def _study(kind: str, arguments: Sequence[str], prog: str) -> None:
    from repdyn.sweep.failures import CheckpointError, SweepStoppedError

    study = import_module(KINDS[kind].module)
    parser = _SuggestingParser(
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


class _SuggestingParser(argparse.ArgumentParser):
    """A parser that says which kind or option a mistyped one resembles."""

    def error(self, message: str) -> NoReturn:
        if typed := re.match(r"argument KIND: invalid choice: '([^']*)'", message):
            close = difflib.get_close_matches(typed[1], KINDS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(KINDS)}"
            message = f"expected a kind of study, got {typed[1]!r}; {hint}"
        elif message.endswith("required: KIND"):
            message = f"expected a kind of study, got none; there are {', '.join(KINDS)}"
        elif typed := re.match(r"unrecognized arguments:.*?(--[\w-]+)", message):
            close = difflib.get_close_matches(typed[1], self._option_string_actions, n=1)
            message += f"; did you mean {close[0]}?" if close else "; see --help"
        super().error(message)
