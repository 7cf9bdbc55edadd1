"""Common tasks, run in the environment in which nox itself is installed.

nox -s setup      install the package with everything needed to develop it
nox -s fast       lint, types, and the tests that take seconds
nox -s test       every test, as .ci/run does
nox -s docs       build the site, strictly
nox -s bench      the kernels beside other packages
nox -s stacks     models and trainers of other packages, in an environment of its own
nox -s bounds     the lowest and the newest versions that pyproject.toml allows, each in an environment of its own
nox -s pythons    Python 3.12 and 3.13, each in an environment of its own
"""

from pathlib import Path

import nox

nox.options.sessions = ["fast"]
nox.options.default_venv_backend = "none"

QUICK = "not slow and not process"


@nox.session
def setup(session: nox.Session) -> None:
    """Install the package with everything needed to develop it."""
    session.run("python", "-m", "pip", "install", "-q", "-c", "constraints.txt", "-e", ".[dev,benchmark]")
    session.run("pre-commit", "install")


@nox.session
def fast(session: nox.Session) -> None:
    """Run the linter, the type checker, and the tests that take seconds."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("pyright")
    session.run("python", "-m", "pytest", "-q", "-n", "auto", "-m", f"{QUICK} and not extended", *session.posargs)


@nox.session
def test(session: nox.Session) -> None:
    """Run every test, the extended ones too."""
    session.run("python", "-m", "pytest", "-q", "-n", "auto", "tests", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site, strictly."""
    session.run("mkdocs", "build", "--strict", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Compare the kernels with other packages."""
    session.run("python", "benchmarks/kernel_comparison.py", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session(venv_backend="venv")
def stacks(session: nox.Session) -> None:
    """Track models and trainers of other packages, in an environment of its own."""
    session.install("-c", "constraints.txt", "-e", ".[test,stacks]")
    # litgpt asks for a huggingface_hub below ours, timm for a torchvision
    session.install("--no-deps", "litgpt==0.5.13", "timm==1.0.31")
    # PyPI's torchvision needs the CUDA libraries of PyPI's torch; beside a torch without, not even transformers imports
    if session.run("python", "-c", "import torch; print(torch.version.cuda)", silent=True).split()[-1] != "None":
        session.install("--no-deps", "torchvision==0.28.0")
    session.install("-c", "constraints.txt", "deepspeed==0.19.8")  # which needs a C++ compiler when it starts
    session.run("python", "-m", "pytest", "-q", "-rs", "tests/stacks", *session.posargs)


# what reads and writes with other packages; kernels, which need torch alone, are left out but for one file
BOUNDS_LANE = (
    *("tests/kernels/test_two_nn.py", "tests/capture", "tests/metrics", "tests/measurement", "tests/probe"),
    *("tests/store", "tests/tables", "tests/tracking", "tests/callbacks", "tests/hub", "tests/sweep/test_sweep.py"),
    *("tests/figures", "tests/report/test_report_page.py", "tests/query", "tests/test_extras.py"),
)
BOUNDS_TOOLS = (
    *("flask", "flask-cors", "hypothesis", "peft", "pytest", "pytest-rerunfailures", "pytest-timeout"),
    *("pytest-xdist", "scikit-dimension"),
)
# moto, which stands for S3, resolves with no old version of several packages
BOUNDS_LEFT_OUT = (
    "tests/store/test_remote_store.py",
    "tests/store/test_s3_faults.py",
    "tests/tracking/test_tracking_on_s3.py",
)


@nox.session(venv_backend="venv")
@nox.parametrize("resolution", ["lowest-direct", "highest"], ids=["lowest", "newest"])
def bounds(session: nox.Session, resolution: str) -> None:
    """Run a lane of tests with the lowest versions of direct dependencies, or the newest of all."""
    extras = [f"--extra={extra}" for extra in ("train", "watch", "query")]
    pinned = str(Path(session.create_tmp()).absolute() / "pinned.txt")
    session.install("uv")
    # uv reads its own configuration: UV_OVERRIDE may name a file with the torch that this machine has
    resolve = ("uv", "pip", "compile", "pyproject.toml", *extras, f"--resolution={resolution}", "-q", "-o", pinned)
    python = f"--python={session.virtualenv.bin}/python"
    session.run(*resolve, python)
    session.run("uv", "pip", "install", "-q", python, "-r", pinned)
    session.run("uv", "pip", "install", "-q", python, "--no-deps", "-e", ".")
    session.run("uv", "pip", "install", "-q", python, "-c", pinned, *BOUNDS_TOOLS)
    chosen = session.posargs or [*BOUNDS_LANE, *(f"--ignore={path}" for path in BOUNDS_LEFT_OUT)]
    session.run("python", "-m", "pytest", "-q", "-m", QUICK, *chosen)


@nox.session(venv_backend="venv", python=["3.12", "3.13"])
def pythons(session: nox.Session) -> None:
    """Run the same lane of tests with newer versions of Python."""
    session.install("-c", "constraints.txt", "-e", ".[test]")
    session.run("python", "-m", "pytest", "-q", "-m", QUICK, *(session.posargs or BOUNDS_LANE))
