"""Measure published or local checkpoints; the numbers are those a tracker would have logged live: ``repdyn sweep``.

python analyze_checkpoints.py --list-suites
python analyze_checkpoints.py --suite pythia-70m --dry-run
python analyze_checkpoints.py --suite pythia-70m --revisions log --max-disk 2GB
python analyze_checkpoints.py EleutherAI/pythia-70m --revisions step0,step512,step143000
python analyze_checkpoints.py runs/quickstart/TIME
"""

import sys
from collections.abc import Sequence

from repdyn.cli.main import main as repdyn


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``repdyn sweep`` with the arguments of the process, or with those that are given."""
    repdyn(["sweep", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    main()
