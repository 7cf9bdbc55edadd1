"""Names of a package that are imported when they are first used, and the extras that come with
packages.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

# The extra of pyproject.toml that brings a package; one that two extras have stands at the smaller.
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
        # without importing it, which may take seconds
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
        f"expected the package {package!r}, which {what} needs, found none; {install_line(extra)}",
        name=package,
    )


def install_line(extra: str) -> str:
    """Return the command that installs an extra of this package, from where the package itself is:
    a checkout, an address from which it was installed, or else the package index."""
    checkout = Path(__file__).parents[3]
    if (checkout / "pyproject.toml").is_file() and (checkout / "src" / "repdyn").is_dir():
        return f"pip install -e {shlex.quote(f'{checkout}[{extra}]')}"
    address = _address_of_installation()
    return f"pip install {shlex.quote(f'repdyn[{extra}]' + (f' @ {address}' if address else ''))}"


def _address_of_installation() -> str | None:
    """Return the address of the folder, the file or the repository that was installed; None for the
    package index, or a file that is there no more."""
    try:
        read_metadata = distribution("repdyn").read_text  # which takes no encoding: it is UTF-8
    except PackageNotFoundError:
        return None
    recorded = read_metadata("direct_url.json")
    if not recorded:
        return None
    record = json.loads(recorded)
    url = str(record["url"])
    if url.startswith("file://") and not Path(unquote(urlsplit(url).path)).exists():
        return None
    version = record.get("vcs_info")
    return f"{version['vcs']}+{url}@{version['commit_id']}" if version else url


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
