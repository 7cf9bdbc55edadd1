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
from typing import Any, TypeVar

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
            found = self.session.lens(sentence, int(number))
            return cell, tables.top(self.session.models[int(number)], found, cell)
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
        chosen, choices = (
            (head, gr.Dropdown(heads)) if head in heads else (0, gr.Dropdown(heads, value=0))
        )
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
        found, missing = _or_reason(self.session.paths, sentence, other)
        return "".join(found), tables.remarks(missing)


def build(session: Session, sentence: str, other: str) -> gr.Blocks:
    """Build the page."""
    page = Page(session)
    with gr.Blocks(
        title="Token explorer", analytics_enabled=False, fill_width=True, delete_cache=_HOURLY
    ) as blocks:
        gr.Markdown(_HEADING)
        gr.HTML(tables.about(session))
        shown = gr.State(sentence)
        with gr.Row():
            typed = gr.Textbox(sentence, label="Sentence", max_lines=4, scale=5)
            button = gr.Button(
                "Show its tokens", variant="primary", scale=1, elem_classes="compact"
            )
        refused = gr.HTML(elem_classes="empties")
        chosen = gr.Radio([], label="Tokens: choose one", elem_classes="chips", elem_id="tokens")
        with gr.Row():
            positions = gr.Checkbox(
                False, label="Add the token's position embedding to every row of the vocabulary"
            )
            measures = [("cosine", "cosine"), ("Euclidean distance", "distance")]
            measure = gr.Radio(measures, value="cosine", label="Compare by", elem_id="measure")
        remarks = gr.HTML(elem_classes="empties")
        last = len(session.models) - 1
        at: Any = {
            "maximum": max(1, last),
            "value": last,
            "step": 1,
            "label": "Checkpoint",
            "visible": last > 0,
        }
        with gr.Tab("Logit lens"):
            with gr.Row():
                colours = [(title, key) for key, title in tables.COLOURS.items()]
                colour = gr.Radio(colours, value="probability", label="Colour")
                number = gr.Slider(**at, elem_id="at")
            cell = gr.State(None)
            no_lens = gr.HTML(elem_classes="empties")
            grid = gr.HTML(elem_id="lens", js_on_load=asset("cells.js"))
            top = gr.HTML(elem_id="top")
            gr.HTML(
                "<details><summary>What is "
                f"shown</summary><p>{tables.LENS_CONVENTIONS}</p></details>"
            )
        with gr.Tab("Attention"):
            with gr.Row():
                block = gr.Dropdown(
                    list(range(1, session.n_layers + 1)), value=1, label="Layer", elem_id="block"
                )
                head = gr.Dropdown([0], value=0, label="Head", elem_id="head")
                checkpoint = gr.Slider(**at, elem_id="attention-at")
            no_attention = gr.HTML(elem_classes="empties")
            attention = gr.Plot(show_label=False, elem_id="attention")
        with gr.Tab("Nearest tokens"):
            state = gr.Radio(
                [(title, key) for key, title in STATES.items()], value="block", label="State"
            )
            near = gr.HTML(elem_id="nearest")
        with gr.Tab("Similarity across layers"):
            similarity = gr.Plot(show_label=False, elem_id="similarity")
        with gr.Tab("Rank across layers"):
            rank = gr.Plot(show_label=False, elem_id="rank")
        with gr.Tab("Paths of two sentences"):
            with gr.Row():
                second = gr.Textbox(other, label="Second sentence", max_lines=4, scale=5)
                compare = gr.Button("Show both paths", scale=1, elem_classes="compact")
            missing = gr.HTML(elem_classes="empties")
            plane = gr.HTML(elem_id="paths")
        # an event during the computation of another must not be lost
        settings: dict[str, Any] = {"api_visibility": "private", "trigger_mode": "always_last"}
        asked = [shown, chosen, positions, measure, state]
        token = {"inputs": asked, "outputs": [remarks, near, similarity, rank]}
        lens = {"inputs": [shown, number, colour, cell], "outputs": [no_lens, grid, top]}
        heads = {
            "inputs": [shown, checkpoint, block, head],
            "outputs": [no_attention, head, attention],
        }
        both = {"inputs": [shown, second], "outputs": [plane, missing]}
        begun = [blocks.load, button.click, typed.submit]
        answer = [shown, chosen, refused]
        opened = gr.on(begun, page.read, [typed, shown], answer, **settings)
        # a new sentence has other cells
        cleared = opened.then(lambda: None, None, cell, **settings)
        # the lens is in the first tab
        cleared.then(page.lens, **lens, **settings).then(page.attention, **heads, **settings)
        gr.on([number.input, colour.input], page.lens, **lens, **settings)
        gr.on([checkpoint.input, block.input, head.input], page.attention, **heads, **settings)
        grid.click(page.cell, [shown, number], [cell, top], **settings)
        opened.then(page.show, **token, **settings).then(page.paths, **both, **settings)
        choices = [chosen.input, positions.input, measure.input, state.input]
        gr.on(choices, page.show, **token, **settings)
        gr.on([second.submit, compare.click], page.paths, **both, **settings)
    return blocks


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
