"""The stand-in of the hub with datasets that can be written: listings, files and commits of small files."""

from __future__ import annotations

import base64
import json
from hashlib import sha1
from typing import Any
from urllib.parse import parse_qs

from hub_server import HubServer, _File, _Handler, _Repository


class DatasetServer(HubServer):
    """A hub whose repositories are datasets.

    Attributes:
        commits: the files of each commit made through it, by path.
    """

    def __init__(self) -> None:
        super().__init__()
        self.RequestHandlerClass = _DatasetHandler
        self.commits: list[dict[str, bytes]] = []

    def create(self, name: str) -> None:
        """Make an empty dataset."""
        self.repositories[name] = _Repository(
            branches={"main": "0" * 40}, commits={"0" * 40: {}}, dates={"0" * 40: "2024-01-01T00:00:00.000Z"}
        )

    def files(self, name: str) -> dict[str, bytes]:
        """Return the files of the main branch."""
        repository = self.repositories[name]
        return {path: file.content for path, file in repository.commits[repository.branches["main"]].items()}


class _DatasetHandler(_Handler):
    server: DatasetServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self.path = self.path.replace("/api/datasets/", "/api/models/", 1).replace("/datasets/", "/", 1)
        super().do_GET()

    do_HEAD = do_GET

    def do_POST(self) -> None:
        path, _, _query = self.path.partition("?")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append(("POST", path))
        if path == "/api/validate-yaml":
            return self._answer_json({"errors": [], "warnings": []})
        _, _, _, owner, name, kind, *_ = path.split("/")
        repository = self.server.repositories.get(f"{owner}/{name}")
        if repository is None:
            return self._answer_json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        fault = next((fault for fault in self.server.faults if fault.meets("POST", path)), None)
        if fault is not None:
            if fault.times is not None:
                fault.times -= 1
            return self._answer_json({"error": "told to fail"}, fault.code, dict(fault.headers))
        if kind == "preupload":
            files = json.loads(body)["files"]
            return self._answer_json(
                {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
            )
        if kind == "paths-info":
            asked = parse_qs(body.decode())["paths"] if b"paths=" in body else json.loads(body)["paths"]
            here = repository.commits[repository.branches["main"]]
            found = [
                {"type": "file", "path": path} | here[path].described("oid", "oid") for path in asked if path in here
            ]
            return self._answer_json(found)
        return self._commit(repository, body)

    def _commit(self, repository: _Repository, body: bytes) -> None:
        files = dict(repository.commits[repository.branches["main"]])
        added: dict[str, bytes] = {}
        for line in body.splitlines():
            record = json.loads(line)
            if record["key"] == "file":
                added[record["value"]["path"]] = base64.b64decode(record["value"]["content"])
            elif record["key"] == "deletedFile":
                files.pop(record["value"]["path"], None)
        files |= {path: _File(content, False) for path, content in added.items()}
        commit = sha1(body).hexdigest()
        repository.commits[commit], repository.branches["main"] = files, commit
        repository.dates[commit] = "2024-01-02T00:00:00.000Z"
        self.server.commits.append(added)
        self._answer_json({"commitUrl": f"{self.server.url}/datasets/x/y/commit/{commit}", "commitOid": commit})

    def _answer_json(self, content: Any, code: int = 200, headers: dict[str, str] | None = None) -> None:
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
