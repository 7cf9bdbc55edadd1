"""Groups of paraphrases, changed sentences and collections of texts, built in or from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from repdyn.text.source import load_corpus


def read_groups(path: Path | None) -> pd.DataFrame:
    """Read groups of paraphrases, or return the built-in ones: a row for each sentence, with columns group, sentence.

    Args:
        path: JSON ``{"group": ["sentence", ...], ...}`` or ``[["sentence", ...], ...]``, or CSV with the columns group
            and sentence; None for the built-in groups.

    Raises:
        ValueError: a file of another format.
        OSError: a file that cannot be read.
    """
    groups = PARAPHRASES if path is None else _read(path, ("group", "sentence"))
    if isinstance(groups, list):
        groups = {f"group {number}": group for number, group in enumerate(groups, start=1)}
    if not isinstance(groups, Mapping) or not all(map(_are_texts, groups.values())):
        raise ValueError(
            f'expected groups of sentences in {path}, {{"group": ["sentence", ...], ...}}, got something else; give '
            "lists of texts, none of them empty"
        )
    rows = [(str(name), text) for name, group in groups.items() for text in group]
    return pd.DataFrame(rows, columns=["group", "sentence"])


def read_changes(path: Path | None) -> pd.DataFrame:
    """Read changed sentences, or return the built-in ones: a row for each, with columns kind, before, after.

    Args:
        path: JSON ``{"kind": [["before", "after"], ...], ...}``, or CSV with the columns kind, before and after; None
            for the built-in sentences.

    Raises:
        ValueError: a file of another format.
        OSError: a file that cannot be read.
    """
    kinds = CHANGES if path is None else _read(path, ("kind", "before", "after"))
    if not isinstance(kinds, Mapping) or not all(
        isinstance(pairs, Sequence) and all(_are_texts(pair) and len(pair) == 2 for pair in pairs)
        for pairs in kinds.values()
    ):
        raise ValueError(
            f'expected changed sentences in {path}, {{"kind": [["before", "after"], ...], ...}}, got something else; '
            "give pairs of texts, none of them empty"
        )
    rows = [(str(kind), *pair) for kind, pairs in kinds.items() for pair in pairs]
    return pd.DataFrame(rows, columns=["kind", "before", "after"])


def read_collection(source: str, n_texts: int) -> tuple[str, list[str]]:
    """Read paragraphs of a text, spread evenly over it; return the name of the text and the paragraphs.

    Args:
        source: "builtin", "enwik8" or a path; see :func:`repdyn.text.source.load_corpus`.
        n_texts: number of paragraphs at most. Blank lines separate them; if there are too few, every line is one.

    Raises:
        ValueError: fewer than three different paragraphs.
        OSError: a text that cannot be read.
    """
    corpus = load_corpus(source)
    text = corpus.data.decode("utf-8", errors="ignore")
    parts = [part.split("\n\n") for part in (text, text.replace("\n", "\n\n"))]
    paragraphs = next((part for part in parts if len(part) >= n_texts), parts[-1])
    distinct = list(dict.fromkeys(stripped for part in paragraphs if any(map(str.isalnum, stripped := part.strip()))))
    if len(distinct) < 3:
        raise ValueError(f"expected at least 3 paragraphs in {source}, got {len(distinct)}; give a longer text")
    chosen = np.unique(np.linspace(0, len(distinct) - 1, min(n_texts, len(distinct))).round().astype(int))
    return corpus.name, [distinct[number] for number in chosen]


def _are_texts(values: object) -> bool:
    return (
        isinstance(values, Sequence)
        and not isinstance(values, str)
        and all(isinstance(text, str) and bool(text.strip()) for text in values)
    )


def _read(path: Path, columns: Sequence[str]) -> Any:
    """Return the content of a JSON file, or of a CSV file by its first column: lists of the others."""
    if path.suffix.lower() != ".csv":
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"expected {path} to be JSON, or CSV by a name that ends in .csv: {error}") from error
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (ValueError, pd.errors.EmptyDataError) as error:
        raise ValueError(f"expected {path} to be CSV with the columns {', '.join(columns)}: {error}") from error
    if missing := [column for column in columns if column not in frame.columns]:
        raise ValueError(f"expected the columns {', '.join(columns)} in {path}, found no {', '.join(missing)}")
    key, *others = columns
    values = others[0] if len(others) == 1 else others
    return {name: rows[values].to_numpy().tolist() for name, rows in frame.groupby(key, sort=False)}


# groups between blank lines, each below its name
_PARAPHRASES = """
rain
It has been raining since early this morning.
Wet weather set in at dawn and has not stopped.
Showers began at sunrise and still go on.
There was no dry minute from daybreak until now.
The rain started before breakfast and never let up.

