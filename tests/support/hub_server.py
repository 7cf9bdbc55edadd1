"""A local stand-in for the Hugging Face hub: it serves folders as model repositories, and fails
where it is told to.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias
from urllib.parse import parse_qs, unquote
from weakref import WeakSet

Answer: TypeAlias = tuple[int, bytes, Mapping[str, str]]  # code, body, headers
KINDS = ("status", "truncated", "wrong_size", "cut", "slow", "stall", "corrupt", "headers", "gzip")

_NAME = r"(?P<name>[^/]+(?:/[^/]+)?)"
_ROUTES = {
    "refs": re.compile(rf"/api/models/{_NAME}/refs"),
    "commits": re.compile(rf"/api/models/{_NAME}/commits/(?P<revision>[^/]+)"),
    "tree": re.compile(rf"/api/models/{_NAME}/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?"),
    "info": re.compile(rf"/api/models/{_NAME}(?:/revision/(?P<revision>[^/]+))?"),
    "file": re.compile(rf"/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)"),
}
_LARGE = (".safetensors", ".bin", ".pt")  # put into LFS


@dataclass
class Fault:
    """What goes wrong with the requests it matches: with every method for "status", otherwise with
    the body of a GET.

    Requests that write, which only a hub with datasets answers, may be "cut" or "stall" too, before
    their answer.

    Attributes:
        code, headers: for "status", such as 429 with {"Retry-After": "7"}, or 404 with an
        X-Error-Code; headers for "headers" and "slow".
        after: for all others but "slow", up to which byte of the whole file all is well; half the
            file by default.
        bytes_per_second, seconds: for "slow"; and for "stall", the silence after which the rest is
        sent.
        is_done: whether a request that writes is done all the same, so that only its answer is
            lost.
    """

    pattern: re.Pattern[str]
    kind: str
    times: int | None
    code: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    after: int | None = None
    bytes_per_second: int = 1000
    seconds: float = 60.0
    is_done: bool = False

    def meets(self, method: str, path: str) -> bool:
        named = self.pattern.search(path) or self.pattern.search(f"{method} {path}")
        kinds = {
            "POST": {"status", "cut", "stall"},
            "PUT": {"status", "cut", "stall"},
            "GET": set(KINDS),
        }
        return self.times != 0 and bool(named) and self.kind in kinds.get(method, {"status"})


class HubServer(ThreadingHTTPServer):
    """A hub at ``url``, in threads of this process, up until the end of ``with HubServer() as
    hub:``.

    Attributes:
        requests: (method, path) of every request so far, in order of arrival; paths are quoted and
            without a query.
        bytes_sent: bytes in all answers' bodies so far.
        faults: what goes wrong, in the order it was asked for; ``faults.clear()`` ends it.
    """

    request_queue_size = 64
    commits_per_page = 50

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests: list[tuple[str, str]] = []
        self.bytes_sent = 0
        self.faults: list[Fault] = []
        self.repositories: dict[str, Repository] = {}
        self.lock = threading.Lock()
        self.closed = threading.Event()
        self._connections: WeakSet[socket.socket] = WeakSet()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):  # those kept alive would go on being served
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._connections.add(connection)
        return connection, address

    def publish(
        self,
        repository: str,
        revision: str,
        folder: Path,
        *,
        tag: bool = False,
        date: str = "2024-01-01",
        title: str = "Publish",
    ) -> str:
        """Put all files under ``folder``, as they are now, at a branch or tag; earlier commits stay
        reachable.

        Args:
            repository: "organisation/name" or "name"; made if there is none.
            revision: name of the branch, or of the tag if ``tag``. A repository needs no "main".
            date: day of the commit, the same for all files.
            title: first line of the commit's message.

        Returns:
            The commit: 40 hexadecimal digits that follow from repository, revision and content.
        """
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        files = {
            path.relative_to(folder).as_posix(): File(path.read_bytes(), path.suffix in _LARGE)
            for path in paths
        }
        content = [repository, revision, {path: file.sha256 for path, file in files.items()}]
        commit = sha1(json.dumps(content).encode()).hexdigest()
        target = self.repositories.setdefault(repository, Repository())
        target.commits[commit] = files
        target.dates[commit] = f"{date}T00:00:00.000Z"
        (target.tags if tag else target.branches)[revision] = commit
        target.histories.setdefault(revision, []).insert(0, (commit, title))
        return commit

    def gate(self, repository: str) -> None:
        """Refuse a repository's files, with 401 to who sends no token and 403 to all others; its
        listings stay open.
        """
        self.repositories[repository].gated = True

    def fault(
        self, path_pattern: str, kind: str, *, times: int | None = None, **options: Any
    ) -> None:
        """Let requests go wrong; of the faults that match a request, the first that is not used up
        happens.

        Args:
            path_pattern: regular expression searched in the path and in "METHOD path", such as
                "^HEAD .*safetensors$".
            kind: "status" is an error. "headers" adds some to a good answer. "gzip"
                compresses it, with ``after`` zeros at its end. "truncated" announces the whole and
                closes the connection after a part, "cut" resets it there. "wrong_size" announces
                and sends a part. "stall" falls silent after a part. "slow" sends little by little.
                "corrupt" inverts every byte after a part.
            times, options: to how many requests it happens, None meaning all; and other fields of
            :class:`Fault`.
        """
        if kind not in KINDS:
            raise ValueError(f"expected a kind among {', '.join(KINDS)}, got {kind!r}")
        self.faults.append(Fault(re.compile(path_pattern), kind, times, **options))


@dataclass(frozen=True)
class File:
    content: bytes
    is_lfs: bool

    @cached_property
    def sha256(self) -> str:
        return sha256(self.content).hexdigest()

    @cached_property
    def oid(self) -> str:
        return sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()

    def described(self, oid: str, sha256: str) -> dict[str, Any]:
        """Size, git blob and LFS object, the latter two under the names that a route gives them."""
        size = len(self.content)
        lfs = (
            {"lfs": {sha256: self.sha256, "size": size, "pointerSize": 134}} if self.is_lfs else {}
        )
        return {"size": size, oid: self.oid} | lfs


def _json(content: object) -> Answer:
    return 200, json.dumps(content).encode(), {"Content-Type": "application/json"}


def _error(code: int, message: str, headers: Mapping[str, str]) -> Answer:
    return code, json.dumps({"error": message}).encode(), {"X-Error-Message": message, **headers}


@dataclass
class Repository:
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    dates: dict[str, str] = field(default_factory=dict)
    histories: dict[str, list[tuple[str, str]]] = field(
        default_factory=dict
    )  # (commit, title), the newest first
    gated: bool = False

    def refs(self) -> Answer:
        def listed(kind: str, named: Mapping[str, str]) -> list[dict[str, str]]:
            return [
                {"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": sha}
                for name, sha in named.items()
            ]

        return _json(
            {
                "branches": listed("heads", self.branches),
                "tags": listed("tags", self.tags),
                "converts": [],
            }
        )

    def info(self, name: str, commit: str, blobs: bool) -> Answer:
        files = self.commits[commit].items()
        siblings = [
            {"rfilename": path} | (file.described("blobId", "sha256") if blobs else {})
            for path, file in files
        ]
        description = {"id": name, "modelId": name, "sha": commit, "siblings": siblings, "tags": []}
        return _json(
            description
            | {"private": False, "disabled": False, "gated": "manual" if self.gated else False}
        )

    def history(self, revision: str, page: int, size: int, address: str) -> Answer:
        """One page of the commits of a branch, with the address of the next page."""
        commits = self.histories[revision]
        listed = [
            {
                "id": commit,
                "title": title,
                "message": "",
                "date": self.dates[commit],
                "authors": [{"user": "me"}],
            }
            for commit, title in commits[page * size : (page + 1) * size]
        ]
        code, body, headers = _json(listed)
        more = (
            {"Link": f'<{address}?p={page + 1}>; rel="next"'}
            if len(commits) > (page + 1) * size
            else {}
        )
        return code, body, {**headers, **more}

    def tree(self, commit: str, folder: str, recursive: bool) -> Answer:
        entries: dict[PurePosixPath, dict[str, Any]] = {}
        for name, file in self.commits[commit].items():
            path = PurePosixPath(name)
            for above in path.parents[-2::-1]:
                entries[above] = {"type": "directory", "path": str(above), "oid": commit, "size": 0}
            entries[path] = {"type": "file", "path": name} | file.described("oid", "oid")
        root = PurePosixPath(folder)
        inside = [
            entry
            for path, entry in entries.items()
            if root in (path.parents if recursive else [path.parent])
        ]
        return (
            _json(inside)
            if inside
            else _error(404, f"{folder} does not exist", {"X-Error-Code": "EntryNotFound"})
        )

    def file(self, commit: str, path: str, authorized: bool) -> Answer:
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if self.gated:
            return _error(
                403 if authorized else 401,
                "Access is restricted",
                {"X-Error-Code": "GatedRepo"} | headers,
            )
        file = self.commits[commit].get(path)
        if file is None:
            return _error(404, "Entry not found", {"X-Error-Code": "EntryNotFound"} | headers)
        # the hub names a file in LFS by its sha256, any other by its git blob
        return (
            200,
            file.content,
            {"ETag": f'"{file.sha256 if file.is_lfs else file.oid}"'} | headers,
        )


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = (
        True  # headers and body are two writes, which it would hold apart for 40 ms
    )

    server: HubServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def handle(self) -> None:
        with suppress(ConnectionError):  # the client has given up
            super().handle()

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        fault = self._received(path)
        if fault is not None and fault.kind == "status":
            answer = _error(fault.code, "The hub was told to fail", fault.headers)
        else:
            answer = self._answer(path, parse_qs(query))
        if fault is not None and fault.kind in {"headers", "slow"}:
            answer = (*answer[:2], {**answer[2], **fault.headers})
        if fault is not None and fault.kind == "gzip":
            content = gzip.compress(answer[1] + bytes(fault.after or 0))
            answer = (answer[0], content, {**answer[2], "Content-Encoding": "gzip"})
        self._send(*answer, fault)

    do_HEAD = do_GET

    def _received(self, path: str) -> Fault | None:
        """Record a request, and return what goes wrong with it."""
        with self.server.lock:
            self.server.requests.append((self.command, path))
            fault = next(
                (fault for fault in self.server.faults if fault.meets(self.command, path)), None
            )
            if fault is not None and fault.times is not None:
                fault.times -= 1
        return fault

    def _answer(self, path: str, query: Mapping[str, list[str]]) -> Answer:
        matches = ((route, pattern.fullmatch(path)) for route, pattern in _ROUTES.items())
        route, match = next((pair for pair in matches if pair[1]), (None, None))
        if match is None:
            return _error(404, "Page not found", {})
        fields = {key: unquote(text or "") for key, text in match.groupdict().items()}
        repository = self.server.repositories.get(fields["name"])
        if repository is None:
            return _error(404, "Repository not found", {"X-Error-Code": "RepoNotFound"})
        if route == "refs":
            return repository.refs()
        revision = fields["revision"] or "main"
        commit = {**repository.tags, **repository.branches}.get(revision, revision)
        if commit not in repository.commits:
            return _error(404, f"Invalid rev id: {revision}", {"X-Error-Code": "RevisionNotFound"})
        if route == "commits":
            page = int(query.get("p", ["0"])[0])
            return repository.history(
                revision, page, self.server.commits_per_page, f"{self.server.url}{path}"
            )
        on = {name for name, values in query.items() if values[0].lower() in {"true", "1"}}
        if route == "info":
            return repository.info(fields["name"], commit, "blobs" in on)
        if route == "tree":
            return repository.tree(commit, fields["path"], "recursive" in on)
        return repository.file(commit, fields["path"], "Authorization" in self.headers)

    def _send(
        self, code: int, body: bytes, headers: Mapping[str, str], fault: Fault | None
    ) -> None:
        """An answer, or the range of it that was asked for, with what goes wrong on the way."""
        n_sound = len(body) // 2 if fault is None or fault.after is None else fault.after
        if fault is not None and fault.kind in {"wrong_size", "corrupt"}:
            body = body[:n_sound] + (
                bytes(255 - byte for byte in body[n_sound:]) if fault.kind == "corrupt" else b""
            )
        start = 0
        stop = len(body)
        extent = {}
        if code == 200 and "Range" in self.headers:
            code, start, stop = _range(self.headers["Range"], len(body))
            sent = f"{start}-{stop - 1}" if code == 206 else "*"
            extent = {"Content-Range": f"bytes {sent}/{len(body)}"}
        self.send_response(code)
        for name, value in {"Content-Length": str(stop - start), **headers, **extent}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self._send_body(body[:stop], start, n_sound, fault)

    def _send_body(self, body: bytes, start: int, n_sound: int, fault: Fault | None) -> None:
        if fault is None or fault.kind in {"status", "headers", "gzip", "wrong_size", "corrupt"}:
            self._write(body[start:])
        elif fault.kind == "slow":
            step = fault.bytes_per_second // 20 + 1
            for position in range(start, len(body), step):
                self._write(body[position : position + step])
                self.server.closed.wait(step / fault.bytes_per_second)
        else:
            self._write(body[start:n_sound])
            if fault.kind == "stall":
                self.server.closed.wait(fault.seconds)
                self._write(body[max(start, n_sound) :])
            self.close_connection = True
            if fault.kind == "cut":
                self._reset()

    def _reset(self) -> None:
        """Close the connection with a linger of 0 seconds, so that the socket sends RST in place of
        FIN.
        """
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()  # as long as it is open, so is the socket
        self.connection.close()

    def _write(self, body: bytes) -> None:
        with self.server.lock:  # before it is written: whoever has read it finds it counted
            self.server.bytes_sent += len(body)
        self.wfile.write(body)


def _range(header: str, size: int) -> tuple[int, int, int]:
    """Status code, first byte, and byte after the last, of "bytes=2-", "bytes=2-5" or
    "bytes=-3".
    """
    first, _, last = header.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(size - int(last), 0)
    stop = min(int(last) + 1, size) if first and last else size
    return (206, start, stop) if start < stop else (416, 0, 0)
