"""Fixtures of remote stores: a filesystem in memory that fails where it is told to, and a server
that speaks S3.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from repdyn.store import Store, open_store

if TYPE_CHECKING:
    from dataset_server import DatasetServer
    from hub_server import HubServer
    from s3_server import S3Server


class FaultyFileSystem(MemoryFileSystem):
    """Files in memory, shared by all threads, and what goes wrong with the requests for them.

    Attributes:
        faults: by method, such as "put_file": an exception to raise, seconds to wait, or
            "truncate".
        requests: the methods called so far.
    """

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    faults: ClassVar[dict[str, Any]] = {}
    requests: ClassVar[list[tuple[str, str]]] = []

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + str(path).removeprefix("faulty://").strip("/")

    def _meet(self, method: str, path: str) -> Any:
        type(self).requests.append((method, path))
        fault = self.faults.get(method)
        if isinstance(fault, BaseException):
            raise fault
        if isinstance(fault, (int, float)):
            time.sleep(fault)
        return fault

    def find(self, path, **options):
        self._meet("find", path)
        return super().find(path, **options)

    def info(self, path, **options):
        self._meet("info", path)
        return super().info(path, **options)

    def get_file(self, rpath, lpath, **options):
        fault = self._meet("get_file", rpath)
        super().get_file(rpath, lpath, **options)
        if fault == "truncate":
            content = Path(lpath).read_bytes()
            Path(lpath).write_bytes(content[: len(content) // 2])

    def put_file(self, lpath, rpath, **options):
        self._meet("put_file", rpath)
        return super().put_file(lpath, rpath, **options)


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FaultyFileSystem]]:
    """The filesystem of the URLs ``faulty://``, empty; the cache is below ``tmp_path``."""
    # a class of its own, since the uploads of an earlier test may not have ended
    filesystem = type(
        "FaultyFileSystemOfOneTest",
        (FaultyFileSystem,),
        {"store": {}, "pseudo_dirs": [""], "faults": {}, "requests": []},
    )
    fsspec.register_implementation("faulty", filesystem, clobber=True)
    monkeypatch.setenv("REPDYN_CACHE", str(tmp_path / "cache"))
    yield filesystem
    filesystem.faults.clear()


@pytest.fixture(scope="session")
def _running_s3_server() -> Iterator[S3Server]:
    from s3_server import S3Server  # moto takes seconds to import

    with S3Server() as server:
        yield server


@pytest.fixture
def s3_server(_running_s3_server: S3Server) -> Iterator[S3Server]:
    """A server that speaks S3, without faults."""
    _running_s3_server.faults.clear()
    yield _running_s3_server
    _running_s3_server.faults.clear()


@pytest.fixture
def s3_environment(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The variables by which this process, and those that a test starts, find the server."""
    variables = {
        "AWS_ENDPOINT_URL_S3": s3_server.url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "no-secret-at-all",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
        "REPDYN_CACHE": str(tmp_path / "cache"),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


_LOCK = threading.Lock()
_BUCKETS = iter(range(1 << 30))


@pytest.fixture
def bucket(s3_environment: dict[str, str]) -> str:
    """The URL of an empty bucket."""
    with _LOCK:
        name = f"bucket-{next(_BUCKETS)}"
    filesystem = fsspec.filesystem("s3", skip_instance_cache=True)
    filesystem.mkdir(name)
    return f"s3://{name}"


@pytest.fixture
def datasets(
    monkeypatch: pytest.MonkeyPatch, hub: HubServer, tmp_path: Path
) -> Iterator[DatasetServer]:
    """A hub with datasets in place of the one with models."""
    from dataset_server import DatasetServer
    from huggingface_hub import HfFileSystem, constants

    monkeypatch.setenv("REPDYN_CACHE", str(tmp_path / "cache"))
    HfFileSystem.clear_instance_cache()
    with DatasetServer() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", server.url)
        yield server
    HfFileSystem.clear_instance_cache()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Store]:
    """Return a function that opens the store at a URL as another machine does, which has no copy of
    it.
    """

    def opened(url: str) -> Store:
        with monkeypatch.context() as patch:
            patch.setenv("REPDYN_CACHE", str(tmp_path / "elsewhere"))
            return open_store(url)

    return opened
