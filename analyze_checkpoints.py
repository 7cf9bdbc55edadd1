"""Measure published or local checkpoints; the numbers are those a tracker would have logged live.

python analyze_checkpoints.py --list-suites
python analyze_checkpoints.py --suite pythia-70m --dry-run
python analyze_checkpoints.py --suite pythia-70m --revisions log --max-disk 2GB
python analyze_checkpoints.py EleutherAI/pythia-70m --revisions step0,step512,step143000
python analyze_checkpoints.py runs/quickstart/TIME
"""

from repdyn.cli.sweep import main

if __name__ == "__main__":
    main()
