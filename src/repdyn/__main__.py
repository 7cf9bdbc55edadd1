"""The command ``repdyn``, whose packages come with the extra views."""

import sys
from collections.abc import Sequence

from repdyn.utils.extras import MissingPackageError, require

USAGE = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command, with the arguments of the process unless given.

    Raises:
        SystemExit: with the status, unless it is 0.
    """
    try:
        require("views", "the command repdyn", "cyclopts", "pandas", "rich")
    except MissingPackageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USAGE)
    from repdyn.cli.main import main as run_command

    run_command(arguments)


if __name__ == "__main__":
    main()
