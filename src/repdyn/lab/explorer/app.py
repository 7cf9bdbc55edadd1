"""The explorer's page: a sentence, its tokens to choose from, and views of the chosen one in each
checkpoint.
"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple, TypeVar

import gradio as gr
import plotly.graph_objects as go
from gradio.themes import Default
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from repdyn.activations import (
    CheckpointError,
    LoadedModel,
    SweepStoppedError,
    checkpoints_of_run,
    load_models,
)
from repdyn.lab.explorer import figures, tables
from repdyn.lab.explorer.session import Session
from repdyn.lab.explorer.tables import Cell, Colour
from repdyn.lab.studies.token_measurements import STATES, Measure, State
from repdyn.utils.addresses import (
    RootPath,
    allowed_hosts,
    announcement,
    free_port,
    require_root_path,
)
from repdyn.utils.arguments import ModelOptions

_HEADING = (
    "# Token explorer\nWhat each layer predicts at each token, which tokens each head attends to, "
    "and where each layer has taken a token among those of the vocabulary."
)
_HOURLY = (3600, 3600)
"""Interval at which temporary files are deleted, and their minimum age, in seconds."""
# fonts of the reader's system: the page loads nothing from other hosts
FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONOSPACED = ("ui-monospace", "Menlo", "Consolas", "monospace")
_STEP = re.compile(r"step([0-9]+)", re.ASCII)
T = TypeVar("T")


def asset(name: str) -> str:
    """Return a file of the folder ``page``."""
    return (files("repdyn.lab.explorer") / "page" / name).read_text(encoding="utf-8")


@dataclass(frozen=True, eq=False)
class Page:
    """The handlers of the page's events, without state of a reader."""

    session: Session

    def read(self, typed: str, before: str) -> tuple[str, object, str]:
        """Return the sentence to show, its tokens, and why a new sentence is rejected."""
        try:
            tokens = self.session.tokens(typed)
        except ValueError as error:
            return before, gr.skip(), tables.refusal(str(error))
        choices = [(token, place) for place, token in enumerate(tokens)]
        return typed, gr.Radio(choices=choices, value=min(1, len(tokens) - 1)), ""

    def lens(
        self, sentence: str, number: float, colour: Colour, chosen: Cell | None
    ) -> tuple[str, str, str]:
        """Return why there is no logit lens, its grid, and the most probable tokens of the chosen
        cell.
        """
        try:
            layers = self.session.lens(sentence, int(number))
            loaded = self.session.models[int(number)]
            # the model's own prediction at the last token, unless one is chosen
            cell = chosen or (len(layers.layers) - 1, len(layers.ids) - 1)
            top = tables.top(loaded, layers, cell)
        except (ValueError, CheckpointError) as error:
            return tables.refusal(str(error)), "", ""
        return "", tables.grid(loaded, layers, colour, cell), top

    def cell(self, sentence: str, number: float, event: gr.EventData) -> tuple[Cell | None, str]:
        """Return the cell that was clicked, and its most probable tokens."""
        try:
            cell = (int(event.layer), int(event.place))
            layers = self.session.lens(sentence, int(number))
            return cell, tables.top(self.session.models[int(number)], layers, cell)
        except (ValueError, TypeError, AttributeError, CheckpointError) as error:
            return None, tables.refusal(str(error))

    def attention(
        self, sentence: str, number: float, layer: int, head: int | None
    ) -> tuple[str, object, object]:
        """Return why there are no attention weights, the heads to choose from, and the map of the
        chosen one.
        """
        try:
            names, weights = self.session.attention(sentence, int(number), layer)
        except (ValueError, CheckpointError) as error:
            return tables.remarks([str(error)]), gr.skip(), gr.Plot(visible=False)
        heads = list(range(len(weights)))
        # without a value where the head stays: the reader may have chosen another one meanwhile
        if head in heads:
            chosen = head
            choices = gr.Dropdown(heads)
        else:
            chosen = 0
            choices = gr.Dropdown(heads, value=0)
        title = f"{self.session.models[int(number)].name}: head {chosen} in layer {layer}"
        return "", choices, gr.Plot(figures.attention(weights[chosen], names, title), visible=True)

    def show(
        self,
        sentence: str,
        position: int | None,
        with_positions: bool,
        measure: Measure,
        state: State,
    ) -> tuple[str, str, go.Figure, go.Figure]:
        """Return views of the chosen token: remarks, nearest tokens, similarity and rank across
        layers.
        """
        how = {"with_positions": with_positions, "by_distance": measure == "distance"}
        comparisons, missing = _or_reason(self.session.token, sentence, position, **how)
        near = tables.nearest_tables(comparisons, state)
        similarity, rank = (
            figures.across_layers(comparisons, quantity) for quantity in (measure, "rank")
        )
        return tables.remarks(missing), near, similarity, rank

    def paths(self, sentence: str, other: str) -> tuple[str, str]:
        """Return the figures of two sentences' paths, and why paths are missing."""
        if not other.strip():
            return "", tables.refusal("type a second sentence to see the paths of both")
        drawings, missing = _or_reason(self.session.paths, sentence, other)
        return "".join(drawings), tables.remarks(missing)


