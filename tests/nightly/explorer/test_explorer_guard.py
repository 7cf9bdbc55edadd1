"""Requests that the explorer refuses: files, other sites, and names that others have lead here."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

import gradio as gr
import pytest

from repdyn.explorer.server import launch

FILE = (
    b'--b\r\nContent-Disposition: form-data; name="files"; filename="drive_by.bin"\r\n\r\n'
    + 4096 * b"x"
    + b"\r\n--b--\r\n"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Where gradio keeps files."""
    return tmp_path_factory.mktemp("gradio")


@pytest.fixture(scope="module")
def port(cache):
    """A page of this computer alone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GRADIO_TEMP_DIR", str(cache))
        with gr.Blocks(analytics_enabled=False) as blocks:
            gr.Textbox()
        yield urlsplit(launch(blocks, host="127.0.0.1", port=0)).port
        blocks.close(verbose=False)


def asked(port, method, path, body=b"", **headers):
    """Status and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.mark.parametrize("path", ["/gradio_api/upload", "/gradio_api/upload?upload_id=a", "/gradio_api/%75pload"])
def test_a_file_is_refused_and_not_kept(port, cache, path):
    status, text = asked(port, "POST", path, FILE, Content_Type="multipart/form-data; boundary=b")
    assert (status, text) == (403, "expected a request that the page makes, got POST '/gradio_api/upload'")
    assert [found for found in cache.rglob("*") if found.is_file()] == []


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:1", "http://127.0.0.1", "null"])
def test_another_site_cannot_ask_the_models_anything(port, origin):
    status, text = asked(port, "POST", "/gradio_api/queue/join", b"{}", Origin=origin)
    assert (status, text) == (403, f"expected a request from the page at 127.0.0.1:{port}, got one from {origin!r}")


def test_at_an_address_for_others_any_name_is_answered_and_files_are_refused():
    with gr.Blocks(analytics_enabled=False) as blocks:
        gr.Textbox()
    port = urlsplit(launch(blocks, host="0.0.0.0", port=0)).port
    assert asked(port, "GET", "/config", Host=f"my-machine:{port}")[0] == 200
    assert asked(port, "POST", "/gradio_api/upload", FILE)[0] == 403
    assert asked(port, "POST", "/gradio_api/queue/join", Host="my-machine", Origin="http://evil.example")[0] == 403
    blocks.close(verbose=False)
