"""What the explorer's page shows: tables, figures, remarks, and the answers to its events."""

from __future__ import annotations

import gradio as gr
import pytest
from saved_models import MARKUP

from repdyn.explorer import figures, tables
from repdyn.explorer.app import Page

SENTENCE = "The £1 coin"


OTHER = "The £2 coin"


@pytest.fixture
def page(session):
    return Page(session)


def shown(page, place=3, with_positions=False, other=OTHER):
    """What all outputs hold: remarks, nearest, similarity, rank, paths, what is said of them."""
    return *page.show(SENTENCE, place, with_positions, "block", -1), *page.paths(SENTENCE, place, other)


@pytest.mark.parametrize("token", MARKUP)
def test_tokens_that_look_like_markup_stay_text(session, token):
    seen, _ = session.token(token + "a", 0)
    assert seen[0].token == token
    html = tables.nearest_tables(seen, "block", None)
    assert "<script" not in html
    assert tables.escape(token) in html
    assert "<script" not in figures.across_layers(seen, "rank").data[0].hovertext[0]


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


def test_no_figure_has_a_button_that_sends_it(session):
    """Whichever plotly.js shows it."""
    for figure in (figures.across_layers([], "rank"), figures.paths([])):
        assert list(figure.layout.modebar.remove) == ["sendChartToCloud", "sendDataToCloud"]


def test_a_refused_sentence_leaves_the_one_before(page):
    sentence, tokens, refused = page.read("a" * 41, SENTENCE)
    assert sentence == SENTENCE
    assert tokens == gr.skip()
    assert refused.startswith('<p class="refusal" role="alert">expected a sentence of at most 40 tokens')


def test_a_choice_changes_what_every_tab_holds(page):
    one, other = shown(page, place=3), shown(page, place=4)
    assert [first != second for first, second in zip(one, other, strict=True)] == [False, True, True, True, True, False]


def test_the_switch_of_positions_changes_what_is_compared_but_not_the_paths(page):
    one, other = shown(page), shown(page, with_positions=True)
    assert [first != second for first, second in zip(one, other, strict=True)] == [True, True, True, True, False, False]
    assert other[0] == tables.remarks(
        ["expected one table of positions with 16 dimensions, got none in a decoder; take the position embeddings off"]
    )
