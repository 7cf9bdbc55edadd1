from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repdyn.probe import clean
from repdyn.probe.clean import articles, clean_dump, clean_wikitext
from repdyn.probe.corpus import load_corpus

CASES = {
    "bold and italics": (
        "A '''bold''' and ''slanted'' '''''both'''''.",
        "A bold and slanted both.",
    ),
    "link": ("See [[Paris]].", "See Paris."),
    "link with text": ("See [[Paris, Texas|the town]]s.", "See the towns."),
    "category": ("Text.\n[[Category:Towns]]", "Text."),
    "image with a link in its caption": ("A[[Image:a.png|thumb|A [[town]] hall]] B", "A B"),
    "file": ("A [[File:a.png]]B", "A B"),
    "other language": ("Text.\n[[de:Stadt]]\n[[zh-min-nan:X]]\n[[simple:Town]]", "Text."),
    "external link with text": ("The [http://a.b/c?d=e official ''site''].", "The official site."),
    "bare address": ("At http://a.b/c now.", "At now."),
    "template": ("A{{cite|title=[[x]]|{{nested|y}}}} B", "A B"),
    "template that leaves parentheses empty": ("Ann ({{IPA|x}}) sang.", "Ann sang."),
    "comment": ("A<!-- [[hidden]] --> B", "A B"),
    "heading": ("== History ==\nText\n=== More ===\nEnd", "History\n\nText\n\nMore\n\nEnd"),
    "lists": ("* one\n** two\n# three\n:four\n;five", "one\ntwo\nthree\nfour\nfive"),
    "table": ('Before\n{| class="x"\n! head\n|-\n| cell || [[b]]\n|}\nAfter', "Before\n\nAfter"),
    "reference": (
        "Fact<ref name=x>[http://a.b src]</ref>, fact<ref name=x />.<references/>",
        "Fact, fact.",
    ),
    "formula": ("Let <math>x^2 < y</math> be.", "Let be."),
    "preformatted lines": ("Text\n int main()\n   { [[a]] }\nMore", "Text\n\nMore"),
    "gallery": ("A<gallery>\na.png|b\n</gallery>B", "AB"),
    "inline html": ('H<sub>2</sub>O is <span style="x">wet</span><br />very', "H2O is wet\nvery"),
    "entities": ("A&nbsp;B &ndash; C &amp; D &#233; E", "A B \N{EN DASH} C & D é E"),
    "entities that spell a tag": ("A &lt;b&gt;bold&lt;/b&gt; tag", "A bold tag"),
    "unclosed table": ('A\n{| class="x"\n| cell\nB', "A\n\nB"),
    "unclosed link": ("A [[b and c", "A b and c"),
    "less than": ("a < b and c > d", "a < b and c > d"),
    "nothing left": ("{{stub}}", ""),
}


@pytest.mark.parametrize(("markup", "prose"), CASES.values(), ids=CASES)
def test_markup_becomes_prose(markup: str, prose: str):
    assert clean_wikitext(markup) == prose


@given(
    st.lists(
        st.sampled_from(
            [part for case in CASES.values() for part in case] + ["\n", " ", "[", "{{", "''"]
        )
    )
)
def test_cleaning_is_idempotent(parts: list[str]):
    once = clean_wikitext("".join(parts))
    assert clean_wikitext(once) == once


@pytest.mark.parametrize(
    "opening",
    ["{{", "[[", "{{{", "''", "{|", "<ref>", "[[a|", "&lt;", "&amp;", "\n*#:;", "[http://a "],
)
def test_markup_opened_many_times(opening: str):
    assert "text" in clean_wikitext("text " + opening * 500)


def test_articles_without_redirects_and_other_namespaces(make_dump: Callable[..., bytes]):
    dump = make_dump(
        {
            "Zoo": "animals & more",
            "ZOO": "#REDIRECT [[Zoo]]",
            "Zoos": " #redirect[[Zoo]]",
            "Template:Zoo": "x",
            "2001: A Space Odyssey": "film",
        }
    )
    assert list(articles(dump)) == [
        {"title": "Zoo", "text": "animals & more"},
        {"title": "2001: A Space Odyssey", "text": "film"},
    ]


@pytest.mark.parametrize(
    "cut", [b"second", b"</revision>", b"<page>", b"</mediawiki>"], ids=bytes.decode
)
def test_a_truncated_page_is_ignored(make_dump: Callable[..., bytes], cut: bytes):
    dump = make_dump({"A": "first", "B": "sécond second"})
    titles = [page["title"] for page in articles(dump[: dump.rfind(cut) + 3])]
    assert titles == (["A", "B"] if cut == b"</mediawiki>" else ["A"])


def test_cleaned_articles_with_titles(make_dump: Callable[..., bytes]):
    dump = make_dump({"Fox": "The '''fox'''.", "Stub": "{{stub}}", "Dog": "The [[dog]]."})
    assert clean_dump(dump) == b"Fox\n\nThe fox.\n\nStub\n\nDog\n\nThe dog.\n"


def test_the_result_is_cached(make_dump: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch):
    dump = make_dump({"Fox": "The '''fox'''."})
    first = clean_dump(dump)
    monkeypatch.setattr(clean, "clean_wikitext", None)
    assert clean_dump(dump) == first
    other = make_dump({"Fox": "Another '''fox'''."})
    with pytest.raises(TypeError):
        clean_dump(other)


@pytest.mark.real_data
def test_the_real_prefix_is_reduced_to_prose(enwik8_prefix: Path):
    cleaned = load_corpus(enwik8_prefix)
    text = cleaned.data.decode()
    assert cleaned.name == "enwik8 prefix, 4.15 MB, cleaned"
    assert 2_900_000 < len(cleaned.data) < 3_000_000
    assert text.startswith(
        "Anarchism\n\nAnarchism originated as a term of abuse first used against early "
        "working class"
    )
    assert not re.findall(
        r"\[\[|\]\]|\{\{|\}\}|\{\||<(?:ref|br|div|table|math)|''|&\w+;|https?://|\x00", text
    )
