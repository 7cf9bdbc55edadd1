"""Measure the checkpoints of a run after the fact; the numbers are those a tracker would have logged live.

python analyze_checkpoints.py runs/quickstart/TIME
python analyze_checkpoints.py my_model/checkpoints --probe runs/quickstart/TIME/repdyn/probes/HASH.safetensors
python analyze_checkpoints.py runs/quickstart/TIME --metrics anisotropy two_nn@no_sink --store sweep
"""

from repdyn.sweep.cli import main

if __name__ == "__main__":
    main()