def build(session: Session, sentence: str, other: str) -> gr.Blocks:
    """Build the page: the controls above, a tab for each view, and what happens at each event."""
    page = Page(session)
    with gr.Blocks(
        title="Token explorer", analytics_enabled=False, fill_width=True, delete_cache=_HOURLY
    ) as blocks:
        gr.Markdown(_HEADING)
        gr.HTML(tables.about(session))
        controls = _controls(sentence)
        lens = _lens_tab(session)
        attention = _attention_tab(session)
        token = _token_tabs()
        paths = _paths_tab(other)
        _connect(page, blocks, controls, lens, attention, token, paths)
    return blocks


class _Controls(NamedTuple):
    """The sentence, the token that is chosen in it, and how tokens are compared."""

    shown: gr.State
    """The sentence that the tabs show: the last one that was not refused."""
    typed: gr.Textbox
    button: gr.Button
    refused: gr.HTML
    chosen: gr.Radio
    positions: gr.Checkbox
    measure: gr.Radio
    remarks: gr.HTML


class _LensTab(NamedTuple):
    colour: gr.Radio
    number: gr.Slider
    cell: gr.State
    refused: gr.HTML
    grid: gr.HTML
    top: gr.HTML


class _AttentionTab(NamedTuple):
    block: gr.Dropdown
    head: gr.Dropdown
    checkpoint: gr.Slider
    refused: gr.HTML
    plot: gr.Plot


class _TokenTabs(NamedTuple):
    """The three tabs on the chosen token."""

    state: gr.Radio
    near: gr.HTML
    similarity: gr.Plot
    rank: gr.Plot


class _PathsTab(NamedTuple):
    second: gr.Textbox
    compare: gr.Button
    missing: gr.HTML
    plane: gr.HTML


def _controls(sentence: str) -> _Controls:
    shown = gr.State(sentence)
    with gr.Row():
        typed = gr.Textbox(sentence, label="Sentence", max_lines=4, scale=5)
        button = gr.Button("Show its tokens", variant="primary", scale=1, elem_classes="compact")
    refused = gr.HTML(elem_classes="empties")
    chosen = gr.Radio([], label="Tokens: choose one", elem_classes="chips", elem_id="tokens")
    with gr.Row():
        positions = gr.Checkbox(
            False, label="Add the token's position embedding to every row of the vocabulary"
        )
        measures = [("cosine", "cosine"), ("Euclidean distance", "distance")]
        measure = gr.Radio(measures, value="cosine", label="Compare by", elem_id="measure")
    remarks = gr.HTML(elem_classes="empties")
    return _Controls(
        shown=shown,
        typed=typed,
        button=button,
        refused=refused,
        chosen=chosen,
        positions=positions,
        measure=measure,
        remarks=remarks,
    )


def _checkpoint_slider(session: Session, elem_id: str) -> gr.Slider:
    """Return a slider over the checkpoints, the last one chosen; hidden where there is only one."""
    last = len(session.models) - 1
    return gr.Slider(
        maximum=max(1, last),
        value=last,
        step=1,
        label="Checkpoint",
        visible=last > 0,
        elem_id=elem_id,
    )


