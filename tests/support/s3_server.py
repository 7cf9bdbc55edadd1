"""A server that speaks S3, in a thread of this process, and fails where it is told to."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.server import ThreadedMotoServer
from werkzeug.serving import WSGIRequestHandler, make_server

Kind = Literal["refused", "status", "slow", "cut"]
_ERROR = (
    "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}: told to fail</Message></Error>"
)


@dataclass
class Fault:
    """What goes wrong with the requests it matches.

    Attributes:
        requests: searched in "METHOD /bucket/key".
        kind: "refused" closes the connection without an answer, "status" answers with an error,
            "slow" waits first, "cut" closes the connection after half of the body.
        times: of how many requests; None for all.
        status, code: of the error, such as 400 and ExpiredToken.
        seconds: of "slow".
        key_id: only of requests that are signed with this access key.
    """

    requests: re.Pattern[str]
    kind: Kind
    times: int | None = None
    status: int = 503
    code: str = "SlowDown"
    seconds: float = 0.0
    key_id: str = ""

    def meets(self, environ: dict[str, Any]) -> bool:
        request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
        is_signed = self.key_id in environ.get("HTTP_AUTHORIZATION", "")
        return self.times != 0 and is_signed and self.requests.search(request) is not None


class S3Server(ThreadedMotoServer):
    """A server at ``url``, up until the end of ``with S3Server() as server:``.

    Attributes:
        faults: what goes wrong; the first that matches a request happens.
        requests: "METHOD /bucket/key" of the requests so far.
    """

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 0, verbose=False)
        self.faults: list[Fault] = []
        self.requests: list[str] = []

    def __enter__(self) -> S3Server:
        self.start()
        host, port = self.get_host_and_port()
        self.url = f"http://{host}:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def fault(self, requests: str, kind: Kind, **options: Any) -> None:
        self.faults.append(Fault(re.compile(requests), kind, **options))

    def _server_entry(self) -> None:
        app = self._failing(DomainDispatcherApplication(create_backend_app))
        self._server = make_server(
            self._ip_address, self._port, app, True, request_handler=_Handler
        )
        self._server_ready_event.set()
        self._server.serve_forever()

    def _failing(self, app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
        def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            self.requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
            fault = next((fault for fault in self.faults if fault.meets(environ)), None)
            if fault is None:
                return app(environ, start_response)
            if fault.times is not None:
                fault.times -= 1
            if fault.kind == "refused":
                raise ConnectionResetError
            if fault.kind == "status":
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start_response(f"{fault.status} Error", [("Content-Type", "application/xml")])
                # an answer to HEAD has no body, so that a client learns the status alone
                return (
                    []
                    if environ["REQUEST_METHOD"] == "HEAD"
                    else [_ERROR.format(code=fault.code).encode()]
                )
            if fault.kind == "slow":
                time.sleep(fault.seconds)
                return app(environ, start_response)
            return _cut(b"".join(app(environ, start_response)))

        return answer


class _Handler(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: object) -> None:
        """Print nothing."""


def _cut(body: bytes) -> Iterator[bytes]:
    yield body[: len(body) // 2]
    raise ConnectionResetError
