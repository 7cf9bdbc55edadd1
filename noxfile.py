"""Common tasks, run in the environment in which nox itself is installed.

nox -s setup      install the package with everything needed to develop it
nox -s fast       lint, types and the default tests: all but tests/nightly
nox -s nightly    the other tests, tests/nightly: kills, clusters, whole programs, long lists
nox -s docs       build the site, strictly
nox -s bench      the kernels beside other packages
nox -s stacks     models and trainers of other packages, in an environment of its own
nox -s attached   trackers with the lowest versions that a training job may have, and with those of
                  a year ago, each in an environment of its own
nox -s environments   whether the package installs into those of training jobs without replacing
                      what they have, and whether uv.lock is of this pyproject.toml
nox -s bounds     the lowest and the newest versions that pyproject.toml allows, each in an
                  environment of its own
nox -s elsewhere  tests without what macOS and Windows lack, taken away on Linux
nox -s pythons    Python 3.12 and 3.13, each in an environment of its own
"""

from datetime import date, timedelta
from pathlib import Path

import nox

nox.options.sessions = ["fast"]
nox.options.default_venv_backend = "none"

DEFAULT_LANE = ("python", "-m", "pytest", "-q", "-n", "auto")


@nox.session
def setup(session: nox.Session) -> None:
    """Install the package with everything needed to develop it."""
    session.run(
        "python", "-m", "pip", "install", "-q", "-c", "constraints.txt", "-e", ".[dev,benchmark]"
    )
    session.run("pre-commit", "install")