def _lens_tab(session: Session) -> _LensTab:
    with gr.Tab("Logit lens"):
        with gr.Row():
            colours = [(title, key) for key, title in tables.COLOURS.items()]
            colour = gr.Radio(colours, value="probability", label="Colour")
            number = _checkpoint_slider(session, "at")
        cell = gr.State(None)
        refused = gr.HTML(elem_classes="empties")
        grid = gr.HTML(elem_id="lens", js_on_load=asset("cells.js"))
        top = gr.HTML(elem_id="top")
        gr.HTML(
            f"<details><summary>What is shown</summary><p>{tables.LENS_CONVENTIONS}</p></details>"
        )
    return _LensTab(colour=colour, number=number, cell=cell, refused=refused, grid=grid, top=top)


def _attention_tab(session: Session) -> _AttentionTab:
    with gr.Tab("Attention"):
        with gr.Row():
            blocks = list(range(1, session.n_layers + 1))
            block = gr.Dropdown(blocks, value=1, label="Layer", elem_id="block")
            head = gr.Dropdown([0], value=0, label="Head", elem_id="head")
            checkpoint = _checkpoint_slider(session, "attention-at")
        refused = gr.HTML(elem_classes="empties")
        plot = gr.Plot(show_label=False, elem_id="attention")
    return _AttentionTab(block=block, head=head, checkpoint=checkpoint, refused=refused, plot=plot)


def _token_tabs() -> _TokenTabs:
    with gr.Tab("Nearest tokens"):
        states = [(title, key) for key, title in STATES.items()]
        state = gr.Radio(states, value="block", label="State")
        near = gr.HTML(elem_id="nearest")
    with gr.Tab("Similarity across layers"):
        similarity = gr.Plot(show_label=False, elem_id="similarity")
    with gr.Tab("Rank across layers"):
        rank = gr.Plot(show_label=False, elem_id="rank")
    return _TokenTabs(state=state, near=near, similarity=similarity, rank=rank)


def _paths_tab(other: str) -> _PathsTab:
    with gr.Tab("Paths of two sentences"):
        with gr.Row():
            second = gr.Textbox(other, label="Second sentence", max_lines=4, scale=5)
            compare = gr.Button("Show both paths", scale=1, elem_classes="compact")
        missing = gr.HTML(elem_classes="empties")
        plane = gr.HTML(elem_id="paths")
    return _PathsTab(second=second, compare=compare, missing=missing, plane=plane)


def _connect(
    page: Page,
    blocks: gr.Blocks,
    controls: _Controls,
    lens: _LensTab,
    attention: _AttentionTab,
    token: _TokenTabs,
    paths: _PathsTab,
) -> None:
    """Have each event update what depends on it."""
    # "always_last": an event during the computation of another must not be lost
    settings: dict[str, Any] = {"api_visibility": "private", "trigger_mode": "always_last"}
    shown = controls.shown
    of_token = {
        "inputs": [shown, controls.chosen, controls.positions, controls.measure, token.state],
        "outputs": [controls.remarks, token.near, token.similarity, token.rank],
    }
    of_lens = {
        "inputs": [shown, lens.number, lens.colour, lens.cell],
        "outputs": [lens.refused, lens.grid, lens.top],
    }
    of_heads = {
        "inputs": [shown, attention.checkpoint, attention.block, attention.head],
        "outputs": [attention.refused, attention.head, attention.plot],
    }
    of_paths = {"inputs": [shown, paths.second], "outputs": [paths.plane, paths.missing]}
    sentence_events = [blocks.load, controls.button.click, controls.typed.submit]
    answer = [shown, controls.chosen, controls.refused]
    opened = gr.on(sentence_events, page.read, [controls.typed, shown], answer, **settings)
    # a new sentence has other cells
    cleared = opened.then(lambda: None, None, lens.cell, **settings)
    # the tabs one after another, the lens first: it is in the tab that is open
    cleared.then(page.lens, **of_lens, **settings).then(page.attention, **of_heads, **settings)
    gr.on([lens.number.input, lens.colour.input], page.lens, **of_lens, **settings)
    heads = [attention.checkpoint.input, attention.block.input, attention.head.input]
    gr.on(heads, page.attention, **of_heads, **settings)
    lens.grid.click(page.cell, [shown, lens.number], [lens.cell, lens.top], **settings)
    opened.then(page.show, **of_token, **settings).then(page.paths, **of_paths, **settings)
    choices = [
        controls.chosen.input,
        controls.positions.input,
        controls.measure.input,
        token.state.input,
    ]
    gr.on(choices, page.show, **of_token, **settings)
    gr.on([paths.second.submit, paths.compare.click], page.paths, **of_paths, **settings)


