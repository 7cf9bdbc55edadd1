"""``repdyn study tokens``: the tokens of a sentence and the words of a text against the vocabulary, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import numpy as np
import pandas as pd

from repdyn.studies.driver import Folder, Study, run
from repdyn.studies.models import LoadedModel
from repdyn.studies.output import Output, print_line, print_table, print_title, select
from repdyn.studies.tokens import figures
from repdyn.studies.tokens.sentences import capture_sentence, compare_sentence, without_causal_mask
from repdyn.studies.tokens.text import NEIGHBOURS, higher_share, measure_text
from repdyn.tables.frames import by_stack
from repdyn.tables.style import of_stack
from repdyn.utils.arguments import Count, ModelOptions, Models, at_least


class TokenStudy(Study):
    """The tokens of a sentence, and the words of a text, against the vocabulary."""

    def measure(self, loaded: LoadedModel) -> None:
        self._measure(loaded, loaded.name, loaded.folder_name)
        if self.options.no_causal_mask:
            with without_causal_mask(loaded, self.options.sentence):
                self._measure(loaded, f"{loaded.name} (no causal mask)", f"{loaded.folder_name}-no-causal-mask")

    def _measure(self, loaded: LoadedModel, name: str, folder: str) -> None:
        output = Output()
        self._add_sentence(loaded, name, output)
        if self.options.text:
            self._add_text(loaded, name, output)
        self.write(output, folder)

    def _add_sentence(self, loaded: LoadedModel, name: str, output: Output) -> None:
        sentence, positions = self.options.sentence, self.options.positions
        states = capture_sentence(loaded, sentence, self.options.layers)
        found = compare_sentence(loaded, states, k=self.options.nearest, with_positions=positions)
        output.tables.update(tokens=found.table, nearest=found.nearest)
        caption = "Compared with the input embeddings"
        caption += ", the token's position embedding added to every row." if positions else "."
        nearest = by_stack(found.nearest)
        for stack, table in by_stack(found.table).items():
            title, prefix = of_stack(name, stack), "" if stack is None else f"{stack} "
            print_sentence(title, table, [why for why in states.reasons if why.startswith(f"{prefix}layer ")])
            for quantity in ("cosine", "rank"):
                figure = figures.trajectory_figure(title, sentence, table, quantity, caption)
                output.figures[f"{prefix}{quantity}"] = figure
            output.figures[f"{prefix}heatmap"] = figures.heatmap(title, sentence, table, nearest[stack], caption)

    def _add_text(self, loaded: LoadedModel, name: str, output: Output) -> None:
        text, tables = measure_text(loaded, self.options)
        output.tables.update(tables)
        steps = by_stack(tables["steps"])
        for stack, table in by_stack(tables["classes"]).items():
            title, prefix = of_stack(name, stack), "" if stack is None else f"{stack} "
            print_classes(f"{title}: words of {text}", table)
            print_steps(steps[stack])
            output.figures[f"{prefix}classes"] = figures.class_figure(title, text, table)
            output.figures[f"{prefix}steps"] = figures.step_figure(title, text, steps[stack])
        print_density(tables["density"])
        output.figures["density"] = figures.density_figure(name, text, tables["density"])


def tokens(
    models: Models,
    /,
    *,
    output: Folder,
    loading: ModelOptions = ModelOptions(),
    sentence: str = "The £1 coin lies on the table.",
    nearest: Count = 10,
    positions: bool = False,
    no_causal_mask: bool = False,
    layers: str | None = None,
    text: str | None = None,
    sequence_length: Annotated[int, at_least(3)] = 128,
    max_vectors: Annotated[int, at_least(3)] = 2048,
) -> None:
    """Study tokens: those of a sentence against the vocabulary, layer by layer, by cosine and rank.

    Every model has a folder of its own in FOLDER, with tables as CSV and figures as PNG and SVG.

    Args:
        models: Hub repository, also as REPOSITORY@REVISION, folder of save_pretrained, or folder of a run.
        output: Folder for tables and figures.
        sentence: Its tokens are followed.
        nearest: Number of nearest tokens.
        positions: Add the token's position embedding to every row of the vocabulary.
        no_causal_mask: Measure a decoder once more, with every token seeing all others.
        layers: Pattern of the blocks' names, such as "layers.*" (default: detected).
        text: Compare function words and content words of enwik8, builtin, or a path too.
        sequence_length: Tokens in a sequence of the text, at most the model's context.
        max_vectors: Tokens of the text.

    Examples:
      repdyn study tokens roberta-base -o FOLDER
      repdyn study tokens gpt2 --sentence "Time flies." --nearest 20 -o FOLDER
      repdyn study tokens roberta-base --positions -o FOLDER
      repdyn study tokens gpt2 --no-causal-mask -o FOLDER
      repdyn study tokens roberta-base --text builtin -o FOLDER
    """
    run(TokenStudy, loading, locals())


_MAX_LAYERS = 9


def print_sentence(name: str, table: pd.DataFrame, reasons: Iterable[str]) -> None:
    """Print the rank of each token's own embedding after some of the blocks, and missing states after attention.

    Args:
        name: of the model, and of a stack.
        table: of a ``VocabularyComparison``, one stack.
        reasons: one for each layer without a state after its attention.
    """
    blocks = select(table, state="block")
    layers = np.unique(np.linspace(0, blocks["layer"].nunique() - 1, _MAX_LAYERS).round().astype(int))
    ranks = blocks.pivot(index=["position", "token"], columns="layer", values="rank").iloc[:, layers]
    columns = [(f"layer {layer}", f"{{layer {layer}:,}}") for layer in ranks.columns]
    print_title(f"{name}: rank of each token's own embedding among the input embeddings")
    print_table(ranks.add_prefix("layer ").reset_index(), [("token", "{token}"), *columns])
    layers_of: dict[str, list[str]] = {}
    for reason in reasons:
        layers_of.setdefault(reason.partition(": ")[2], []).append(reason)
    for first, *others in layers_of.values():
        print_line(f"no state after attention at {first}{f' and {len(others)} more' if others else ''}")


def print_classes(name: str, table: pd.DataFrame) -> None:
    """Print mean cosine, median rank and share of rank 0 of each class, layer by layer of one stack."""
    columns = [("layer", "{layer:d}"), ("state", "{state}"), ("class", "{class}"), ("tokens", "{tokens:,}")]  # noqa: RUF027 (filled later)
    columns += [("cosine", "{cosine:.4f}"), ("median rank", "{rank:,.1f}"), ("rank 0", "{kept:.1%}")]
    print_title(name)
    print_table(table, columns)


def print_density(table: pd.DataFrame) -> None:
    """Print how crowded it is around function words and content words."""
    classes = {label: rows["density"].to_numpy() for label, rows in table.groupby("class")}
    means = [f"{label} words {values.mean():.4f} ({len(values):,} tokens)" for label, values in classes.items()]
    print_line(f"mean cosine to the {NEIGHBOURS} nearest other input embeddings: {', '.join(means)}")
    if len(classes) == 2:
        share = higher_share(classes["function"], classes["content"])
        frequency = pd.Series(table["count"]).corr(pd.Series(table["density"]), method="spearman")
        print_line(
            f"the embedding of a function word is in the denser place in {share:.1%} of all pairs with a content word; "
            f"rank correlation of density and occurrences {frequency:.2f}"
        )


def print_steps(table: pd.DataFrame) -> None:
    """Print whether tokens move together."""
    ranges = [
        f"{table[c].min():.3f} to {table[c].max():.3f} (mean {table[c].mean():.3f})" for c in ("within", "between")
    ]
    print_line(f"mean cosine of two tokens' steps: of one sequence {ranges[0]}, of different sequences {ranges[1]}")