late train
The train to London leaves twenty minutes late.
Departure of the London service is delayed by twenty minutes.
Passengers for London will have to wait twenty minutes longer.
The London express is running twenty minutes behind schedule.
Our journey to London starts a third of an hour after the planned time.

lost keys
I cannot find my house keys anywhere.
The keys to my home have gone missing.
My door keys are lost, and I have searched every place.
Nowhere can I discover what I unlock my front door with.
I must have misplaced the keys of my flat.

cheap phone
This phone costs much less than the others.
Compared with its rivals the handset is very cheap.
Other mobiles are far more expensive than this one.
You pay only a fraction of the usual price for this device.
The telephone is a real bargain beside what competitors sell.

new vaccine
Scientists have developed a vaccine against malaria.
A jab that protects from malaria was created by researchers.
Research has produced an injection which prevents malaria.
There is now an inoculation for malaria, thanks to laboratory work.
Medical teams found a way to immunise people against malaria.

election
The opposition won the election by a narrow margin.
Voters gave the challengers a slim victory.
With just a few more ballots the opposing party beat the government.
The ruling party was barely defeated at the polls.
A very small majority of the electorate chose the other side.

burnt dinner
She left the chicken in the oven for too long.
Her roast burned because she forgot to take it out.
The poultry was overcooked through her carelessness.
Dinner came out black, as she had not watched the stove.
She let the bird bake until it was charred.

football
The home team scored twice in the last ten minutes.
Two late goals were made by the hosts.
Shortly before the final whistle the local side found the net two times.
Near the end of the match the hosts put a couple of balls in.
A pair of goals fell for the home players just before the close.

old library
The library in the town centre is being renovated.
Builders are restoring the central public library.
Repair works are under way where the city lends its books.
The downtown house of books gets a thorough refurbishment.
Our municipal library, in the middle of town, is under reconstruction.

tired child
The little boy fell asleep during the story.
While the tale was being read, the small child dozed off.
He nodded off, young as he was, before the book was finished.
Bedtime reading sent the lad to sleep.
The toddler's eyes closed in the middle of the narrative.

interest rates
The central bank raised interest rates again.
Borrowing money became dearer after another decision of the monetary authority.
Once more the reserve bank put up the cost of credit.
Loans get more expensive, since policy makers lifted the base rate a further time.
Yet another increase of the key rate was announced by the bankers in charge.

mountain
They reached the summit just before noon.
The climbers stood on the top shortly before midday.
It was almost twelve when the party arrived at the peak.
The highest point was gained late in the morning.
A little before lunch the mountaineers had conquered the crest.
"""
PARAPHRASES: dict[str, tuple[str, ...]] = {
    name: tuple(sentences) for name, *sentences in (group.split("\n") for group in _PARAPHRASES.strip().split("\n\n"))
}
"""12 groups of 5 sentences of the same meaning in words as different as possible."""

# subject: singular, plural, other gender; verb: singular, plural, past; the rest
_SENTENCES = """
The king | The kings | The queen | signs | sign | signed | the letter.
The waiter | The waiters | The waitress | brings | bring | brought | the hot soup.
The actor | The actors | The actress | forgets | forget | forgot | an important line.
My uncle | My uncles | My aunt | repairs | repair | repaired | the old car.
The boy | The boys | The girl | climbs | climb | climbed | the apple tree.
The father | The fathers | The mother | sings | sing | sang | in the choir.
The prince | The princes | The princess | rides | ride | rode | across the valley.
Our brother | Our brothers | Our sister | studies | study | studied | chemistry at the university.
Their grandfather | Their grandfathers | Their grandmother | waters | water | watered | the roses.
The policeman | The policemen | The policewoman | stops | stop | stopped | the red lorry.
The man | The men | The woman | sells | sell | sold | fresh bread.
Your nephew | Your nephews | Your niece | draws | draw | drew | a map of the island.
"""


def _changes() -> dict[str, tuple[tuple[str, str], ...]]:
    parts = [line.split(" | ") for line in _SENTENCES.strip().splitlines()]
    kinds = {
        "singular to plural": "{1} {4} {6}",
        "negated": "{0} does not {4} {6}",
        "present to past": "{0} {5} {6}",
        "he to she": "{2} {3} {6}",
    }
    return {
        kind: tuple(("{0} {3} {6}".format(*words), after.format(*words)) for words in parts)
        for kind, after in kinds.items()
    }


CHANGES = _changes()
"""4 kinds of change of the same 12 sentences, so that the content of a sentence does not reveal the kind."""
