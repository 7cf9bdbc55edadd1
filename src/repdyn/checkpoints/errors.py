"""Errors of one checkpoint, and errors that end a whole sweep."""

import errno
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from textwrap import shorten

import httpx2
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from repdyn.utils.redaction import redacted


class CheckpointError(Exception):
    """A checkpoint that cannot be measured; the failure is stored, and the sweep continues with the
    next one.
    """


class OutOfBoundsError(CheckpointError):
    """A checkpoint that exceeds a limit of this sweep; not stored, since another sweep may have
    other limits.
    """


class SweepStoppedError(Exception):
    """Nothing more can be measured (no network, no disk space); the same command resumes the sweep
    later.
    """


class NoConnectionError(SweepStoppedError):
    """The hub cannot be reached; the message says what goes without it."""

    def __init__(self, endpoint: str, reason: str) -> None:
        super().__init__(
            f"no connection to {endpoint} ({reason}); HF_ENDPOINT names another hub, "
            "HF_HUB_OFFLINE=1 measures what is in the hub's cache, and a local folder of "
            "checkpoints needs no network"
        )


@contextmanager
def hub_errors(what: str, endpoint: str) -> Iterator[None]:
    """Convert exceptions of the hub client on a repository, or repository@commit, into those of
    this package.
    """
    try:
        yield
    except (CheckpointError, SweepStoppedError, CancelledError, HFValidationError):
        raise  # the last is an invalid repository name, an error of the command
    except Exception as error:
        raise _explained(cause_of(error), what, endpoint) from error


def cause_of(error: BaseException) -> BaseException:
    """Return why the hub did not answer, where its client says that a file is not in the cache
    either.
    """
    while isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _explained(cause: BaseException, what: str, endpoint: str) -> Exception:
    """Return what an exception of the hub client means: the error of one checkpoint, or the end of
    the sweep.
    """
    # the special cases first: many of these errors are subclasses of HfHubHTTPError and OSError
    text = _in_one_line(cause)
    match cause:
        case OfflineModeIsEnabled():
            return SweepStoppedError(
                f"HF_HUB_OFFLINE is set, and the hub's cache lacks some of {what}; unset it, or "
                "give a local folder"
            )
        case LocalEntryNotFoundError() | httpx2.ConnectError() | httpx2.ConnectTimeout():
            return NoConnectionError(endpoint, text)
        case GatedRepoError():
            reason = (
                f"access to {what} is gated; accept its conditions on {endpoint}, then log in with "
                "'hf auth login'"
            )
        case RepositoryNotFoundError():
            reason = (
                f"the hub knows no repository {what} (404); if it is private, log in with 'hf auth "
                "login'"
            )
        case HfHubHTTPError():
            reason = f"{what}: the hub answered {cause.response.status_code}: {text}"
        case httpx2.HTTPError():
            reason = f"the connection broke off while {what} was fetched: {_described(cause)}"
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return SweepStoppedError(
                f"the disk is full ({cause.filename or what}); free some space, or choose another "
                "place with downloads=, then repeat the sweep"
            )
        case TimeoutError():
            reason = f"{what} took longer than the limit of time; timeout= sets another one"
        case OSError():
            reason = f"{what} could not be fetched: {text}"
        case _:  # a portal or proxy may answer instead of the hub
            reason = f"the answer made no sense while {what} was fetched: {_described(cause)}"
    return CheckpointError(reason)


@contextmanager
def model_errors(what: str) -> Iterator[None]:
    """Convert any exception while loading or measuring one model into a CheckpointError.

    Where transformers names an argument of its own, it names the option that allows code of a
    repository.
    """
    import torch  # which whatever loads or measures a model has imported

    try:
        yield
    except (CheckpointError, SweepStoppedError):
        raise
    except Exception as error:
        if isinstance(
            error, MemoryError | torch.OutOfMemoryError
        ) or "can't allocate memory" in str(error):
            raise CheckpointError(
                f"out of memory: {_in_one_line(error)}; try "
                'device_map="auto" (parts of the model wait in memory or on disk), '
                'dtype="bfloat16", or a smaller tokens_per_forward='
            ) from error
        if "contains custom code" in str(error):
            raise CheckpointError(
                f"{what}: it needs Python code of its own repository; read that, then allow it "
                "with trust_remote_code=True"
            ) from error
        raise CheckpointError(f"{what}: {_described(error)}") from error


def _described(error: BaseException) -> str:
    # the message of torch recommends running the code
    if type(error).__name__ == "UnpicklingError":
        return "a file is damaged, or contains code that would run when it is read"
    return f"{type(error).__name__}: {_in_one_line(error)}"


def _in_one_line(error: BaseException) -> str:
    # a file name may hold what is no character
    text = str(error).encode(errors="backslashreplace").decode()
    # redacted before it is shortened, since half a token is not recognised as one
    return shorten(redacted(text), 400, placeholder=" ...") or type(error).__name__
