"""Errors of remote stores, and what to do about them."""

from __future__ import annotations

import re

from repdyn.utils.redaction import redacted

_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError", "LocalTokenNotFoundError"}
_EXPIRED = ("expiredtoken", "expired", "invalidaccesskeyid", "invalid credentials")
# as the storage of large files on the Hugging Face hub says it
_XET_STATUS = re.compile(r"HTTP status client error \((40[13]) ")
_BUSY = {429, 503}
_SECONDS = re.compile(r"([0-9]{1,9})")
_RESET = re.compile(r"\bt\s*=\s*([0-9]{1,9})\b")


class RemoteError(OSError):
    """An error of a remote store: no connection, no answer, or a transfer that failed again and again."""

    wait_seconds = 0.0
    """How long the server asks to wait before the next request; 0 if it does not."""


class ConflictError(RemoteError):
    """An error of a change that was to be made to a state of the remote store which is no longer the last one."""


class RefusedError(RemoteError):
    """An error of a remote store that repeating does not help: credentials, permissions, a missing bucket."""


def refusal_of(error: BaseException) -> str | None:
    """Return what to do about an error that repeating does not help; None for any other."""
    texts = [str(error).lower()]
    if error.__cause__ is not None:
        texts.append(str(error.__cause__).lower())
    names = {type(error).__name__, type(error.__cause__).__name__}
    if names & _CREDENTIALS:
        return "set up credentials, such as AWS_PROFILE, gcloud auth application-default login, or hf auth login"
    if "(400) when calling the headobject" in texts[-1]:
        # an answer to HEAD has no body, which would say why; S3 answers so to a token that has expired
        return "the credentials are probably expired: renew them, then repeat the command"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if named := _XET_STATUS.search(str(error)):
        status = int(named[1])
    if isinstance(error, PermissionError) or status in {401, 403}:
        if status == 401 or any(word in text for word in _EXPIRED for text in texts):
            return "the credentials are expired or unknown: renew them, then repeat the command"
        return "the credentials lack the permission for it"
    return None


def requested_wait(error: BaseException) -> float:
    """Return the seconds that a busy server asks to wait, in ``Retry-After`` or ``RateLimit``; 0 if it does not."""
    response = getattr(error, "response", None)
    if getattr(response, "status_code", None) not in _BUSY:
        return 0.0
    headers = getattr(response, "headers", {})
    named = _SECONDS.fullmatch(headers.get("Retry-After", "").strip()) or _RESET.search(headers.get("RateLimit", ""))
    return float(named[1]) if named else 0.0


def brief(error: BaseException) -> str:
    """Return the first line of an error, and of its cause where it only says what failed, without secrets."""
    lines = [str(error).strip().partition("\n")[0] or type(error).__name__]
    if type(error) is RuntimeError and error.__cause__ is not None:
        lines.append(brief(error.__cause__))
    return redacted(": ".join(lines))
