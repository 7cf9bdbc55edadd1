"""HTML in which every text is escaped unless it was made here, and the policy of a page for its
scripts.
"""

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from importlib.resources import files


class Markup(str):
    """A piece of HTML, as opposed to a text."""

    __slots__ = ()


def tag(name: str, *content: str, **attributes: str) -> Markup:
    """Return an element; an underscore at the end of an attribute's name is left out, one inside is
    a hyphen.

    >>> tag("p", "a < b ", tag("b", "c"), class_="note")
    '<p class="note">a &lt; b <b>c</b></p>'
    """
    names = {key.removesuffix("_").replace("_", "-"): value for key, value in attributes.items()}
    opening = "".join(f' {key}="{html.escape(value)}"' for key, value in names.items())
    return Markup(f"<{name}{opening}>{joined(content)}</{name}>")


def joined(content: Iterable[str], between: str = "") -> Markup:
    """Join texts and elements."""
    return Markup(
        between.join(one if isinstance(one, Markup) else html.escape(one) for one in content)
    )


def table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: int = 0,
    quiet: bool = False,
) -> Markup:
    """Return a table whose first column names its rows, of texts or elements; the last ``numbers``
    columns hold numbers, and a ``quiet`` caption is for screen readers only."""
    first_number = len(headings) - numbers
    head = [
        tag("th", text, scope="col", **_number(at >= first_number))
        for at, text in enumerate(headings)
    ]
    body = [
        tag(
            "tr",
            tag("th", cells[0], scope="row"),
            # what a narrow page, where the cells stand below each other, puts before each
            *(
                tag("td", cell, data_label=headings[at], **_number(at >= first_number))
                for at, cell in enumerate(cells[1:], 1)
            ),
        )
        for cells in rows
    ]
    whole = tag(
        "table", tag("caption", caption), tag("thead", tag("tr", *head)), tag("tbody", *body)
    )
    # a wide one scrolls by itself, also by keyboard
    return tag(
        "div",
        whole,
        class_="scroll quiet" if quiet else "scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def details(summary: str, *content: str) -> Markup:
    """Return an element that can be opened."""
    return tag("details", tag("summary", summary), *content)


def _number(yes: bool) -> dict[str, str]:
    return {"class_": "number"} if yes else {}


def asset(name: str, package: str = "repdyn.views.report") -> Markup:
    """Return a file of the folder ``page`` of a package."""
    return Markup((files(package) / "page" / name).read_text(encoding="utf-8"))


def policy(*scripts: str) -> str:
    """Return a security policy: these scripts, styles and images of the page itself, and no
    network.
    """
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
