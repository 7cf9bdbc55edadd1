"""``repdyn study tokens``: the tokens of a sentence and the words of a text against the vocabulary, layer by layer."""

from __future__ import annotations

import argparse

from repdyn.studies.driver import Study, add_layers_option, add_number
from repdyn.studies.models import LoadedModel
from repdyn.studies.output import Output
from repdyn.studies.tokens import figures, summary
from repdyn.studies.tokens.sentences import capture_sentence, compare_sentence, without_causal_mask
from repdyn.studies.tokens.text import measure_text
from repdyn.tables.frames import by_stack
from repdyn.tables.style import of_stack


class TokenStudy(Study):
    """The tokens of a sentence, and the words of a text, against the vocabulary."""

    help = "The tokens of a sentence against the vocabulary, layer by layer: cosine and rank of their own embeddings."
    examples = """examples:
  repdyn study tokens roberta-base -o FOLDER
  repdyn study tokens gpt2 --sentence "Time flies like an arrow." --nearest 20 -o FOLDER
  repdyn study tokens roberta-base --positions -o FOLDER       position embeddings added to every row
  repdyn study tokens gpt2 --no-causal-mask -o FOLDER          once more, with every token seeing all others
  repdyn study tokens roberta-base --text builtin -o FOLDER    function words and content words of a text

Every model has a folder of its own in FOLDER, with tables as CSV and figures as PNG and SVG.
"""

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("sentence")
        group.add_argument(
            "--sentence", default="The £1 coin lies on the table.", metavar="TEXT", help='(default: "%(default)s")'
        )
        add_number(group, "--nearest", 10, 1, "nearest tokens", "K")
        group.add_argument(
            "--positions", action="store_true", help="add the token's position embedding to every row of the vocabulary"
        )
        group.add_argument(
            "--no-causal-mask", action="store_true", help="measure a decoder once more, without its causal mask"
        )
        add_layers_option(group)
        text = parser.add_argument_group("words of a text")
        text.add_argument("--text", metavar="SOURCE", help="enwik8, builtin, or a path (default: none)")
        add_number(text, "--sequence-length", 128, 3, "tokens in a sequence, at most the model's context")
        add_number(text, "--max-vectors", 2048, 3, "tokens of the text")

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
            summary.print_sentence(title, table, [why for why in states.reasons if why.startswith(f"{prefix}layer ")])
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
            summary.print_classes(f"{title}: words of {text}", table)
            summary.print_steps(steps[stack])
            output.figures[f"{prefix}classes"] = figures.class_figure(title, text, table)
            output.figures[f"{prefix}steps"] = figures.step_figure(title, text, steps[stack])
        summary.print_density(tables["density"])
        output.figures["density"] = figures.density_figure(name, text, tables["density"])


STUDY = TokenStudy
