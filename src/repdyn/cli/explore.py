"""The command line of ``repdyn explore``: the options of the checkpoints and of the page."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from repdyn.checkpoints.loading import add_loading_options, add_timeout_option, revision_names
from repdyn.utils.addresses import is_loopback, port_number
from repdyn.utils.arguments import SuggestingParser, at_least

HOST = "127.0.0.1"
PORT = 7860
SENTENCES = ("She walked to the river bank this morning.", "She walked to the savings bank this morning.")
MAX_TOKENS = 128
NEAREST = 10

_EXAMPLES = """examples:
  repdyn explore roberta-base
  repdyn explore EleutherAI/pythia-70m --revisions step512,step143000     checkpoints side by side
  repdyn explore runs/quickstart/TIME                                     three checkpoints of a run
  repdyn explore runs/quickstart/TIME --revisions step0,step500           or the nearest ones to these
  repdyn explore bert-base-cased distilbert-base-cased --sentence "The £1 coin lies on the table."
  repdyn explore my-model --port 0 --open                                 any free port, in a browser

The page is served to this computer only, unless --host is given: it has no password.
"""


def main(arguments: Sequence[str], prog: str = "repdyn explore") -> None:
    """Load the checkpoints and serve the page until Ctrl-C.

    Raises:
        ValueError, OSError: an invalid option or input, such as a model that does not load.
        KeyboardInterrupt: after Ctrl-C; the page is closed.
        SystemExit: after --help or an invalid option.
    """
    options = build_parser(prog).parse_args(arguments)
    try:
        from repdyn.explorer.server import serve
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in {"gradio", "plotly"}:
            raise
        raise ValueError(
            f"expected the package {package!r}, which the explorer needs, found none; pip install 'repdyn[explore]'"
        ) from error
    if not is_loopback(options.host):
        print(
            f"warning: anyone who can connect to {options.host} can use the explorer without a password; leave out "
            "--host to serve this computer only",
            file=sys.stderr,
        )
    serve(options)


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return a parser with every option of the command."""
    parser = SuggestingParser(
        prog=prog,
        description="Explore the tokens of a sentence in a browser: what each layer predicts at them (the logit lens), "
        "and where it takes them in the vocabulary.",
        epilog=_EXAMPLES,
        allow_abbrev=False,
    )
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="hub repository, also as REPOSITORY@REVISION, folder of save_pretrained, or folder of a run",
    )
    parser.add_argument(
        "--revisions",
        type=revision_names,
        default=(),
        metavar="R[,R...]",
        help="branches, tags or commits of repositories, or checkpoints of a run, side by side",
    )
    group = parser.add_argument_group("how models are loaded")
    add_loading_options(group)
    add_timeout_option(group)
    group.add_argument("--layers", help='name pattern of the blocks, such as "layers.*" (default: found)')
    group = parser.add_argument_group("what is shown")
    group.add_argument(
        "--sentence", default=SENTENCES[0], metavar="TEXT", help='first sentence (default: "%(default)s")'
    )
    group.add_argument(
        "--second", default=SENTENCES[1], metavar="TEXT", help='second sentence of the paths (default: "%(default)s")'
    )
    group.add_argument(
        "--nearest", type=at_least(1), default=NEAREST, metavar="K", help="nearest tokens (default: %(default)s)"
    )
    group.add_argument(
        "--max-tokens", type=at_least(2), default=MAX_TOKENS, help="of a sentence (default: %(default)s)"
    )
    group = parser.add_argument_group("the page")
    group.add_argument("--host", default=HOST, help="address it is served at (default: %(default)s)")
    group.add_argument(
        "--port", type=port_number, default=PORT, help="or the next free one, 0 for any (default: %(default)s)"
    )
    group.add_argument("--open", action="store_true", help="open a browser")
    return parser
