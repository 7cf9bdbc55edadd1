"""``repdyn study anatomy``: a model's embedding tables, and the paths of two sentences through its
layers.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch

from repdyn.activations import LoadedModel, file_name
from repdyn.kernels import ph_dimension
from repdyn.lab.studies import anatomy_figures as draw
from repdyn.lab.studies import embedding_tables, paths
from repdyn.lab.studies import table_geometry as geometry
from repdyn.lab.studies.arguments import checked
from repdyn.lab.studies.embedding_tables import MAX_PAIRS, TWIN, EmbeddingTable
from repdyn.lab.studies.panels import plane_figure, plane_table
from repdyn.lab.studies.paths import TokenTrajectory
from repdyn.lab.studies.result import StudyResult
from repdyn.lab.studies.study import Study, Subjects, require_subjects
from repdyn.utils.arguments import (
    SENTENCES,
    Count,
    ModelOptions,
    at_least,
    converted,
    listed,
)
from repdyn.utils.extras import install_line


class AnatomyStudy(Study):
    """The embedding tables of a model, and the paths of tokens through its layers."""

    def __init__(
        self,
        *,
        pair: tuple[str, str],
        follow: Sequence[str],
        closest: int,
        pairs: int,
        seed: int,
        positions: int | None,
        unused: bool,
    ) -> None:
        super().__init__()
        self.pair = pair
        self.follow = follow
        self.closest = closest
        self.pairs = pairs
        self.seed = seed
        self.positions = positions
        self.unused = unused
        self.vocabularies: dict[str, pd.DataFrame] = {}

    def measure_model(self, loaded: LoadedModel) -> None:
        if self.follow:  # what is wrong is said before the tables, which take minutes
            require_followed(paths.sentence_tokens(loaded, self.pair), self.follow)
        self.show_title(loaded.name)
        self.vocabularies[loaded.name] = geometry.token_kinds(loaded.tokenizer)
        self._add_tables(loaded)
        super().measure_model(loaded)

    def measure(self, loaded: LoadedModel) -> None:
        name, (this, other) = loaded.name, paths.sentence_trajectories(loaded, self.pair)
        frames = [
            paths.trajectory_table(trajectory).assign(sentence=number)
            for number, trajectory in ((1, this), (2, other))
        ]
        self.tables["depth"] = pd.concat(frames, ignore_index=True)
        self.tables["depth_apart"] = paths.cross_sentence_table(this, other)
        self.figures["depth"] = draw.depth_figure(name, this, other)
        self.figures["paths"] = draw.paths_figure(name, this, other)
        # the last layer may lie so far from the others that these are one point beside it
        if len(this.states) > 2:
            early = [
                replace(trajectory, states=trajectory.states[:-1]) for trajectory in (this, other)
            ]
            self.figures["paths_without_last"] = draw.paths_figure(
                f"{name} without its last layer", *early
            )
        if self.follow:
            self.figures["paths_followed"] = draw.paths_figure(
                name, *followed((this, other), self.follow)
            )
        self.complete(loaded.folder_name)

    def finish(self) -> None:
        if len(self.vocabularies) > 1:
            self.add("shared_vocabulary", geometry.shared_vocabulary(self.vocabularies))
            self.complete()

    def _add_tables(self, loaded: LoadedModel) -> None:
        """Add what the model's embedding tables contain: their geometry, words and positions."""
        tables, end_pairs = self._cut_tables(loaded)
        words = tables[0]
        positions = [table for table in tables if table.kind == "position"]
        # the sinusoids of Vaswani et al. beside a learned table, for comparison
        sinusoids = [geometry.sinusoids(table) for table in positions[:1]]
        self._add_geometry(loaded.name, tables, sinusoids)
        sizes = {name: weight.numel() for name, weight in loaded.model.named_parameters()}
        overview = self.tables["tables"]
        n_parameters = overview["parameter"].map(sizes.get)  # the textbook's positions are none
        overview.insert(4, "share_of_parameters", n_parameters / sum(sizes.values()))
        self.tables["closest"] = embedding_tables.closest_table(tables, self.closest, end_pairs)
        self.tables["across_tables"] = geometry.across_tables(tables)
        self.tables["extreme_pairs"] = geometry.extreme_pairs(words, end_pairs[words.name])
        self._add_vocabulary(loaded.name, [words, *positions])
        self._show_distributions()
        self._add_words(words, self.vocabularies[loaded.name])
        layouts = [*positions, *sinusoids]
        rows = [self._add_positions(loaded.name, table) for table in layouts]
        token: Any = loaded.tokenizer.cls_token or loaded.tokenizer.bos_token
        for table in positions:
            if start := geometry.start_of_text(words, table, token):
                self.add(f"{_file_stem(table)}_start", pd.DataFrame([start]))
        if not positions:
            self.show(
                "no position table is looked up: positions enter otherwise (rotary, relative, "
                "sinusoids), or not"
            )
            return
        self.add("position_layouts", pd.DataFrame(rows))
        self._add_loops(loaded.name, layouts)

    def _cut_tables(
        self, loaded: LoadedModel
    ) -> tuple[list[EmbeddingTable], dict[str, dict[str, pd.DataFrame]]]:
        """Return the model's tables, without twins and without positions beyond those asked for;
        and by the name of an input table, its pairs of rows with the largest and smallest cosines.
        """
        tables = []
        end_pairs = {}
        for table in embedding_tables.embedding_tables(
            loaded.model, loaded.tokenizer, unused=self.unused
        ):
            if table.kind == "input":
                # no two rows have a cosine beyond that: none is left out
                twin = math.inf if self.unused else TWIN
                table, pairs = embedding_tables.without_twins(table, self.closest, twin)
                end_pairs[table.name] = pairs
            if table.kind == "position" and self.positions is not None:
                first = np.arange(min(self.positions, len(table.rows)))
                table = table.subset(first, "beyond the positions asked for")
            tables.append(table)
        return tables, end_pairs

    def _add_geometry(
        self, name: str, tables: Sequence[EmbeddingTable], sinusoids: Sequence[EmbeddingTable]
    ) -> None:
        """Add distributions of norms and cosines, and curves of explained variance beside those of
        clouds whose dimension is known.
        """
        measured = [*tables, *sinusoids]
        pairs_of = {
            table: embedding_tables.distributions(table, pairs=self.pairs, seed=self.seed)
            for table in measured
        }
        self.figures["tables"] = draw.tables_figure(
            name, {table: pairs_of[table] for table in tables}
        )
        clouds = geometry.known_clouds(self.seed)
        known_curves = {
            cloud: embedding_tables.explained_variance(rows) for cloud, rows in clouds.items()
        }
        curves = {table.name: table.explained for table in measured if len(table.explained)}
        self.figures["dimension_curves"] = draw.dimension_figure(name, known_curves, curves)
        self.tables["known_clouds"] = geometry.dimension_table(clouds)
        self.tables.update(embedding_tables.tabulate(pairs_of))

    def _show_distributions(self) -> None:
        """Print the most telling columns of two tables."""
        quantiles = ("mean", "q05", "median", "q95", "min", "max")
        self.show(self.tables["distributions"], "table", "quantity", *quantiles)
        of_table = ("table", "parameter", "rows", "dim", "share_of_parameters", "left_out")
        self.show(self.tables["tables"], *of_table, "all_pairs", "mean_share")

    def _add_loops(self, name: str, layouts: Sequence[EmbeddingTable]) -> None:
        """Add the loops that the rows of positions form, if ripser is installed."""
        if not find_spec("ripser"):
            self.show(f"loops of the positions are not searched: {install_line('topology')}")
            return
        loops = [geometry.loops_of(table, self.seed) for table in layouts]
        for table, of_table in zip(layouts, loops, strict=True):
            diagram = draw.persistence_figure(f"{name}, {table.name}", *of_table)
            self.figures[f"{_file_stem(table)}_persistence"] = diagram
        summaries, diagrams = zip(*loops, strict=True)
        self.tables["position_loops"] = pd.concat(summaries)
        self.tables["position_persistence"] = pd.concat(diagrams)
        self.show("")

    def _add_vocabulary(self, name: str, tables: Sequence[EmbeddingTable]) -> None:
        """Add what kinds of tokens there are, where their rows lie, and planes of them and of
        positions.
        """
        words = tables[0]
        closest = self.closest
        kinds = self.vocabularies[name]
        values = words.about.assign(label=words.labels)
        self.tables["about_mean"] = geometry.ends_about_mean(values, closest)
        of_words = values.loc[values["label"].map(geometry.is_latin_word)]
        self.tables["about_mean_words"] = geometry.ends_about_mean(of_words, closest)
        self.figures["about_mean"] = draw.about_mean_figure(name, values)
        self.add("vocabulary", geometry.vocabulary_table(kinds), "kind", "tokens", "share")
        ranges = geometry.ranges_of_ids(kinds)
        self.tables["vocabulary_ranges"] = ranges
        self.show("ids of each kind of token:")
        self.show("\n".join(geometry.listed_ranges(ranges)))
        looks = geometry.looks_of(words.labels, kinds)
        shown = {"plane_of_tokens": [words]}
        for table in tables[1:]:
            if table.rows.shape[1] == words.rows.shape[1]:
                shown[f"plane_of_tokens_and_{_file_stem(table)}"] = [words, table]
            if len(table.rows) > 3:
                shown[f"{_file_stem(table)}_plane"] = [table]
        for path, together in shown.items():
            kind: list[str] = []
            for embeddings in together:
                kind += looks if embeddings is words else ["position" for _ in embeddings.rows]
            labels = pd.DataFrame(
                {
                    "label": [label for embeddings in together for label in embeddings.labels],
                    "kind": kind,
                }
            )
            labels.insert(
                1, "position", labels["label"].where(labels["kind"] == "position").astype(float)
            )
            plane = plane_table(
                torch.cat([embeddings.rows for embeddings in together]), labels, self.seed
            )
            drawn = "PCA of all rows; the other methods of a sample, of each kind alike"
            self.tables[path] = plane
            self.figures[path] = plane_figure(
                f"{name}: embeddings in a plane", drawn, plane, "kind", "position"
            )

    def _add_words(self, words: EmbeddingTable, kinds: pd.DataFrame) -> None:
        """Add what few bits do to the input table, and what it says of parts of speech and
        opposites.
        """
        seed = self.seed
        rows = geometry.word_rows(words, kinds)
        self.add("quantisation", geometry.quantisation_table(words, seed))
        opposites = {
            **geometry.compare_opposites(words, rows, seed),
            **geometry.probe_words(words, rows, seed),
        }
        for name, table in opposites.items():
            self.add(name, table)
        if "word_probe" not in opposites:
            self.show(
                "parts of speech are not read from the input table: too few of the known words are "
                "in it"
            )

    def _add_positions(self, model: str, table: EmbeddingTable) -> dict[str, Any]:
        """Add tables and figures of the layout of positions; return its numbers."""
        name = f"{model}, {table.name}"
        path = _file_stem(table)
        n = len(table.rows)
        matrix = embedding_tables.cosine_matrix(table.rows)
        scores, shares = paths.principal(table.rows)
        offsets = paths.by_offset(matrix)
        following = paths.following_cosines(matrix)
        self.tables[f"{path}_following"] = following
        if len(following):
            self.figures[f"{path}_following"] = draw.following_figure(name, following)
        rotation = paths.find_rotation(scores, shares)
        order_end = paths.find_order_end(table.rows)
        self.tables[f"{path}_offsets"] = offsets
        self.figures[f"{path}_image"] = draw.position_image(name, table.rows)
        self.figures[f"{path}_cosines"] = draw.similarity_figure(name, matrix, offsets, order_end)
        # a path is drawn in three dimensions
        if scores.shape[1] >= 3:
            self.figures[f"{path}_path"] = draw.path_figure(name, scores, shares, rotation)
        neighbours = offsets.loc[offsets["offset"] == 1, "mean"].mean()
        layout = {
            "table": table.name,
            "positions": n,
            "neighbours": neighbours,
            "order_end": order_end,
            "fractal_dimension": float(ph_dimension(table.rows)),
        }
        if rotation is not None:
            self.tables[f"{path}_turns"] = rotation.windows
            layout |= {
                name: getattr(rotation, name) for name in ("period", "share", "purity", "ends")
            }
        return layout


