"""Measure published or local checkpoints; the numbers are those a tracker would have logged live.

python analyze_checkpoints.py --suite pythia-70m --dry-run
python analyze_checkpoints.py --suite pythia-70m --revisions log --max-disk 2GB
python analyze_checkpoints.py EleutherAI/pythia-70m --revisions step0,step512,step143000
python analyze_checkpoints.py runs/quickstart/TIME

It is ``repdyn sweep`` under another name.
"""

import sys
from collections.abc import Sequence

from repdyn.__main__ import main as run_command


def main(arguments: Sequence[str]) -> None:
    run_command(["sweep", *map(str, arguments)])


if __name__ == "__main__":
    sys.argv.insert(1, "sweep")
    run_command()
