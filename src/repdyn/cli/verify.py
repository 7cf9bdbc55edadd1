"""The command ``repdyn verify``: some checkpoints of a store are measured again and compared."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from repdyn.checkpoints.loading import add_timeout_option
from repdyn.utils.arguments import SuggestingParser, at_least
from repdyn.utils.ownership import temporary_folder
from repdyn.utils.records import add_record_options, print_records, wants_records
from repdyn.utils.redaction import redacted
from repdyn.utils.untrusted_names import printable
from repdyn.utils.urls import path_or_url

if TYPE_CHECKING:
    from repdyn.checkpoints.certificates import Certificate
    from repdyn.checkpoints.verification import Verified

DISAGREES, STOPPED = 1, 3
_EXAMPLES = """examples:
  repdyn verify sweeps
  repdyn verify hf://datasets/ORG/NAME --sample 5
  repdyn verify sweeps --seed 0 --relative 1e-5     the same choice each time, on the same machine

The weights are downloaded as for a sweep. A value agrees if it differs by at most ABSOLUTE + RELATIVE * |value|. Exit
status: 0 all agree; 1 a value differs, a checkpoint could not be measured, or a file has another checksum than its
certificate; 2 invalid arguments; 3 no network.
"""
_MAX_LISTED = 10


def main(arguments: Sequence[str], prog: str = "repdyn verify") -> None:
    """Measure a sample again, and print a line for each checkpoint.

    Raises:
        ValueError, OSError: no store, or none of its checkpoints can be measured again.
        SystemExit: with the status that --help explains.
    """
    options = build_parser(prog).parse_args(arguments)
    from repdyn.checkpoints.certificates import check_certificates
    from repdyn.checkpoints.downloads import DownloadLimits, Downloads
    from repdyn.checkpoints.errors import SweepStoppedError
    from repdyn.checkpoints.hub import Hub
    from repdyn.checkpoints.leftovers import remove_leftovers
    from repdyn.checkpoints.loading import Loading, check_device, resolved_device
    from repdyn.checkpoints.verification import choose, find_candidates, verify
    from repdyn.store import find_store
    from repdyn.utils.cache import cache_directory

    device = resolved_device(options.device)
    check_device(device)
    store = find_store(options.store)
    loading = Loading(device=device, trust_remote_code=options.trust_remote_code)
    candidates, left = find_candidates(store)
    chosen, others = choose(candidates, store, loading, sample=options.sample, seed=options.seed)
    if not chosen:
        left += others
        reason = left[0] if left else "it has live runs alone, whose weights it does not name"
        raise ValueError(f"expected checkpoints that can be measured again in {store.location}: {reason}")
    hub = Hub(timeout_seconds=options.timeout)
    limits = DownloadLimits(cache_directory() / "downloads", None, options.timeout, options.trust_remote_code)
    downloads = Downloads(hub, limits)
    for line in remove_leftovers(store, downloads):
        print(printable(line), file=sys.stderr)
    certified = check_certificates(store)
    try:
        with temporary_folder("verify") as folder:
            outcomes = verify(chosen, downloads, folder, relative=options.relative, absolute=options.absolute)
    except SweepStoppedError as error:
        print(printable(redacted(f"stopped: {error}")), file=sys.stderr)
        raise SystemExit(STOPPED) from error
    origins = [_origin(outcome, certified.of_checkpoint(store, outcome.run, outcome.step)) for outcome in outcomes]
    if wants_records(options):
        print_records([_fields(outcome) | origin for outcome, origin in zip(outcomes, origins, strict=True)], options)
    else:
        _print(outcomes, origins)
        print(
            f"{len(outcomes)} of {len(candidates)} checkpoints measured again; tolerances: relative "
            f"{options.relative:g}, absolute {options.absolute:g}"
        )
        print(printable(f"certificates: {certified.described}"))
    for name in certified.changed[:_MAX_LISTED]:
        print(printable(f"other content than certified: {name}"), file=sys.stderr)
    if certified.changed or any(outcome.failure or outcome.differences for outcome in outcomes):
        raise SystemExit(DISAGREES)


def _origin(outcome: Verified, certificates: Sequence[Certificate | None]) -> dict[str, Any]:
    """Return who measured a checkpoint, with which versions and when."""
    versions = outcome.rows[["repdyn_version", "torch_version", "transformers_version"]].drop_duplicates()
    return {
        "certified": bool(certificates) and None not in certificates,
        "authors": sorted({redacted(one.author) for one in certificates if one is not None and one.author}),
        "measured_with": [
            f"repdyn {one[0]}, torch {one[1]}, transformers {one[2]}" for one in versions.itertuples(index=False)
        ],
        "measured_at": max(outcome.rows["measured_at"]),
    }


def _print(outcomes: Sequence[Verified], origins: Sequence[dict[str, Any]]) -> None:
    for outcome, origin in zip(outcomes, origins, strict=True):
        if outcome.failure:
            line = f"not measured: {outcome.failure}"
        else:
            verdict = f"{len(outcome.differences)} differ" if outcome.differences else "all agree"
            line = f"{outcome.n_values} values, {verdict}; largest relative difference {outcome.largest:.1e}"
        print(printable(redacted(f"{outcome.checkpoint}: {line}")))
        by = f" by {', '.join(origin['authors'])}" if origin["authors"] else ""
        certified = "" if origin["certified"] else "; not certified"
        print(
            printable(
                f"  measured{by} with {'; '.join(origin['measured_with'])}, {origin['measured_at'][:10]}{certified}"
            )
        )
        for difference in outcome.differences[:_MAX_LISTED]:
            print(printable(f"  {difference}"))


def _fields(outcome: Verified) -> dict[str, Any]:
    return {
        "run": outcome.run,
        "step": outcome.step,
        "agrees": not (outcome.failure or outcome.differences),
        "values": outcome.n_values,
        "largest_difference": outcome.largest,
        "differences": outcome.differences,
        "reason": None if outcome.failure is None else redacted(outcome.failure),
    }


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Return a parser with every option of the command."""
    parser = SuggestingParser(
        prog=prog,
        description="Measure some checkpoints of a store again and compare the values.",
        epilog=_EXAMPLES,
        allow_abbrev=False,
    )
    parser.add_argument("store", type=path_or_url, metavar="RUN", help="store of a sweep, or its URL")
    parser.add_argument("--sample", type=at_least(1), default=3, help="number of checkpoints (default: %(default)s)")
    parser.add_argument("--seed", type=at_least(0), help="of the choice (default: another one each time)")
    parser.add_argument("--relative", type=_tolerance, default=1e-3, help="tolerance (default: %(default)g)")
    parser.add_argument("--absolute", type=_tolerance, default=1e-6, help="tolerance (default: %(default)g)")
    add_timeout_option(parser)
    parser.add_argument("--device", default="cpu", help="device to run models on (default: %(default)s)")
    parser.add_argument("--trust-remote-code", action="store_true", help="run Python code that comes with a model")
    add_record_options(parser)
    return parser


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to below 1, got {text!r}")
    return value
