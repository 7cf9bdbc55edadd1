"""The stand-in of the hub with datasets that can be written: listings, files, commits, and large
files by git LFS.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from hashlib import sha1, sha256
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs

from hub_server import Answer, File, Handler, HubServer, Repository


class DatasetServer(HubServer):
    """A hub whose repositories are datasets.

    Attributes:
        commits: the files of each commit made through it, by path.
        large: endings of the files that are put into LFS, as the .gitattributes of a dataset says.
        ignored: paths that the .gitignore of a dataset leaves out.
        objects: the content of LFS objects by sha256.
        token: who does not send it is answered 401; None to answer everyone.
        xet: address of the Xet storage that large files go to; None where there is none.
        find_object: returns the content of a file in Xet by its sha256, which this server cannot
            put together.
    """

    def __init__(self) -> None:
        super().__init__()
        self.RequestHandlerClass = _DatasetHandler
        self.commits: list[dict[str, bytes]] = []
        self.large: tuple[str, ...] = ()
        self.ignored: set[str] = set()
        self.objects: dict[str, bytes] = {}
        self.token: str | None = None
        self.xet: str | None = None
        self.find_object: Callable[[str], bytes] = self.objects.__getitem__

    def create(self, name: str) -> None:
        """Make an empty dataset."""
        self.repositories[name] = Repository(
            branches={"main": "0" * 40},
            commits={"0" * 40: {}},
            dates={"0" * 40: "2024-01-01T00:00:00.000Z"},
        )

    def files(self, name: str) -> dict[str, bytes]:
        """Return the files of the main branch."""
        return {path: file.content for path, file in _tree(self.repositories[name]).items()}


class _DatasetHandler(Handler):
    server: DatasetServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self.path = self.path.replace("/api/datasets/", "/api/models/", 1).replace(
            "/datasets/", "/", 1
        )
        super().do_GET()

    do_HEAD = do_GET

    def do_POST(self) -> None:
        path, _, _query = self.path.partition("?")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        fault = self._received(path)
        answer = None
        if fault is None or fault.is_done:
            with self.server.lock:
                answer = self._written(path, body)
        if fault is None:
            return self._answer_json(*(answer or ({}, 200)))
        if fault.kind == "status":
            return self._answer_json({"error": "told to fail"}, fault.code, dict(fault.headers))
        if fault.kind == "stall":
            self.server.closed.wait(fault.seconds)
        self._reset()

    do_PUT = do_POST

    def _answer(self, path: str, query: Mapping[str, list[str]]) -> Answer:
        if refusal := self._refusal():
            content, code, headers = refusal
            return code, json.dumps(content).encode(), headers
        if "/xet-write-token/" in path:
            access = {
                "casUrl": self.server.xet,
                "accessToken": "secret",
                "exp": int(time.time()) + 3600,
            }
            return 200, json.dumps(access).encode(), {}
        return super()._answer(path, query)

    def _refusal(self) -> tuple[Any, int, dict[str, str]] | None:
        """Return the answer to a request whose token has expired, as the hub gives it."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.server.token in {None, token}:
            return None
        return (
            {"error": f"User Access Token {token} is expired"},
            401,
            {"X-Error-Code": "RepoNotFound"},
        )

    # a branch for each request that writes
    def _written(self, path: str, body: bytes) -> tuple[Any, int] | tuple[Any, int, dict[str, str]]:
        """Do what a request asks for, and return the answer: content, status, headers."""
        if self.command == "PUT":
            name = path.rpartition("/")[2]
            if name != sha256(body).hexdigest():
                return {"error": "content and checksum differ"}, 400
            self.server.objects[name] = body
            return {}, 200
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}, 200
        if refusal := self._refusal():
            return refusal
        _, _, owner, name, kind, *_ = path.removeprefix("/api").split("/")
        repository = self.server.repositories.get(f"{owner}/{name.removesuffix('.git')}")
        if repository is None:
            return {"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"}
        if kind == "info":
            return {
                "objects": [self._large_object(entry) for entry in json.loads(body)["objects"]]
            }, 200
        if kind == "preupload":
            return {
                "files": [
                    self._upload_mode(repository, entry["path"])
                    for entry in json.loads(body)["files"]
                ]
            }, 200
        if kind == "paths-info":
            paths = (
                parse_qs(body.decode())["paths"] if b"paths=" in body else json.loads(body)["paths"]
            )
            here = _tree(repository)
            entries = [
                {"type": "file", "path": path} | here[path].described("oid", "oid")
                for path in paths
                if path in here
            ]
            return entries, 200
        return self._commit(repository, [json.loads(line) for line in body.splitlines()])

    def _large_object(self, entry: dict[str, Any]) -> dict[str, Any]:
        if entry["oid"] in self.server.objects:
            return entry
        return entry | {
            "actions": {
                "upload": {"href": f"{self.server.url}/objects/{entry['oid']}?signature=secret"}
            }
        }

    def _upload_mode(self, repository: Repository, path: str) -> dict[str, Any]:
        """Say how a file is to be uploaded, and which content the branch has."""
        file = _tree(repository).get(path)
        return {
            "path": path,
            "uploadMode": "lfs" if PurePosixPath(path).suffix in self.server.large else "regular",
            "shouldIgnore": path in self.server.ignored,
            **({"oid": file.sha256 if file.is_lfs else file.oid} if file else {}),
        }

    def _commit(
        self, repository: Repository, records: list[dict[str, Any]]
    ) -> tuple[Any, int] | tuple[Any, int, dict[str, str]]:
        head = repository.branches["main"]
        files = dict(_tree(repository))
        if records[0]["value"].get("parentCommit", head) != head:
            return {"error": "A commit has happened since. Please refresh and try again."}, 412
        added: dict[str, File] = {}
        for key, value in ((record["key"], record["value"]) for record in records[1:]):
            if key == "file":
                added[value["path"]] = File(base64.b64decode(value["content"]), False)
            elif key == "lfsFile":
                added[value["path"]] = File(self.server.find_object(value["oid"]), True)
            elif value["path"] not in files:
                return (
                    {"error": f"{value['path']} does not exist"},
                    404,
                    {"X-Error-Code": "EntryNotFound"},
                )
            else:
                files.pop(value["path"])
        files |= added
        commit = sha1(json.dumps([head, records]).encode()).hexdigest()
        repository.commits[commit], repository.branches["main"] = files, commit
        repository.dates[commit] = "2024-01-02T00:00:00.000Z"
        self.server.commits.append({path: file.content for path, file in added.items()})
        return {
            "commitUrl": f"{self.server.url}/datasets/x/y/commit/{commit}",
            "commitOid": commit,
        }, 200

    def _answer_json(
        self, content: Any, code: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        for name, value in {
            "Content-Length": str(len(body)),
            "Content-Type": "application/json",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _tree(repository: Repository) -> dict[str, File]:
    return repository.commits[repository.branches["main"]]
