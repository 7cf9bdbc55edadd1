"""Errors of remote stores, and what to do about them."""

from __future__ import annotations

from repdyn.utils.redaction import redacted

_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError", "LocalTokenNotFoundError"}
_EXPIRED = ("expiredtoken", "expired", "invalidaccesskeyid", "invalid credentials")


class RemoteError(OSError):
    """An error of a remote store: no connection, no answer, or a transfer that failed again and again."""


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
    if isinstance(error, PermissionError) or status in {401, 403}:
        if status == 401 or any(word in text for word in _EXPIRED for text in texts):
            return "the credentials are expired or unknown: renew them, then repeat the command"
        return "the credentials lack the permission for it"
    return None


def brief(error: BaseException) -> str:
    """Return the first line of an error, without secrets."""
    return redacted(str(error).strip().partition("\n")[0] or type(error).__name__)
