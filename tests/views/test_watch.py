"""Runs in the browser: what is read of them, what the table and the events say, and who may ask."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import itertools
import json
import math
import re
import shutil
import time
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.parse import urljoin

import pandas as pd
import pytest
from starlette.testclient import TestClient
from synthetic_runs import LOG_STEPS, fill, make_failures, make_rows
from watched import index as index

from repdyn.cli.main import main
from repdyn.views.watch import app as server
from repdyn.views.watch import index as watch_index
from repdyn.views.watch.app import Feed, build_app, table_page
from repdyn.views.watch.index import Index


def settle(index):
    """Poll until nothing is left to do."""
    while index.poll(10.0):
        pass
    return {summary["label"]: summary for summary in index.summaries.values()}


@pytest.fixture(autouse=True)
def described_at_once(monkeypatch):
    monkeypatch.setattr(watch_index, "_DESCRIBING_SHARE", math.inf)


@pytest.fixture
def followed(tmp_path):
    return Index([tmp_path], interval=0.0)


def one_run(path, *, run="first", steps=LOG_STEPS, **given):
    return fill(path, make_rows(run=run, steps=steps, n_blocks=2, **given))


def test_the_rows_are_those_of_the_store(followed, tmp_path):
    store = one_run(tmp_path)
    fill(
        tmp_path,
        make_failures(8, run="first", probe="3f2ab1c09d77e412"),
        make_failures(9, run="first"),
    )
    settle(followed)
    one_run(tmp_path, steps=(4,), noise=0.5)  # measured again
    settle(followed)
    (key,) = followed.summaries
    rows, _ = followed.rows([key])
    (frame,) = rows.values()
    pd.testing.assert_frame_equal(
        frame, store.to_pandas("first", columns=list(frame), categorical=True)
    )


def test_what_the_table_shows(followed, tmp_path):
    run = {"id": "first", "name": "first", "configuration": {"n_steps": 1000}}
    (one_run(tmp_path / "repdyn").folder_of("first") / "run.json").write_text(json.dumps(run))
    summary = settle(followed)["first"]
    assert summary["status"] == "healthy"
    assert summary["step"] == 512
    assert summary["total"] == 1000
    assert summary["loss"] == pytest.approx(1.2, abs=0.01)
    assert [step for step, _ in summary["losses"]] == list(LOG_STEPS)
    frame = next(iter(followed.rows(followed.summaries)[0].values()))
    last = frame.loc[(frame["step"] == 512) & frame["layer"].notna()]
    is_block = last["layer"] > 0
    blocks = last.loc[is_block].groupby(["metric", "subset"])["value"].mean()
    # what stands under the name of a metric is of all vectors, as in every other view
    assert summary["two_nn"] == pytest.approx(blocks["two_nn", "all"])
    assert summary["anisotropy"] == pytest.approx(blocks["anisotropy", "all"])
    ((without_sinks, vectors),) = summary["beside"]["anisotropy"]
    assert without_sinks == pytest.approx(blocks["anisotropy", "no_sink"])
    assert vectors == "no sinks"


def test_new_runs_and_stores_appear_and_deleted_ones_vanish(followed, tmp_path):
    assert settle(followed) == {}
    store = one_run(tmp_path / "deep" / "a")
    assert set(settle(followed)) == {"first"}
    fill(store.path, make_rows(run="second", steps=(0, 1)))
    one_run(tmp_path / "b", run="third")
    assert set(settle(followed)) == {"first", "second", "third"}
    shutil.rmtree(store.folder_of("first"))
    assert set(settle(followed)) == {"second", "third"}
    shutil.rmtree(store.path)
    assert set(settle(followed)) == {"third"}


def test_files_that_come_change_or_go_count_anew(followed, tmp_path):
    store = one_run(tmp_path, loss=False)
    settle(followed)
    first = settle(followed)["first"]
    assert first["loss"] is None
    one_run(tmp_path, steps=(512, 1024))  # with the loss, which is known later
    summary = settle(followed)["first"]
    assert summary["step"] == 1024
    assert summary["measurements"] == len(LOG_STEPS) + 1
    assert summary["loss"] == pytest.approx(1.2, abs=0.01)
    assert summary["version"] > first["version"]
    settle(followed)
    assert settle(followed)["first"] is summary, "nothing changed"
    for step in (512, 1024):
        (last,) = store.folder_of("first").glob(f"step{step:09d}-*")
        content = last.read_bytes()
        last.unlink()
    summary = settle(followed)["first"]
    assert summary["step"] == 256
    assert summary["loss"] is None
    last.write_bytes(content[:1000])
    assert settle(followed)["first"]["status"] == "healthy", (
        "a file that is still copied is left out"
    )
    with last.open("r+b") as file:  # in place, which leaves the time of the folder alone
        file.write(content)
    assert settle(followed)["first"]["loss"] == pytest.approx(1.2, abs=0.01)


TOKEN = "a-token-of-tests"


def client_of(index, token=TOKEN, **options):
    app = build_app(Feed(index, interval=0.05), host="127.0.0.1", token=token)
    return TestClient(app, base_url="http://localhost:8765", follow_redirects=False, **options)


@pytest.fixture
def client(index):
    """A browser that has opened the printed address."""
    client = client_of(index)
    client.get(f"/?token={TOKEN}")
    return client


def key_of(index, label):
    return next(key for key, summary in index.summaries.items() if summary["label"] == label)


@pytest.mark.parametrize(
    "path", ["/", "/run/a", "/compare?run=a", "/data?run=a", "/events", "/nothing"]
)
def test_nothing_is_shown_without_the_token(index, path):
    client = client_of(index)
    for address in (path, f"{path}{'&' if '?' in path else '?'}token=another-token"):
        answer = client.get(address)
        assert answer.status_code == 401
        assert (
            answer.text
            == "expected the token of this server, got none that fits; open the address it printed"
        )
    client.cookies.set("repdyn_00000000", TOKEN)
    assert client.get(path).status_code == 401


def test_the_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_have(index):
    client = client_of(index)
    answer = client.get(f"/compare?run=a&token={TOKEN}&run=b")
    name, value, *flags = re.split("; |=", answer.headers["set-cookie"])
    assert re.fullmatch("repdyn_[0-9a-f]{8}", name)
    assert value == TOKEN
    assert flags == ["HttpOnly", "SameSite", "lax"]
    assert answer.headers["location"] == "compare?run=a&run=b"
    assert client.get("/").status_code == 200


def test_a_name_that_leads_here_from_elsewhere_is_refused(client):
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400


def policy_of(text):
    return re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]


def test_the_table_runs_its_own_script_alone():
    text = table_page(["<b>"])
    script = re.search("<script>(.*)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy_of(text) == (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src "
        f"data: blob:; "
        "base-uri 'none'; connect-src 'self'; form-action 'self'"
    )
    assert "<code>&lt;b&gt;</code>" in text


def test_a_fault_in_a_page_is_no_missing_run(client, index, monkeypatch):
    """Any KeyError while a page is made is answered by 404, "its files may be deleted"."""
    monkeypatch.setattr("repdyn.views.watch.app.page", lambda *_, **__: {}["a fault"])
    (key, *_) = index.summaries
    with pytest.raises(KeyError, match="a fault"):
        client.get(f"/run/{key}")


def test_the_page_of_a_run_is_its_report_and_says_where_its_events_are(client, index):
    key = key_of(index, "first")
    text = client.get(f"/run/{key}").text
    assert "<title>first</title>" in text
    assert '<a href="../">All runs</a>' in text
    assert policy_of(text).endswith("form-action 'none'; connect-src 'self'")
    tree = re.search('id="tree">([^<]*)<', text)[1]
    live = json.loads(gzip.decompress(base64.b64decode(tree)))["live"]
    version = index.summaries[key]["version"]
    assert live == {
        "events": f"../events?run={key}",
        "data": f"../data?run={key}&below=1",
        "versions": {key: version},
    }
    data = client.get(live["data"].removeprefix("..")).json()
    assert data["packed"]["tree"] == tree
    assert set(re.findall('id="part-([a-z_]*)"', text)) == set(data["parts"])


@pytest.mark.parametrize("keeps_path", [False, True], ids=["proxy removes it", "proxy keeps it"])
def test_everything_stays_below_the_path_of_a_proxy(index, keeps_path):
    """Links from the root of the host led out of it: the table stayed empty on a JupyterHub."""
    prefix = "/user/me/proxy/8765"
    app = build_app(
        Feed(index, interval=0.05),
        host="0.0.0.0",
        token=TOKEN,
        root_path=prefix if keeps_path else "",
    )
    inner = TestClient(app, base_url="http://hub.example.org", follow_redirects=False)

    def browse(address):
        """Follow redirects as a browser does, through the proxy, which passes on what is its."""
        for _ in range(3):
            assert address.startswith(f"{prefix}/"), address
            answer = inner.get(address if keeps_path else address.removeprefix(prefix))
            if answer.status_code != 307:
                return answer, address
            # urljoin keeps the query of its base where that of the location is empty
            address = urljoin(address.partition("?")[0], answer.headers["location"])
        raise AssertionError("too many redirects")

    answer, address = browse(f"{prefix}/?token={TOKEN}")
    assert answer.status_code == 200
    assert address == f"{prefix}/"
    assert not re.findall(r"""["'`]/(?:events|data|run|compare)""", answer.text)
    key = key_of(index, "first")
    for page, below in ((f"run/{key}", "run"), (f"compare?run={key}", "compare")):
        answer, address = browse(urljoin(address, f"{prefix}/{page}"))
        assert answer.status_code == 200, below
        tree = re.search('id="tree">([^<]*)<', answer.text)[1]
        live = json.loads(gzip.decompress(base64.b64decode(tree)))["live"]
        table = re.search('<a href="([^"]*)">All runs</a>', answer.text)[1]
        assert urljoin(address, table) == f"{prefix}/"
        assert urljoin(address, live["events"]) == f"{prefix}/events?run={key}"
        again, _ = browse(urljoin(address, live["data"]))
        assert again.json()["packed"]["tree"] == tree


