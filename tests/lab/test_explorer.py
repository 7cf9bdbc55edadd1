"""The explorer shows the numbers of the studies, for one sentence in several checkpoints, to its
own page alone.
"""

from __future__ import annotations

import http.client
import re
import socket
from urllib.parse import urlsplit

import gradio as gr
import pytest
import torch
from explored import SENTENCE, logits
from saved_models import MARKUP

from repdyn.cli.main import main
from repdyn.lab.explorer import tables
from repdyn.lab.explorer.app import choose_checkpoints, launch
from repdyn.lab.explorer.session import LISTED
from repdyn.lab.studies.token_measurements import encode_sentence, token_names
from repdyn.utils.addresses import free_port


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("  ", "expected a sentence, got nothing; type one"),
        ("a", "expected a sentence of 2 or more tokens for an encoder, got 1"),
        (
            "a" * 41,
            (
                "expected a sentence of at most 40 tokens for an encoder, got 41; shorten it, or "
                "start with a larger --max-tokens"
            ),
        ),
        ("a" * 65, "expected a sentence of 2 to 64 tokens for an encoder, got 65"),
    ],
    ids=["blank", "one token", "too long", "longer than the model takes"],
)
def test_a_sentence_that_is_too_short_or_too_long_is_refused(session, sentence, message):
    for ask in (
        lambda: session.tokens(sentence),
        lambda: session.token(sentence, 0),
        lambda: session.paths(SENTENCE, sentence),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            ask()


SENTENCE_OF_EXPLORER_LENS = f"The £ {MARKUP[0]}"


ENCODER, DECODER = 0, 1


def test_the_last_layer_of_a_decoder_is_its_own_prediction(session):
    loaded = session.models[DECODER]
    lens = session.lens(SENTENCE_OF_EXPLORER_LENS, DECODER)
    expected = logits(loaded, list(lens.ids)).softmax(1)
    last = lens.layers[-1]
    assert not lens.masked
    assert torch.equal(last.ids, expected.topk(LISTED).indices)
    assert torch.allclose(last.probabilities, expected.topk(LISTED).values, atol=1e-7)
    assert torch.allclose(last.entropy, -(expected * expected.log()).sum(1), atol=1e-6)
    assert last.kl.tolist() == [0.0 for _ in lens.ids]


@pytest.mark.parametrize("colour", tables.COLOURS)
def test_the_grid_has_a_cell_for_each_layer_and_token_and_no_markup(session, colour):
    loaded = session.models[DECODER]
    lens = session.lens(SENTENCE_OF_EXPLORER_LENS, DECODER)
    shown = tables.grid(loaded, lens, colour, (len(lens.layers) - 1, len(lens.ids) - 1))
    assert shown.count("<button") == len(lens.layers) * len(lens.ids)
    assert shown.count('aria-pressed="true"') == 1
    assert all(0 <= int(share) <= 100 for share in re.findall(r"--shade: (\d+)%", shown))
    assert MARKUP[0] not in shown
    assert "&lt;script&gt;" in shown


SENTENCE_OF_EXPLORER_ATTENTION = f"The coin {MARKUP[0]}"


@pytest.mark.parametrize("number", [ENCODER, DECODER], ids=["encoder", "decoder"])
@pytest.mark.parametrize("layer", [1, 2])
def test_weights_are_those_that_the_model_returns(session, number, layer):
    loaded = session.models[number]
    ids = encode_sentence(loaded, SENTENCE_OF_EXPLORER_ATTENTION)
    names, weights = session.attention(SENTENCE_OF_EXPLORER_ATTENTION, number, layer)
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = loaded.model(torch.tensor([ids]), output_attentions=True).attentions[layer - 1][
            0
        ]
    assert names == token_names(loaded.tokenizer, ids)
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
    assert bool((weights.triu(1) > 0).any()) is (number == ENCODER)


def test_all_layers_have_a_table_for_each_checkpoint(session):
    seen, _ = session.token(SENTENCE, 3)
    html = tables.nearest_tables(seen, "block")
    assert html.count("<table>") == 2
    assert html.count('<th scope="col">layer</th><th scope="col">0</th><th scope="col">1</th>') == 2
    line = seen[1][1].table.query("state == 'block' and layer == 2").iloc[0]
    assert f"<td>{line['rank']:,}</td></tr>" in html
    assert f"<td>{line['cosine']:.3f}</td></tr>" in html


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
    connection.request(
        method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_a_name_that_leads_here_from_elsewhere_is_refused(port):
    assert asked(port, "GET", "/config", Host="evil.example")[0] == 400
    assert asked(port, "GET", "/config")[0] == 200


@pytest.fixture
def served(monkeypatch):
    """What the command serves, and how; nothing is loaded."""
    calls = []
    monkeypatch.setattr("repdyn.lab.explorer.app.load_checkpoints", lambda *_: [])
    monkeypatch.setattr("repdyn.lab.explorer.session.Session", lambda _, **how: how)
    monkeypatch.setattr("repdyn.lab.explorer.app.build", lambda session, *_: session)

    def serve(session, **how):
        calls.append((session, how))

    monkeypatch.setattr("repdyn.lab.explorer.app.serve", serve)
    return calls


def test_it_serves_this_computer_alone_unless_told_otherwise(served, capsys):
    main(["explore", "gpt2"])
    ((session, how),) = served
    assert how["host"] == "127.0.0.1"
    assert how["port"] == 7860
    assert session["max_tokens"] == 128
    assert not how["open_browser"]
    assert capsys.readouterr().err == ""


@pytest.fixture
def steps_folder(tmp_path):
    """The folder of a run with the names of six checkpoints, one of another kind, and no
    weights.
    """
    for name in ("step0", "step8", "step16", "step100", "step1000", "best", "step007"):
        (tmp_path / "run/hf_checkpoints" / name).mkdir(parents=True)
        (tmp_path / "run/hf_checkpoints" / name / "config.json").write_text("{}")
    return tmp_path / "run"


def test_the_first_middle_and_last_checkpoint_of_a_run_are_chosen(steps_folder):
    names, (note,) = choose_checkpoints([str(steps_folder)], ())
    assert names == ("step0", "step8", "step1000")
    assert note == "step0, step8, step1000 of 6 checkpoints; choose others with --revisions"


def test_a_port_that_is_taken_is_replaced():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert free_port("127.0.0.1", taken.getsockname()[1]) not in {0, taken.getsockname()[1]}
