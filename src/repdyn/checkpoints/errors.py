"""Errors of one checkpoint, and errors that end a whole sweep."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten

import httpx2
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from repdyn.utils.redaction import redacted


class CheckpointError(Exception):
    """A checkpoint that cannot be measured; the failure is stored, and the sweep continues with the next one."""


class OutOfBoundsError(CheckpointError):
    """A checkpoint that exceeds a limit of this sweep; not stored, since another sweep may have other limits."""


class SweepStoppedError(Exception):
    """Nothing more can be measured (no network, no disk space); the same command resumes the sweep later."""


class NoConnectionError(SweepStoppedError):
    """The hub cannot be reached; the message says what goes without it."""

    def __init__(self, endpoint: str, reason: str) -> None:
        super().__init__(
            f"no connection to {endpoint} ({reason}); HF_ENDPOINT names another hub, HF_HUB_OFFLINE=1 measures what is "
            "in the hub's cache, and a local folder of checkpoints needs no network"
        )


class CancelledError(Exception):
    """A download cancelled because the sweep ends."""


_LONGEST = 400
_NONSENSE = (
    *(httpx2.HTTPError, httpx2.InvalidURL),
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError),
)


@contextmanager
def hub_errors(what: str, endpoint: str) -> Iterator[None]:
    """Convert exceptions of the hub client into CheckpointError or SweepStoppedError.

    Args:
        what: the requested repository, or repository@commit.
        endpoint: address of the hub.
    """
    try:
        yield
    except (CheckpointError, SweepStoppedError, CancelledError, HFValidationError):
        raise  # the last is an invalid repository name, an error of the command
    except GatedRepoError as error:
        raise CheckpointError(
            f"access to {what} is gated; accept its conditions on {endpoint}, then log in with 'hf auth login'"
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"the hub has no such revision of {what} (404)") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"the hub knows no repository {what} (404); if it is private, log in with 'hf auth login'"
        ) from error
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        raise _without_connection(what, endpoint, error) from error
    except EntryNotFoundError as error:
        raise CheckpointError(f"a file of {what} is not on the hub (404): {_in_one_line(error)}") from error
    except HfHubHTTPError as error:
        raise CheckpointError(f"{what}: {_answer(error)}") from error
    except _NONSENSE as error:
        # a portal or proxy may answer instead of the hub
        broken = "the connection broke off" if isinstance(error, httpx2.HTTPError) else "the answer made no sense"
        raise CheckpointError(f"{broken} while {what} was fetched: {_described(error)}") from error
    except RuntimeError as error:
        if "home directory" not in str(error):
            raise
        raise SweepStoppedError(
            "the hub's cache needs a home directory, and this user has none; set HOME, or HF_HOME to a folder"
        ) from error
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise SweepStoppedError(
                f"the disk is full ({error.filename or what}); free some space, or choose another place with "
                "--downloads FOLDER, then repeat the command"
            ) from error
        raise CheckpointError(f"{what} could not be fetched: {_in_one_line(error)}") from error


@contextmanager
def model_errors(what: str) -> Iterator[None]:
    """Convert any exception while loading or measuring one model into a CheckpointError."""
    import torch  # which whatever loads or measures a model has imported

    try:
        yield
    except (CheckpointError, SweepStoppedError):
        raise
    except Exception as error:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise CheckpointError(
                f"out of memory: {_in_one_line(error)}; try --device-map auto (parts of the model wait in memory or on "
                "disk), --dtype bfloat16, or a smaller --tokens-per-forward"
            ) from error
        raise CheckpointError(f"{what}: {_described(error)}") from error


def _answer(error: HfHubHTTPError) -> str:
    status = error.response.status_code
    if status == 429:
        return "the hub asks to slow down (429) and still did after repeated waiting; try later, or log in"
    return f"the hub answered {status}: {_in_one_line(error)}"


def _without_connection(what: str, endpoint: str, error: Exception) -> Exception:
    """Return the error for a failed connection: no connection ends the sweep, a bad answer fails one checkpoint."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, HfHubHTTPError):
            return CheckpointError(f"{what}: {_answer(cause)}")
        if isinstance(cause, httpx2.TimeoutException) and not isinstance(cause, httpx2.ConnectTimeout):
            return CheckpointError(f"the hub did not answer in time when asked for {what}")
        cause = cause.__cause__
    if isinstance(error, OfflineModeIsEnabled):
        return SweepStoppedError(
            f"HF_HUB_OFFLINE is set, and the hub's cache lacks some of {what}; unset it, or give a local folder"
        )
    return NoConnectionError(endpoint, _in_one_line(error))


def _described(error: BaseException) -> str:
    if type(error).__name__ == "UnpicklingError":  # the message of torch recommends running the code
        return "a file is damaged, or contains code that would run when it is read"
    return f"{type(error).__name__}: {_in_one_line(error)}"


def _in_one_line(error: BaseException) -> str:
    # Redacted before it is shortened, since half a token is not recognised as one; control characters affect terminals.
    text = "".join(character if character.isprintable() else " " for character in redacted(str(error)))
    return shorten(text, _LONGEST, placeholder=" ...") or type(error).__name__