@nox.session
def fast(session: nox.Session) -> None:
    """Run the linter, the type checker and the default tests."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("pyright")
    session.run(*DEFAULT_LANE, *session.posargs)


@nox.session
def nightly(session: nox.Session) -> None:
    """Run the tests that are slow or rare, on what is installed."""
    session.run(*DEFAULT_LANE, *(session.posargs or ["tests/nightly"]))


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site, strictly."""
    session.run("mkdocs", "build", "--strict", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Compare the kernels with other packages."""
    session.run(
        "python", "benchmarks/kernel_comparison.py", *session.posargs, env={"OMP_NUM_THREADS": "1"}
    )


# all that the table of docs/attach.md names
STACKS = (
    *(
        "tests/nightly/stacks",
        "tests/nightly/callbacks/test_from_environment.py",
        "tests/nightly/core/ranks",
    ),
    *("tests/callbacks/test_hugging_face_trainer.py", "tests/callbacks/test_lightning.py"),
)


@nox.session(venv_backend="venv")
def stacks(session: nox.Session) -> None:
    """Track models and trainers of other packages, in an environment of its own."""
    session.install("-c", "constraints.txt", "-e", ".[test,stacks]")
    # litgpt asks for a huggingface_hub below ours, timm for a torchvision
    session.install(
        "--no-deps", "litgpt==0.5.13", "timm==1.0.31", "diffusers==0.42.1", "torch_geometric==2.8.1"
    )
    # which these import, and the example scripts of transformers
    session.install("pyparsing", "xxhash", "importlib_metadata", "evaluate")
    # PyPI's torchvision needs the CUDA libraries of PyPI's torch; beside a torch without, not even
    # transformers imports
    if (
        session.run("python", "-c", "import torch; print(torch.version.cuda)", silent=True).split()[
            -1
        ]
        != "None"
    ):
        session.install(
            "--no-deps", "torchvision==0.28.0", "open_clip_torch==3.3.0", "ftfy", "wcwidth"
        )
    # which needs a C++ compiler when it starts
    session.install("-c", "constraints.txt", "deepspeed==0.19.8")
    session.run("python", "-m", "pytest", "-q", "-rs", *STACKS, *session.posargs)


BOUNDS_TOOLS = (
    *(
        "build",
        "flask",
        "flask-cors",
        "gguf",
        "httpx",
        "hypothesis",
        "peft",
        "pytest",
        "pytest-rerunfailures",
    ),
    *("pytest-timeout", "pytest-xdist", "scikit-dimension"),
)
# subjects of other extras; moto, which stands for S3, allows no old version of several packages
BOUNDS_LEFT_OUT = ("explorer", "remote_store")


# what a training job needs of repdyn, which may have earlier versions than a sweep
BOUNDS_ATTACHED = (
    *(
        "alerts",
        "anisotropy",
        "capture",
        "hugging_face_trainer",
        "kernels",
        "lightning",
        "measure",
        "metrics",
    ),
    *("report", "schedule", "shadow", "store", "tracker", "two_nn"),
)


# what a training job has of its own, whatever repdyn brings
BOUNDS_SHARED = (
    *(
        "huggingface-hub",
        "lightning",
        "matplotlib",
        "numpy",
        "pandas",
        "plotly",
        "pyarrow",
        "pytorch-lightning",
    ),
    *("safetensors", "scipy", "tokenizers", "torch", "torchmetrics", "transformers"),
)


@nox.session(venv_backend="venv")
@nox.parametrize("age", ["lowest", "year"])
def attached(session: nox.Session, age: str) -> None:
    """Run the tests of trackers with the lowest versions that a training job may have, or with
    those of a year ago.
    """
    year_ago = date.today() - timedelta(days=365)
    of_year_ago = [f"--exclude-newer-package={package}={year_ago}" for package in BOUNDS_SHARED]
    chosen = ["--resolution=lowest-direct"] if age == "lowest" else of_year_ago
    _resolved(session, chosen, ("lightning", "hf"))
    session.install("wandb", "tensorboard")  # which some of the tests log to
    session.run(
        *DEFAULT_LANE,
        *(session.posargs or _files_of(BOUNDS_ATTACHED)),
    )


# the extras that a job wants which has what tests/environments lists
ENVIRONMENTS = {
    "lightning": ("lightning",),
    "hugging_face": ("hf",),
    "notebook": ("hf",),
    "pytorch_container": (),
}


@nox.session(venv_backend="venv")
def environments(session: nox.Session) -> None:
    """Resolve the dependencies against the pinned packages of four training environments, which
    must not change.
    """
    session.install("uv")
    session.run("uv", "lock", "--check")  # what "uv sync" installs, for every Python and platform
    for name, extras in ENVIRONMENTS.items():
        chosen = [f"--extra={extra}" for extra in extras]
        listed = f"--constraint=tests/environments/{name}.txt"
        session.run(
            "uv",
            "pip",
            "compile",
            "-q",
            "--no-header",
            "--no-annotate",
            "pyproject.toml",
            *chosen,
            listed,
        )


@nox.session(venv_backend="venv")
@nox.parametrize("resolution", ["lowest-direct", "highest"], ids=["lowest", "newest"])
def bounds(session: nox.Session, resolution: str) -> None:
    """Run the default tests with the lowest versions of direct dependencies, or the newest
    of all.
    """
    _resolved(session, [f"--resolution={resolution}"], ("train", "watch", "query"))
    left_out = (f"--ignore={path}" for path in _files_of(BOUNDS_LEFT_OUT))
    session.run(*DEFAULT_LANE, *(session.posargs or left_out))


def _files_of(subjects: tuple[str, ...]) -> list[str]:
    """Return the files of some subjects of the default tests, in whatever part they lie."""
    return [str(path) for subject in subjects for path in Path("tests").rglob(f"test_{subject}.py")]


def _resolved(session: nox.Session, chosen: list[str], names: tuple[str, ...]) -> None:
    """Install the package with some extras, in versions that pyproject.toml allows and options of
    uv choose.
    """
    extras = [f"--extra={extra}" for extra in names]
    pinned = str(Path(session.create_tmp()).absolute() / "pinned.txt")
    session.install("uv")
    # uv reads its own configuration: UV_OVERRIDE may name a file with the torch that this machine
    # has
    resolve = ("uv", "pip", "compile", "pyproject.toml", *extras, *chosen, "-q", "-o", pinned)
    python = f"--python={session.virtualenv.bin}/python"
    session.run(*resolve, python)
    session.run("uv", "pip", "install", "-q", python, "-r", pinned)
    session.run("uv", "pip", "install", "-q", python, "--no-deps", "-e", ".")
    session.run("uv", "pip", "install", "-q", python, "-c", pinned, *BOUNDS_TOOLS)


# what a job, a sweep and the commands do to files, processes and streams
ELSEWHERE = (
    *(
        "commands",
        "extras",
        "figures",
        "hugging_face_trainer",
        "lightning",
        "ranks",
        "report",
        "runs_and_paths",
    ),
    *("store", "sweep", "terminal", "text_and_data", "tracker", "watch"),
)


@nox.session
def elsewhere(session: nox.Session) -> None:
    """Run default tests without what macOS and Windows lack, taken away on Linux for the modules of
    repdyn.
    """
    folder = "tests/nightly/tools/elsewhere"
    bare = {
        "PYTHONPATH": str(Path(folder).absolute()),
        "PYTHONWARNDEFAULTENCODING": "1",
        "PYTHONIOENCODING": "cp1252",
    }
    tests = (
        "tests/nightly/tools/test_elsewhere.py",
        *_files_of(ELSEWHERE),
    )
    session.run(*DEFAULT_LANE, *(session.posargs or tests), env=bare)


@nox.session(venv_backend="venv", python=["3.12", "3.13"])
def pythons(session: nox.Session) -> None:
    """Run the default tests with newer versions of Python."""
    session.install("-c", "constraints.txt", "-e", ".[test]")
    session.run(*DEFAULT_LANE, *session.posargs)
