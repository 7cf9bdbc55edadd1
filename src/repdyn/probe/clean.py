"""Reduce a Wikipedia dump to prose: remove XML, wiki markup, code, media and HTML.

The elements of a dump are treated as follows:

======================================================  ======================================
pages of the article namespace                          kept, with their title, between blank lines
redirects, pages of other namespaces, a truncated page  dropped
links ``[[target|text]]`` and ``[address text]``        their text; bare addresses dropped
headings, list items, bold, italics, inline HTML        their text
templates, comments, tables, references                 dropped
images, media, categories, links to other languages     dropped, with their captions
code, preformatted lines, formulas, galleries, charts   dropped
entities                                                the character
======================================================  ======================================

Markup is parsed by mwparserfromhell. On real pages this takes half a second per megabyte; for
markup that is opened thousands of times and never closed, the time grows quadratically (20 s for
9,000 times ``{{a|``).
"""

import hashlib
import html
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import mwparserfromhell

# compiled, without type information
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]
from mwparserfromhell import nodes
from mwparserfromhell.wikicode import Wikicode
from tqdm.contrib.concurrent import process_map

from repdyn.utils.files import cache_directory, write_atomically

# fmt: off
DROPPED_TAGS = frozenset((
    "categorytree", "ce", "chem", "code", "gallery", "graph", "hiero", "imagemap", "includeonly",
    "inputbox", "math", "pre", "ref", "references", "score", "script", "section", "source", "style",
    "syntaxhighlight", "table", "templatedata", "timeline",
))
# fmt: on
DROPPED_LINKS = frozenset(("category", "file", "image", "media"))
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z-]+)?|simple|tokipona")
_HTML_NAMES = (
    "a abbr b big blockquote br caption center cite code del div dd dl dt em font gallery h[1-6] "
    "hr i ins li math noinclude nowiki ol onlyinclude p pre ref references s samp small span "
    "strike strong sub sup table tbody td th tr tt u ul var"
)
# Marks a line that begins with a space, which MediaWiki shows as preformatted text. Such a line
# cannot be recognised after the markup around it is removed, nor removed before, since it may close
# a template.
_PREFORMATTED = "\x00"
_PAGES_PER_CALL = 100


def clean_dump(dump: bytes) -> bytes:
    """Return the prose of a Wikipedia dump, MediaWiki XML that may be truncated: the articles as
    UTF-8, separated by blank lines. It is computed once, on all cores, and cached."""
    path = cache_directory() / "clean" / f"{_fingerprint(dump)}.txt"
    if not path.exists():
        pages = list(articles(dump))
        if not pages:
            raise ValueError(
                "expected articles in the dump, got only redirects and special pages; use a longer "
                "part"
            )
        bar: dict[str, Any] = {"desc": "removing markup", "disable": None}
        texts = process_map(_clean_page, pages, chunksize=_PAGES_PER_CALL, **bar)
        cleaned = ("\n\n".join(texts) + "\n").encode()
        write_atomically(path, lambda temporary: temporary.write_bytes(cleaned))
    return path.read_bytes()


def articles(dump: bytes) -> Iterator[dict[str, str]]:
    """Yield ``{"title": ..., "text": ...}``, in wikitext, of each complete article of a dump, in
    their order, without redirects and other namespaces."""
    namespaces: set[str] = set()
    for element in _elements(dump):
        if etree.QName(element).localname == "namespace":
            namespaces.add(element.text or "")
            continue
        title = element.findtext("{*}title") or ""
        text = element.findtext("{*}revision/{*}text") or ""
        prefix, colon, _ = title.partition(":")
        is_redirect = text.lstrip()[:9].lower() == "#redirect"
        if not is_redirect and not (colon and prefix in namespaces):
            yield {"title": title, "text": text}


