"""Names of a package that are imported when they are first used, and the extras that come with
packages.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

# of the commands; a package that two extras have stands at the smaller one
_EXTRAS = {
    "views": ("cyclopts", "matplotlib", "pandas", "plotly", "rich"),
    "lightning": ("lightning",),
    "hf": ("transformers", "tokenizers", "accelerate"),
    "sweep": ("huggingface_hub", "httpx2", "psutil", "pydantic", "datasets"),
    "lab": ("gradio", "sklearn"),
    "query": ("duckdb",),
    "watch": ("starlette", "uvicorn"),
    "train": ("jsonargparse", "lxml", "mwparserfromhell", "tensorboard", "wandb"),
}


class MissingPackageError(ModuleNotFoundError):
    """A package is not installed that comes with an extra of repdyn; the message names the
    extra.
    """


def require(extra: str, what: str, *packages: str) -> None:
    """Raise MissingPackageError where one of the packages of an extra is not installed; ``what``
    needs them.
    """
    for package in packages:
        try:
            spec = find_spec(package)
        except ModuleNotFoundError:
            spec = None
        if spec is None:
            raise _missing(package, extra, what)


def with_extra(error: ModuleNotFoundError, what: str) -> MissingPackageError | None:
    """Return the error that names the extra with a package that was not found; None if no extra has
    it.
    """
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in _EXTRAS.items() if package in packages), None)
    return None if extra is None else _missing(package, extra, what)


def _missing(package: str, extra: str, what: str) -> MissingPackageError:
    return MissingPackageError(
        f"expected the package {package!r}, which {what} needs, found none; pip install "
        f"'repdyn[{extra}]'",
        name=package,
    )


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that imports names, each from its home, when they are
    used.
    """

    def get(name: str) -> Any:
        if name in homes:
            try:
                return getattr(import_module(homes[name]), name)
            except ModuleNotFoundError as error:
                raise with_extra(error, f"{package}.{name}") or error from error
        raise AttributeError(
            f"module {package!r} has no attribute {name!r}; it has {', '.join(homes)}"
        )

    return get
