"""Redaction of passwords and tokens from texts that are stored, logged or printed."""

import os
import re

REDACTED = "REDACTED"
"""The replacement of a secret; a plain word, so that YAML and JSON around it stay valid."""

# Variables whose values are secrets by their names; a short value would be found in any text.
_SECRET_VARIABLE = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|_KEY)$", re.IGNORECASE)
_SHORTEST_SECRET = 8

_WORD = re.compile(r"[^\s\"'<>]+")
_VALUE = r"[^\s\"'&,;)}\]]+"
_PLACES = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        # user:password@ of an address
        (r"(?<=://)[^/\s?#\"'<>]*@", ""),
        (
            rf"(?<![A-Za-z0-9])((?:api[-_]?key|passw(?:or)?d|secret)[\"']?\s*[:=]\s*[\"']?){_VALUE}",
            rf"\1{REDACTED}",
        ),
        # tokens of known formats: Hugging Face, W&B, GitHub, OpenAI, AWS, JSON web tokens
        (
            r"(?<![A-Za-z0-9])(?-i:(?:hf|api_org)_[A-Za-z0-9]{16,}|wandb_v\d+_\w{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
            r"|github_pat_\w{20,}|sk-[\w-]{20,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}(?:\.[\w-]*)?)",
            REDACTED,
        ),
    )
)


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
    secrets = (value.strip() for name, value in os.environ.items() if _SECRET_VARIABLE.search(name))
    # the longest first: one may be a part of another
    for secret in sorted(
        (each for each in secrets if len(each) >= _SHORTEST_SECRET), key=len, reverse=True
    ):
        text = text.replace(secret, REDACTED)
    for pattern, replacement in _PLACES:
        text = pattern.sub(replacement, text)
    return _WORD.sub(_without_query, text)


def _without_query(word: re.Match[str]) -> str:
    """Return an address without its query, where signatures are; any other word unchanged."""
    address, mark, query = word[0].partition("?")
    if not mark or "://" not in address:
        return word[0]
    return address + query[query.find(")") :] if ")" in query else address
