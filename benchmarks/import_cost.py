"""What importing repdyn and starting its commands costs, as multiples of importing torch.

python benchmarks/import_cost.py
python benchmarks/import_cost.py --repeats 9

Each case is a process of its own, whose CPU time (user and system) is read at its end. Rounds go through all cases in
turn, and the median over the rounds is divided by that of ``import torch``, so that the load of a machine falls on all
alike. A first round, which compiles modules and fills caches, is not counted.
"""

import argparse
import resource
import subprocess
import sys
from statistics import median

CASES = {
    "import torch": "import torch",
    "import repdyn": "import repdyn",
    "repdyn.Tracker": "import repdyn; repdyn.Tracker",
    "repdyn.measure, Probe": "import repdyn; repdyn.measure; repdyn.Probe",
    "repdyn --help": ["--help"],
    "repdyn report --help": ["report", "--help"],
    "repdyn sweep --help": ["sweep", "--help"],
    "repdyn reproduce --help": ["reproduce", "--help"],
    "repdyn sweep --list-suites": ["sweep", "--list-suites"],
    "repdyn sweep --suite pythia-14m --dry-run": ["sweep", "--suite", "pythia-14m", "--dry-run"],
    "repdyn metrics": ["metrics"],
    "analyze_checkpoints.py --help": ["analyze_checkpoints.py", "--help"],
    "train.py --help": ["train.py", "--help"],
    "train.py fit --help": ["train.py", "fit", "--help"],
}
NO_NETWORK = 3
"""Exit status of a plan that cannot ask the hub: everything is imported by then."""


def cpu_seconds(case: str | list[str]) -> float:
    """Return the CPU time of a process that runs code, or a command with arguments."""
    command = ["-c", case] if isinstance(case, str) else case
    given = command if command[0] == "-c" or command[0].endswith(".py") else ["-m", "repdyn", *command]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *given], check=False, capture_output=True, text=True)
    if done.returncode not in {0, NO_NETWORK}:
        raise RuntimeError(f"{given} ended with {done.returncode}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="rounds that count (default: %(default)s)")
    repeats = parser.parse_args().repeats
    rounds = [{name: cpu_seconds(case) for name, case in CASES.items()} for _ in range(repeats + 1)][1:]
    seconds = {name: median(one[name] for one in rounds) for name in CASES}
    for name, cost in seconds.items():
        print(f"{name:<42} {cost:6.2f} s {cost / seconds['import torch']:6.2f}")


if __name__ == "__main__":
    main()
