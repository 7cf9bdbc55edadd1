"""What the explorer's page shows: tables, figures, remarks, and the answers to its events."""

from __future__ import annotations

import gradio as gr
import pytest
from explorer.conftest import MARKUP

from repdyn.explorer import figures, tables
from repdyn.explorer.app import Page, build
from repdyn.explorer.session import Session

SENTENCE = "The £1 coin"
OTHER = "The £2 coin"


@pytest.fixture
def page(session):
    return Page(session)


def shown(page, place=3, with_positions=False, other=OTHER):
    """What all outputs hold: remarks, nearest, similarity, rank, paths, what is said of them."""
    return *page.show(SENTENCE, place, with_positions, "block", -1), *page.paths(SENTENCE, place, other)


# tables


@pytest.mark.slow
def test_all_layers_have_a_table_for_each_checkpoint(session):
    seen, _ = session.token(SENTENCE, 3)
    html = tables.nearest_tables(seen, "block", None)
    assert html.count("<table>") == 2
    assert html.count('<th scope="col">layer</th><th scope="col">0</th><th scope="col">1</th>') == 2
    line = seen[1].table.query("state == 'block' and layer == 2").iloc[0]
    assert f"<td>{line['rank']:,}</td></tr>" in html
    assert f"<td>{line['cosine']:.3f}</td></tr>" in html


@pytest.mark.slow
def test_one_layer_stands_side_by_side(session):
    seen, _ = session.token(SENTENCE, 3)
    html = tables.nearest_tables(seen, "attention", 2)
    assert html.count("<table>") == 1
    assert '<th scope="col">an encoder</th><th scope="col">a decoder</th>' in html
    assert html.count('<th scope="row">nearest ') == 3
    assert "no such state" in tables.nearest_tables(seen, "attention", 0)


@pytest.mark.slow
def test_the_token_itself_is_marked(session):
    seen, _ = session.token(SENTENCE, 0)
    decoder = seen[1:]  # its layer 0 is the row itself
    assert (
        tables.nearest_tables(decoder, "block", 0).count('<strong title="the token itself"><span>T</span></strong>')
        == 1
    )


@pytest.mark.slow
@pytest.mark.parametrize("token", MARKUP)
def test_tokens_that_look_like_markup_stay_text(session, token):
    seen, _ = session.token(token + "a", 0)
    assert seen[0].token == token
    html = tables.nearest_tables(seen, "block", None)
    assert "<script" not in html
    assert tables.escape(token) in html
    assert "<script" not in figures.across_layers(seen, "rank").data[0].hovertext[0]


def test_what_is_measured_names_every_checkpoint(session):
    html = tables.about(session)
    assert "<strong>an encoder</strong> BertModel, 2 blocks, width 16, vocabulary of 264, float32, on cpu" in html
    assert "<strong>a decoder</strong> GPTNeoXModel" in html
    assert "rank 0 means that its own row is the closest" in html


# figures


@pytest.mark.slow
def test_lines_hold_what_was_measured_and_attention_stands_between_layers(session):
    seen, _ = session.token(SENTENCE, 3)
    for quantity, added in (("cosine", 0), ("rank", 1)):
        traces = figures.across_layers(seen, quantity).data
        assert [(one.line.color, one.line.dash) for one in traces] == [
            (colour, dash) for colour in figures.COLOURS[:2] for dash in ("solid", "dot")
        ]
        blocks, attention = (seen[0].table.query(f"state == '{state}'") for state in ("block", "attention"))
        assert list(traces[0].x) == [0, 1, 2]
        assert list(traces[1].x) == [0.5, 1.5]
        assert list(traces[0].y) == (blocks[quantity] + added).tolist()
        assert list(traces[1].y) == (attention[quantity] + added).tolist()


@pytest.mark.slow
def test_ranks_have_a_logarithmic_axis_that_shows_rank_0(session):
    axis = figures.across_layers(session.token(SENTENCE, 3)[0], "rank").layout.yaxis
    assert axis.type == "log"
    assert (axis.tickvals[0], axis.ticktext[0]) == (1, "0")


@pytest.mark.slow
def test_the_chosen_token_and_those_that_differ_are_coloured(session):
    seen, _ = session.paths(SENTENCE, OTHER, 1)
    chosen, differs, same = figures.COLOURS[0], figures.COLOURS[1], "#767676"
    ways = [
        trace for _, trace in figures._traces(seen[0]) if "first sentence" in trace.hovertext[0] and trace.line.color
    ]
    assert [way.line.color for way in ways] == [chosen if n == 1 else differs if n == 6 else same for n in range(12)]
    assert len(figures.paths(seen).data) == 2 * 2 * (12 + 12)  # a start and a way, in two planes
    titles = figures.paths(seen).layout.xaxis.title.text, figures.paths(seen).layout.annotations[1].text
    assert titles == (f"first component ({seen[0].plane.shares[0]:.0%} of the variance)", "a decoder")


def test_no_figure_has_a_button_that_sends_it(session):
    """Whichever plotly.js shows it."""
    for figure in (figures.across_layers([], "rank"), figures.paths([])):
        assert list(figure.layout.modebar.remove) == ["sendChartToCloud", "sendDataToCloud"]


# events


def test_a_new_sentence_brings_its_tokens(page):
    sentence, tokens, refused = page.read("a <b>", SENTENCE)
    assert (sentence, refused) == ("a <b>", "")
    assert tokens.choices == [("a", 0), ("Ġ", 1), ("<", 2), ("b", 3), (">", 4)]


def test_a_refused_sentence_leaves_the_one_before(page):
    sentence, tokens, refused = page.read("a" * 41, SENTENCE)
    assert sentence == SENTENCE
    assert tokens == gr.skip()
    assert refused.startswith('<p class="refusal" role="alert">expected a sentence of at most 40 tokens')


@pytest.mark.slow
def test_a_choice_changes_what_every_tab_holds(page):
    one, other = shown(page, place=3), shown(page, place=4)
    assert [first != second for first, second in zip(one, other, strict=True)] == [False, True, True, True, True, False]


@pytest.mark.slow
def test_the_switch_of_positions_changes_what_is_compared_but_not_the_paths(page):
    one, other = shown(page), shown(page, with_positions=True)
    assert [first != second for first, second in zip(one, other, strict=True)] == [True, True, True, True, False, False]
    assert other[0] == tables.remarks(
        ["expected one table of positions with 16 dimensions, got none in a decoder; take the position embeddings off"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "reason"),
    [(" ", "type a second sentence to see the paths of both"), ("a" * 41, "expected a sentence of at most 40 tokens")],
    ids=["none", "too long"],
)
def test_a_second_sentence_that_is_refused_is_said(page, other, reason):
    found = shown(page, other=other)
    assert found[4].data == ()
    assert found[5].startswith(f'<p class="refusal" role="alert">{reason}')


def test_before_a_token_is_chosen_nothing_is_shown(page):
    found = shown(page, place=None)
    assert (found[0], found[1]) == (tables.remarks(["expected a token, got none; choose one"]), "")
    assert found[4].data == ()


def test_events_are_not_offered_as_an_interface(load):
    blocks = build(Session([load("model", "bert")], nearest=3, max_tokens=40), SENTENCE, OTHER)
    assert {function.api_visibility for function in blocks.fns.values()} == {"private"}
    assert not blocks.analytics_enabled