def _or_reason(
    find: Callable[..., tuple[list[T], list[str]]], *arguments: Any, **how: Any
) -> tuple[list[T], list[str]]:
    """Return what the session finds and what is missing, or why it finds nothing."""
    try:
        return find(*arguments, **how)
    except (ValueError, CheckpointError) as error:
        return [], [str(error)]


def load_checkpoints(models: Sequence[str], loading: ModelOptions) -> list[LoadedModel]:
    """Load the checkpoints that are shown side by side, with their heads."""
    revisions, notes = choose_checkpoints(models, loading.revisions)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    settings = {**vars(loading), "revisions": revisions}
    try:
        return list(load_models(models, release=False, with_heads=True, **settings))
    except (CheckpointError, SweepStoppedError) as error:
        raise ValueError(str(error)) from error


def serve(blocks: gr.Blocks, *, host: str, port: int, root_path: str, open_browser: bool) -> None:
    """Serve the page, and wait."""
    try:
        address = launch(
            blocks,
            host=host,
            port=port,
            open_browser=open_browser,
            root_path=require_root_path(root_path),
        )
        print(announcement("the explorer", host, address, port), flush=True)
        Event().wait()
    finally:
        blocks.close(verbose=False)


def launch(
    blocks: gr.Blocks, *, host: str, port: int, open_browser: bool = False, root_path: str = ""
) -> str:
    """Serve a page from a thread of its own, and return its address; behind a proxy, below the path
    ``root_path``.
    """
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts(host))]
    if root_path:
        middleware.append(Middleware(RootPath, root_path=root_path))
    _, address, _ = blocks.launch(
        server_name=f"[{host}]" if ":" in host else host,
        server_port=free_port(host, port),
        inbrowser=open_browser,
        prevent_thread_lock=True,
        share=False,
        quiet=True,
        footer_links=[],
        ssr_mode=False,
        theme=Default(font=[*FONTS], font_mono=[*MONOSPACED]),
        css=asset("page.css"),
        head=f"<script>\n{asset('page.js')}</script>",
        run_history=False,
        enable_monitoring=False,
        max_file_size=1,
        root_path=root_path or None,
        app_kwargs={"middleware": middleware},
    )
    return address


def choose_checkpoints(
    models: Sequence[str], revisions: Sequence[str]
) -> tuple[tuple[str, ...], list[str]]:
    """Return the names to load of one run with checkpoints ``stepN``, and a note for each choice.

    These are the first, middle and last step, or the nearest to those that are asked for, the
    earlier of two.
    """
    folder = Path(models[0])
    is_run = len(models) == 1 and folder.is_dir() and not (folder / "config.json").is_file()
    found = map(_STEP.fullmatch, checkpoints_of_run(folder) if is_run else ())
    steps = sorted((int(match[1]), match[0]) for match in found if match)
    if not steps:
        return tuple(revisions), []
    if not revisions:
        chosen = tuple(dict.fromkeys(steps[place][1] for place in (0, (len(steps) - 1) // 2, -1)))
        return chosen, [
            f"{', '.join(chosen)} of {len(steps)} checkpoints; choose others with --revisions"
        ]
    nearest = {name: name for name in revisions}
    for wanted in filter(None, map(_STEP.fullmatch, revisions)):
        nearest[wanted[0]] = min(steps, key=lambda each, step=int(wanted[1]): abs(each[0] - step))[
            1
        ]
    notes = [
        f"no checkpoint {name}: the nearest one is {near}"
        for name, near in nearest.items()
        if name != near
    ]
    return tuple(dict.fromkeys(nearest.values())), notes