def _file_stem(table: EmbeddingTable) -> str:
    return file_name(table.name.replace(": ", " "))


def followed(pair: Sequence[TokenTrajectory], words: Sequence[str]) -> list[TokenTrajectory]:
    """Return the paths of words (tokens without the mark of a space) alone; an error if neither
    sentence has any.
    """
    trajectories = []
    for sentence in pair:
        places = [
            position for position, token in enumerate(sentence.tokens) if draw.plain(token) in words
        ]
        tokens = tuple(sentence.tokens[position] for position in places)
        trajectories.append(replace(sentence, tokens=tokens, states=sentence.states[:, places]))
    require_followed([sentence.tokens for sentence in pair], words)
    return trajectories


def require_followed(sentences: Sequence[Sequence[str]], words: Sequence[str]) -> None:
    """Raise ValueError unless one of the words is a token of a sentence."""
    tokens = dict.fromkeys(draw.plain(token) for sentence in sentences for token in sentence)
    if tokens.keys().isdisjoint(words):
        raise ValueError(
            f"expected tokens of the sentences to follow, got {', '.join(words)}; they have "
            f"{', '.join(tokens)}"
        )


@checked
def anatomy(
    models: Subjects,
    /,
    *,
    loading: ModelOptions = ModelOptions(),
    pair: tuple[str, str] = SENTENCES,
    follow: Annotated[tuple[str, ...], converted(listed, "TOKENS")] = (),
    closest: Count = 20,
    pairs: Count = MAX_PAIRS,
    seed: Annotated[int, at_least(0)] = 0,
    positions: Count | None = None,
    unused: bool = False,
) -> StudyResult:
    """Study anatomy: context-free embeddings (input, position, segment), and paths of tokens
    through the layers.

    Args:
        pair: Two sentences.
        follow: Tokens whose paths are drawn alone, separated by commas.
        closest: Number of closest, of furthest and of other extreme pairs and tokens.
        pairs: Pairs of rows sampled for a distribution; all if there are no more.
        seed: Of that sample.
        positions: Number of the first positions that are measured (default: all).
        unused: Keep rows of the input table that training did not distinguish.

    Examples:
      repdyn study anatomy bert-base-cased -o FOLDER
      repdyn study anatomy gpt2 facebook/opt-125m --closest 50 -o FOLDER
      repdyn study anatomy gpt2 --pair "He plays the bass." "He eats the bass." -o F
    """
    require_subjects(models)
    study = AnatomyStudy(
        pair=pair,
        follow=follow,
        closest=closest,
        pairs=pairs,
        seed=seed,
        positions=positions,
        unused=unused,
    )
    return study.run(models, loading)
