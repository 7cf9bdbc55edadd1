"""Redaction of passwords and tokens from texts that are stored, logged or printed."""

import os
import re

REDACTED = "REDACTED"
"""The replacement of a secret; a plain word, so that YAML and JSON around it stay valid."""

# Variables whose values are secrets by their names; a short value would be found in any text.
_SECRET_VARIABLE = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|_KEY)$", re.IGNORECASE)
_SHORTEST_SECRET = 8

_WORD = re.compile(r"[^\s\"'<>]+")
_BEGINS = r"(?<![A-Za-z0-9])"
"""A place where a word begins: before it no letter or digit."""
_NAMES = r"(?:api[-_]?key|passw(?:or)?d|secret)"
_VALUE = r"[^\s\"'&,;)}\]]+"
_TOKENS = "|".join(
    (
        r"(?:hf|api_org)_[A-Za-z0-9]{16,}",  # Hugging Face
        r"wandb_v\d+_\w{16,}",
        r"gh[pousr]_[A-Za-z0-9]{20,}",  # GitHub
        r"github_pat_\w{20,}",
        r"sk-[\w-]{20,}",  # OpenAI
        r"AKIA[0-9A-Z]{16}",  # AWS
        r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}(?:\.[\w-]*)?",  # JSON web tokens
    )
)
_SECRETS = (
    # user:password@ of an address
    (re.compile(r"(?<=://)[^/\s?#\"'<>]*@"), ""),
    # what follows a name: api_key="..."
    (
        re.compile(rf"{_BEGINS}({_NAMES}[\"']?\s*[:=]\s*[\"']?){_VALUE}", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
    (re.compile(rf"{_BEGINS}(?:{_TOKENS})"), REDACTED),
)
"""Patterns of secrets, and what replaces each."""


def redacted(text: str) -> str:
    """Return a text without its secrets; idempotent, and the same text where it has none.

    Removes user, password and query of an address, what follows names such as ``api_key:``, tokens
    of known formats, and the values of environment variables whose names end in TOKEN, SECRET,
    PASSWORD or _KEY, which hold secrets of no known format, such as the 40 hexadecimal digits of a
    W&B key.

    >>> redacted("GET https://me:pass@hub.example/file?X-Amz-Signature=0af failed")
    'GET https://hub.example/file failed'
    >>> redacted("WANDB_API_KEY=abc"), redacted("pad_token=[PAD]")
    ('WANDB_API_KEY=REDACTED', 'pad_token=[PAD]')
    """
    values = [value.strip() for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)]
    secrets = [value for value in values if len(value) >= _SHORTEST_SECRET]
    # the longest first: one may be a part of another, whose rest would stay
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return _WORD.sub(_without_query, text)


def _without_query(word: re.Match[str]) -> str:
    """Return an address without its query, where signatures are; any other word unchanged."""
    address, mark, query = word[0].partition("?")
    if not mark or "://" not in address:
        return word[0]
    return address + query[query.find(")") :] if ")" in query else address
