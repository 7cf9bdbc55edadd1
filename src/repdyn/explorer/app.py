"""The explorer's page: a sentence, its tokens to choose from, and what each checkpoint makes of the chosen one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr
import plotly.graph_objects as go

from repdyn.explorer import figures, tables
from repdyn.explorer.session import Session
from repdyn.studies.tokens.vocabulary_comparison import State

_ALL = -1
"""Of the choice of a layer."""
_HEADING = "# Token explorer\nChoose a token, and see where each layer has taken it among the tokens of the vocabulary."
_HOURLY = (3600, 3600)
"""How often temporary files are deleted, and from which age on, in seconds."""
_TWO = "type a second sentence to see the paths of both"


@dataclass(frozen=True, eq=False)
class Page:
    """The handlers of one page's events; all it knows of a reader comes with the event."""

    session: Session

    def read(self, typed: str, before: str) -> tuple[str, object, str]:
        """A new sentence: what is shown from now on, its tokens, and why it is refused."""
        try:
            tokens = self.session.tokens(typed)
        except ValueError as error:
            return before, gr.skip(), tables.refusal(str(error))
        choices = [(token, place) for place, token in enumerate(tokens)]
        return typed, gr.Radio(choices=choices, value=min(1, len(tokens) - 1)), ""

    def show(
        self, sentence: str, place: int | None, with_positions: bool, state: State, layer: int
    ) -> tuple[str, str, go.Figure, go.Figure]:
        """The chosen token: remarks, nearest tokens, similarity and rank across layers."""
        try:
            seen, missing = self.session.token(sentence, _chosen(place), with_positions=with_positions)
        except ValueError as error:
            seen, missing = [], [str(error)]
        near = tables.nearest_tables(seen, state, None if layer == _ALL else layer)
        similarity, rank = (figures.across_layers(seen, quantity) for quantity in ("cosine", "rank"))
        return tables.remarks(missing), near, similarity, rank

    def paths(self, sentence: str, place: int | None, other: str) -> tuple[go.Figure, str]:
        """Return two sentences in their planes, and why one is missing."""
        try:
            if not other.strip():
                raise ValueError(_TWO)
            seen, missing = self.session.paths(sentence, other, _chosen(place))
        except ValueError as error:
            return figures.paths([]), tables.refusal(str(error))
        left_out = [f"{one.name}: left out for their norm: {', '.join(one.left_out)}" for one in seen if one.left_out]
        return figures.paths(seen), tables.remarks([*missing, *left_out])


def build(session: Session, sentence: str, other: str) -> gr.Blocks:
    """The page.

    Args:
        session: what it looks at.
        sentence: shown first.
        other: whose paths it is compared with first.
    """
    page = Page(session)
    with gr.Blocks(title="Token explorer", analytics_enabled=False, fill_width=True, delete_cache=_HOURLY) as blocks:
        gr.Markdown(_HEADING)
        gr.HTML(tables.about(session))
        shown = gr.State(sentence)
        with gr.Row():
            typed = gr.Textbox(sentence, label="Sentence", max_lines=4, scale=5)
            button = gr.Button("Show its tokens", variant="primary", scale=1, elem_classes="compact")
        refused = gr.HTML(elem_classes="empties")
        chosen = gr.Radio([], label="Tokens: choose one", elem_classes="chips", elem_id="tokens")
        positions = gr.Checkbox(False, label="Add the token's position embedding to every row of the vocabulary")
        remarks = gr.HTML(elem_classes="empties")
        with gr.Tab("Nearest tokens"):
            with gr.Row():
                state = gr.Radio([(title, key) for key, title in figures.STATES.items()], value="block", label="State")
                layer = gr.Dropdown(_layers(session), value=_ALL, label="Layer")
            near = gr.HTML(elem_id="nearest")
        with gr.Tab("Similarity across layers"):
            similarity = gr.Plot(show_label=False, elem_id="similarity")
        with gr.Tab("Rank across layers"):
            rank = gr.Plot(show_label=False, elem_id="rank")
        with gr.Tab("Paths of two sentences"):
            with gr.Row():
                second = gr.Textbox(other, label="Second sentence", max_lines=4, scale=5)
                compare = gr.Button("Show both paths", scale=1, elem_classes="compact")
            said = gr.HTML(elem_classes="empties")
            plane = gr.Plot(show_label=False, elem_id="paths")
        # what is asked while an answer is on its way must not be lost
        quietly: dict[str, Any] = {"api_visibility": "private", "trigger_mode": "always_last"}
        token = {"inputs": [shown, chosen, positions, state, layer], "outputs": [remarks, near, similarity, rank]}
        both = {"inputs": [shown, chosen, second], "outputs": [plane, said]}
        opened = gr.on(
            [blocks.load, button.click, typed.submit],
            page.read,
            [typed, shown],
            [shown, chosen, refused],
            **quietly,
        )
        for chose in (opened.then, chosen.input):
            chose(page.show, **token, **quietly).then(page.paths, **both, **quietly)
        gr.on([positions.input, state.input, layer.input], page.show, **token, **quietly)
        gr.on([second.submit, compare.click], page.paths, **both, **quietly)
    return blocks


def _chosen(place: int | None) -> int:
    if place is None:
        raise ValueError("expected a token, got none; choose one")
    return place


def _layers(session: Session) -> list[tuple[str, int]]:
    return [("all layers", _ALL), *((str(layer), layer) for layer in range(session.n_layers + 1))]