@pytest.mark.parametrize(
    ("root_path", "page", "path"),
    [("/user/me", "/user/me/", "/user/me"), ("", "/", None), ("", "/run/a", "/")],
    ids=["proxy keeps it", "top", "page below"],
)
def test_the_token_is_sent_to_no_other_server_of_a_host(index, root_path, page, path):
    """A cookie for all of a JupyterHub gave it to the servers of other users."""
    app = build_app(Feed(index, interval=1), host="0.0.0.0", token=TOKEN, root_path=root_path)
    client = TestClient(app, base_url="http://hub.example.org", follow_redirects=False)
    cookie = client.get(f"{page}?token={TOKEN}").headers["set-cookie"]
    found = re.search("Path=([^;]*)", cookie)
    assert (found and found[1]) == path


def events(feed, number, keys=None, between=lambda: None):
    """The content of the first events."""

    async def collect():
        told = []
        async for event in feed.events(keys):
            name, data = event.strip().split("\n")
            assert name == "event: runs"
            told.append(json.loads(data.removeprefix("data: ")))
            if len(told) == number:
                return told
            between()
            feed._notify()

    return asyncio.run(asyncio.wait_for(collect(), 10.0))


def labels(event):
    return [run["label"] for run in event["runs"]]


def test_the_first_event_has_all_runs_and_the_next_one_what_changed(index, tmp_path):
    def measure():
        fill(tmp_path, make_rows(run="second", steps=(30,), n_blocks=2))
        index.poll(10.0)

    whole, changed = events(Feed(index, 1.0), 2, between=measure)
    assert labels(whole) == ["first", "second"]
    assert labels(changed) == ["second"]
    assert whole["whole"] is True
    assert changed["whole"] is False
    assert changed["runs"][0]["step"] == 30
    assert abs(whole["now"] - time.time()) < 60


