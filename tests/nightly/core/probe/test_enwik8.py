from __future__ import annotations

import hashlib
import io
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from repdyn.probe import corpus as enwik8
from repdyn.probe import corpus as text
from repdyn.probe.corpus import enwik8_corpus

CONTENT = b"<mediawiki>stands in for enwik8</mediawiki>" * 1000


def zipped(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("enwik8", data)
    return buffer.getvalue()


class Server(BaseHTTPRequestHandler):
    """Serve a valid file, a wrong one, one that is no zip and a truncated one; count the
    requests.
    """

    bodies: ClassVar[dict[str, bytes]] = {
        "/good.zip": zipped(CONTENT),
        "/wrong.zip": zipped(b"something else"),
        "/page.zip": b"<html>please log in</html>",
        "/cut.zip": zipped(CONTENT),
    }
    requests = 0

    def do_GET(self):
        type(self).requests += 1
        if self.path in {"/drips.zip", "/answer.zip"}:
            return self._drip()
        if self.path not in self.bodies:
            self.send_error(404)
            return
        body = self.bodies[self.path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.path == "/cut.zip" else body)

    def _drip(self) -> None:
        """Send a byte now and then, of the file or of the answer's first lines."""
        self.wfile.write(
            b"HTTP/1.0 200 OK\r\n" + (b"\r\n" if self.path == "/drips.zip" else b"X-Words: ")
        )
        try:
            for _ in range(200):
                self.wfile.write(b"a")
                time.sleep(0.02)
        except ConnectionError:
            return

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def content_is_recognised_as_enwik8(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(
        text.ENWIK8_PREFIXES, hashlib.sha256(CONTENT).hexdigest(), text.ENWIK8_BYTES
    )


def test_downloaded_once_and_then_read_from_the_cache(address: str, cache: Path):
    Server.requests = 0
    first = enwik8_corpus(url=f"{address}/good.zip")
    assert enwik8_corpus(url=f"{address}/good.zip") == first
    assert first.name == "enwik8"
    assert first.data == CONTENT
    assert Server.requests == 1
    assert [path.name for path in cache.iterdir()] == ["enwik8.zip"]


@pytest.mark.parametrize(
    ("file", "error", "message"),
    [
        ("wrong.zip", ValueError, "sha256"),
        ("page.zip", ValueError, "another file"),
        ("cut.zip", ConnectionError, "ended after"),
        ("none.zip", ConnectionError, "404"),
    ],
)
def test_a_failed_download_raises_and_leaves_no_file(
    address: str, cache: Path, file: str, error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        enwik8_corpus(url=f"{address}/{file}")
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("file", ["drips.zip", "answer.zip"])
def test_a_server_that_sends_a_byte_now_and_then(
    address: str, cache: Path, monkeypatch: pytest.MonkeyPatch, file: str
):
    monkeypatch.setattr(enwik8, "_TIMEOUT_SECONDS", 0.25)
    monkeypatch.setattr(enwik8, "_TOTAL_SECONDS", 0.5)
    started = time.monotonic()
    with pytest.raises(ConnectionError, match=r"0\.5 s"):
        enwik8_corpus(url=f"{address}/{file}")
    assert time.monotonic() - started < 3
    assert list(cache.iterdir()) == []


def test_an_interrupted_download_leaves_no_file(
    address: str, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(url: str, path: Path) -> None:
        path.write_bytes(zipped(CONTENT)[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(enwik8, "_download", interrupt)
    with pytest.raises(KeyboardInterrupt):
        enwik8_corpus(url=f"{address}/good.zip")
    assert list(cache.iterdir()) == []


def test_another_file_in_the_cache_is_refused(cache: Path):
    cache.mkdir()
    (cache / "enwik8.zip").write_bytes(zipped(b"something else"))
    with pytest.raises(
        ValueError, match=r"cache/enwik8\.zip, got sha256 .*; delete it, or give its path"
    ):
        enwik8_corpus()
