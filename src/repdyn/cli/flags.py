"""Messages of Python in the words of a command line: ``probe=FILE`` is ``--probe FILE``."""

# Imports only what is quick to import: --help must not wait for torch.
import re
from dataclasses import fields

from repdyn.checkpoints.options import SweepOptions
from repdyn.utils.arguments import ModelOptions

_IN_PYTHON = {"source", "attention"}
"""Arguments of a sweep that are no flags."""
OF_STUDIES = {
    *("before_after", "classes", "no_causal_mask", "run", "scalars", "sentences", "sequences"),
    *("store", "tokens_of_words"),
}
"""Arguments of studies that their messages name."""
_OF_LOADING = {field.name for kind in (SweepOptions, ModelOptions) for field in fields(kind)}
_NAMES = _OF_LOADING | OF_STUDIES
_CALL = r"[\w.]+\((?:[^()]|\([^()]*\))*\)"
_QUOTED = r"(?<!\w)'[^']*'(?!\w)"
_VALUE = r"""(?P<value>"[^"]*"|'[^']*'|[\w:-]*)"""
_ARGUMENT = re.compile(
    rf"{_CALL}|{_QUOTED}|(?<![\w\[-])(?P<name>{'|'.join(sorted(_NAMES - _IN_PYTHON))})={_VALUE}"
)


def in_flags(text: str) -> str:
    """Return a message of the Python API with flags in place of arguments; calls of functions and
    what stands in single quotes are left as they are.

    >>> in_flags('lower sequence_length=, or give dtype="float16" and retry_failed=True')
    'lower --sequence-length, or give --dtype float16 and --retry-failed'
    >>> in_flags("from Probe.from_texts(..., classes=...), or classes=words; got 'layers=3'")
    "from Probe.from_texts(..., classes=...), or --classes words; got 'layers=3'"
    """
    return _ARGUMENT.sub(_flag, text)


def _flag(argument: re.Match[str]) -> str:
    if argument["name"] is None:
        return argument[0]
    flag = f"--{argument['name'].replace('_', '-')}"
    value = argument["value"].strip('"')
    return flag if value in {"", "True"} else f"{flag} {value}"
