"""Break one line at a time, sixty-two lines in all, and report which default test notices.

A suite of tests is as good as the mistakes it notices. Each mutation is applied to a copy of the
repository in a temporary folder; the tests that are likely to notice run first, then the whole
default lane. A mutation that no test notices is a test that is missing.

python benchmarks/mutations.py                        all of them, one after the other
python benchmarks/mutations.py -j 4                   in four processes, each with a copy of its own
python benchmarks/mutations.py two_nn --likely-only   those of a file or description, likely tests
python benchmarks/mutations.py --list
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 1800
"""How long the tests of a mutation may take."""


class Mutation(NamedTuple):
    file: str
    """Relative to the repository; "repdyn" stands for src/repdyn."""
    old: str
    """Text that the file has once."""
    new: str
    breaks: str
    tests: str
    """Names of the test files likely to notice, without "test_" and ".py"; after a colon, what the
    tests are called.
    """

    @property
    def path(self) -> Path:
        return Path(
            self.file.replace("repdyn/", "src/repdyn/", 1)
            if self.file.startswith("repdyn/")
            else self.file
        )

    def applied(self, text: str) -> str:
        """Return the text of the file with the mutation.

        Raises:
            ValueError: the text to replace is not there exactly once.
        """
        # a line may have been wrapped: any white space stands for any other
        pattern = r"\s+".join(re.escape(word) for word in self.old.split())
        n_found = len(re.findall(pattern, text))
        if n_found != 1:
            raise ValueError(f"expected {self.old!r} once in {self.path}, got it {n_found} times")
        return re.sub(pattern, lambda match: self.new, text)


def parsed(text: str) -> list[Mutation]:
    """Return the mutations of a text: paragraphs, the first of which says what they are."""
    mutations = []
    for paragraph in text.strip().split("\n\n")[1:]:
        head, *lines = paragraph.split("\n")
        named = re.fullmatch(r"(\S+): (.+) \(([\w :]+)\)", head)
        if named is None or any(line[:2] not in {"- ", "+ "} for line in lines):
            raise ValueError(
                f"expected FILE: what it breaks (TESTS), then lines of - and +, got {paragraph!r}"
            )
        old, new = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
        mutations.append(Mutation(file=named[1], old=old, new=new, breaks=named[2], tests=named[3]))
    return mutations


MUTATIONS = parsed(Path(__file__).with_suffix(".txt").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "words", nargs="*", help="only mutations with one of these words in file or description"
    )
    parser.add_argument(
        "-j", "--jobs", type=int, default=1, help="how many at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--likely-only", action="store_true", help="run no more than the tests likely to notice"
    )
    parser.add_argument("--list", action="store_true", help="list the mutations, and exit")
    options = parser.parse_args()
    chosen = [
        m
        for m in MUTATIONS
        if not options.words or any(w in f"{m.file} {m.breaks}" for w in options.words)
    ]
    if options.list:
        print("\n".join(f"{mutation.file}: {mutation.breaks}" for mutation in chosen))
        return
    for mutation in chosen:
        # all of them before the first test runs
        mutation.applied((ROOT / mutation.path).read_text())
    with tempfile.TemporaryDirectory() as folder:
        copies: Queue[Path] = Queue()
        for number in range(options.jobs):
            copies.put(copy_repository(Path(folder) / str(number)))
        with ThreadPoolExecutor(options.jobs) as pool:
            noticed = [
                by
                for by in pool.map(lambda mutation: tried(mutation, copies, options), chosen)
                if by
            ]
        # a test that fails anyway has noticed nothing
        if broken := first_failure(copies.get(), sorted(set(noticed)), 1) if noticed else None:
            sys.exit(
                f"expected tests that pass without a mutation, but {broken} fails; mend it, then "
                "repeat"
            )
    print(f"{len(noticed)} of {len(chosen)} mutations noticed")
    sys.exit(len(noticed) < len(chosen))


def copy_repository(target: Path) -> Path:
    """Copy the files of the working tree that git knows or could know."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


def tried(mutation: Mutation, copies: Queue[Path], options: argparse.Namespace) -> str | None:
    """Run the tests on a mutation, and return and print which of them noticed."""
    copy = copies.get()
    start = time.monotonic()
    try:
        with mutated(copy / mutation.path, mutation):
            by = first_failure(copy, tests_of(copy, mutation), options.jobs)
            if by is None and not options.likely_only:
                by = first_failure(copy, [], options.jobs)
    finally:
        copies.put(copy)
    seconds = time.monotonic() - start
    print(
        f"{'noticed' if by else 'MISSED '} {mutation.file}: {mutation.breaks} ({seconds:.0f} s) "
        f"{by or ''}",
        flush=True,
    )
    return by


@contextmanager
def mutated(path: Path, mutation: Mutation) -> Iterator[None]:
    text = path.read_text()
    path.write_text(mutation.applied(text))
    try:
        yield
    finally:
        path.write_text(text)


def tests_of(copy: Path, mutation: Mutation) -> list[str]:
    """Return the arguments of pytest for the tests likely to notice.

    Raises:
        ValueError: the default lane has no such file.
    """
    named = [word.partition(":") for word in mutation.tests.split()]
    default_lane = [
        path
        for path in sorted((copy / "tests").rglob("test_*.py"))
        if "nightly" not in path.relative_to(copy).parts
    ]
    paths_by_name = [
        [path for path in default_lane if path.stem == f"test_{name}"] for name, _, _ in named
    ]
    if [] in paths_by_name:
        raise ValueError(
            f"expected test files of the default lane, got {mutation.tests!r}, one of which is not "
            "in tests/"
        )
    keywords = " or ".join(filter(None, (keyword for _, _, keyword in named)))
    return [
        *(str(path) for paths in paths_by_name for path in paths),
        *(["-k", keywords] if keywords else []),
    ]


def first_failure(copy: Path, tests: list[str], jobs: int) -> str | None:
    """Return the first test that fails; None if all pass.

    Raises:
        RuntimeError: the tests cannot be run.
    """
    workers = ["-n0"] if tests or jobs > 1 else ["-n", "auto"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        *workers,
        *tests,
    ]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"expected tests that end within {SECONDS} s; choose a mutation that does not hang"
        ) from None
    if done.returncode == 0:
        return None
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode not in {1, 2} or not failed:
        raise RuntimeError(
            f"expected tests that run, got status {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return failed[0]


if __name__ == "__main__":
    main()