@pytest.fixture
def served(monkeypatch):
    """What would be served."""
    calls = []

    def note(paths, **options):
        calls.append((paths, options))

    monkeypatch.setattr(server, "serve", note)
    return calls


def test_it_serves_this_computer_alone_and_with_a_token_unless_told_otherwise(
    served, capsys, tmp_path
):
    main(["watch", str(tmp_path), "other"])
    ((paths, options),) = served
    assert [str(path) for path in paths] == [str(tmp_path), "other"]
    assert options == {
        **{"host": "127.0.0.1", "port": 8765, "interval": 2.0},
        **{"token": None, "needs_token": True, "open_browser": False, "root_path": ""},
    }
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "RUN"),
        (["a", "--interval", "0"], "0.1"),
        (["a", "--token", "short"], "at least 8"),
        (["a", "--token", "a-token-of-mine", "--no-token"], "--no-token"),
        (["a", "--prot", "1"], "Did you mean --port?"),
        (["a", "--root-path", "hub/me"], "--root-path"),
    ],
)
def test_a_mistaken_option_is_refused(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(["watch", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_table_that_is_printed_once_looks_at_each_run_once(tmp_path, monkeypatch, capsys):
    """With 400 runs, all of them were looked at anew for each second of describing."""
    for name in ("first", "second", "third"):
        one_run(tmp_path, run=name, steps=(0, 1, 2))
    looks = Mock(wraps=watch_index.WatchedRun.look)
    seconds = itertools.count(step=5)
    monkeypatch.setattr(watch_index.WatchedRun, "look", lambda run: looks(run))
    monkeypatch.setattr(watch_index, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    main(["watch", str(tmp_path), "--once"])
    assert looks.call_count == 3
    assert "third" in capsys.readouterr().out