def clean_wikitext(text: str) -> str:
    """Return the prose of a page's wiki markup; cleaning is idempotent.

    >>> clean_wikitext(
    ...     "'''Anarchism''' is a [[political theory|theory]].{{fact}} [[Image:A.png|thumb]]"
    ... )
    'Anarchism is a theory.'
    """
    # Unescaping may produce new markup (&lt;b&gt;), so this is repeated until a pass does not
    # shorten the text.
    while len(cleaned := _tidy(_text(mwparserfromhell.parse(text)))) < len(text):
        text = cleaned
    return cleaned


def _elements(dump: bytes) -> Iterator[etree._Element]:
    page_end = dump.rfind(b"</page>") + len(b"</page>")
    if page_end < len(b"</page>"):
        raise ValueError(
            "expected a MediaWiki dump with at least one complete <page>, got none; use a longer "
            "part"
        )
    whole = BytesIO(dump[:page_end] + b"</mediawiki>")
    try:
        for _, element in etree.iterparse(
            whole, tag=("{*}namespace", "{*}page"), huge_tree=True, resolve_entities=False
        ):
            yield element
            element.clear()
    except etree.XMLSyntaxError as error:
        raise ValueError(
            f"expected well-formed XML up to the last </page>: {error}; use it without cleaning"
        ) from None


def _fingerprint(dump: bytes) -> str:
    """Return a hash of the dump, this file and the parser's version, so that no stale result is
    read.
    """
    code = Path(__file__).read_bytes() + mwparserfromhell.__version__.encode()
    return hashlib.sha256(hashlib.sha256(dump).hexdigest().encode() + code).hexdigest()[:32]


def _clean_page(page: dict[str, str]) -> str:
    return f"{page['title']}\n\n{clean_wikitext(page['text'])}".strip()


def _text(code: Wikicode | None) -> str:
    return "".join(_node_text(node) for node in code.nodes) if code else ""


def _node_text(node: nodes.Node) -> str:
    match node:
        case nodes.Text():
            return node.value.replace("\n ", f"\n{_PREFORMATTED} ")
        case nodes.HTMLEntity():
            return html.unescape(str(node))
        case nodes.Wikilink():
            return _link_text(node)
        case nodes.ExternalLink():
            return _text(node.title)
        case nodes.Heading():
            return f"\n{_text(node.title)}\n"
        case nodes.Tag():
            return _tag_text(node)
        case _:  # templates, template arguments, comments
            return ""


def _link_text(link: nodes.Wikilink) -> str:
    target = _text(link.title).strip()
    prefix, colon, _ = target.partition(":")
    if colon and (prefix.strip().lower() in DROPPED_LINKS or _LANGUAGE.fullmatch(prefix)):
        return ""
    return _text(link.text) if link.text is not None else target.removeprefix(":")


def _tag_text(tag: nodes.Tag) -> str:
    name = str(tag.tag).strip().lower()
    if name in DROPPED_TAGS:
        return ""
    if name in ("br", "hr"):
        return "\n"
    return _text(tag.contents)


_TIDYING: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # remains of markup that was never closed and therefore not parsed
        (rf"(?m)^{_PREFORMATTED}.*$", ""),
        (r"(?m)^[^\S\n]*(?:\{\||\|).*$", ""),
        (rf"(?i)</?(?:{_HTML_NAMES.replace(' ', '|')})(?:\s[^<>]*)?/?>", ""),
        (r"<!--|-->|\[\[|\]\]|\{\{|\}\}|'{2,5}|__[A-Z]+__", ""),
        # remains of removed markup
        (r"[^\S\n]+", " "),
        (r"\( ?[,;:]? ?\)|\[ ?\]|\[(?= )", ""),
        (r" +(?=[,.;)\n])|(?<=[(\n]) +", ""),
        (r"\n{3,}", "\n\n"),
    )
)


def _tidy(text: str) -> str:
    for pattern, replacement in _TIDYING:
        text = pattern.sub(replacement, text)
    return text.strip()
