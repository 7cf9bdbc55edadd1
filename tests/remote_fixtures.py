"""Fixtures of remote stores: a filesystem in memory that fails where it is told to, and a server that speaks S3."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from repdyn.store import remote_folder, uploader


class FaultyFileSystem(MemoryFileSystem):
    """Files in memory, shared by all threads, and what goes wrong with the requests for them.

    Attributes:
        faults: by method, such as "put_file": an exception to raise, seconds to wait, or "truncate".
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

    def pipe_file(self, path, value, **options):
        self._meet("pipe_file", path)
        return super().pipe_file(path, value, **options)


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FaultyFileSystem]]:
    """The filesystem of the URLs ``faulty://``, empty; the cache is below ``tmp_path``, and retries wait little."""
    fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
    FaultyFileSystem.store.clear()
    FaultyFileSystem.faults.clear()
    FaultyFileSystem.requests.clear()
    FaultyFileSystem.pseudo_dirs[:] = [""]
    FaultyFileSystem.clear_instance_cache()
    conditional = remote_folder._CREATES_CONDITIONALLY | {"faulty"}
    monkeypatch.setattr(remote_folder, "_CREATES_CONDITIONALLY", conditional)
    monkeypatch.setattr(remote_folder, "WAITS_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(uploader, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setenv("REPDYN_CACHE", str(tmp_path / "cache"))
    yield FaultyFileSystem
    FaultyFileSystem.faults.clear()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of a server that speaks S3."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_environment(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables by which this process, and those that a test starts, find the server."""
    variables = {
        "AWS_ENDPOINT_URL_S3": s3_server,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "no-secret-at-all",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
        "REPDYN_CACHE": str(tmp_path / "cache"),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


_LOCK, _BUCKETS = threading.Lock(), iter(range(1 << 30))


@pytest.fixture
def bucket(s3_environment: dict[str, str]) -> str:
    """The URL of an empty bucket."""
    with _LOCK:
        name = f"bucket-{next(_BUCKETS)}"
    filesystem = fsspec.filesystem("s3", skip_instance_cache=True)
    filesystem.mkdir(name)
    return f"s3://{name}"
