"""A sweep from its options to its outcome: what is planned, measured, and what could not be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repdyn.checkpoints.audit import ForeignWeights, audit, fault_lines, find_foreign_targets, list_histories
from repdyn.checkpoints.errors import CheckpointError, NoConnectionError, SweepStoppedError
from repdyn.checkpoints.hub import Hub, map_concurrently, total_bytes
from repdyn.checkpoints.options import Loads, SweepOptions, available_device
from repdyn.checkpoints.plan import (
    Source,
    TaskList,
    check_contradictions,
    completed,
    find_sources,
    partition_tasks,
    select_shard,
    selection_notes,
    tasks_of,
)
from repdyn.checkpoints.suites import PublishedModel
from repdyn.checkpoints.targets import Target
from repdyn.checkpoints.temporary import remove_abandoned_folders
from repdyn.store import Store, open_store
from repdyn.store.store import remove_unfinished_files
from repdyn.utils.printing import shorten_list, without_reports
from repdyn.utils.redaction import redacted

if TYPE_CHECKING:
    import pandas as pd

Say = Callable[[str], None]
UPLOAD_SECONDS, INTERRUPTED_UPLOAD_SECONDS = 120.0, 10.0
"""How long the end of a sweep waits for the uploads to a remote store."""


@dataclass(frozen=True)
class Prepared:
    """Holds what a sweep needs before its first checkpoint."""

    options: SweepOptions
    """Complete."""
    hub: Hub
    store: Store
    sources: Sequence[Source]
    foreign: Mapping[Target, ForeignWeights]
    """The checkpoints that are not measured because they have weights of another one."""
    problems: Sequence[str]
    """Why some of what was asked for cannot be listed."""

    def n_distinct(self) -> dict[str, int]:
        """Return the number of existing checkpoints of each run without weights of another one."""
        return {
            source.selection.run: sum(
                target not in self.foreign and not target.missing_reason for target in source.selection.targets
            )
            for source in self.sources
        }


@dataclass(frozen=True)
class Sweep:
    """The outcome of a sweep."""

    store: Store
    runs: tuple[str, ...]
    """The runs that were swept."""
    measured: tuple[str, ...] = ()
    """The checkpoints measured by this call, each as "RUN REVISION"."""
    failures: tuple[str, ...] = ()
    """What is not measured, each as "RUN REVISION: REASON"."""
    not_uploaded: str | None = None
    """Why some measurements are not in a remote store yet, and what uploads them; None if all are."""

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows of the swept runs, those of failures with their reasons included."""
        import pandas as pd

        frames = [self.store.to_pandas(run) for run in self.runs if run in self.store.runs()]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def sweep(
    source: str | Path | Loads | None = None, *, store: str | Path | None = None, quiet: bool = False, **options: Any
) -> Sweep:
    """Measure checkpoints one after another into a store; what it has already is not measured again.

    >>> repdyn.sweep("EleutherAI/pythia-70m", revisions="log", store="sweeps")  # doctest: +SKIP
    >>> repdyn.sweep("runs/quickstart/TIME", metrics=["two_nn"])  # doctest: +SKIP
    >>> steps = {step: f"checkpoints/{step}.ckpt" for step in (100, 200)}
    >>> loads = [(step, lambda path=path: Mine.load_from_checkpoint(path)) for step, path in steps.items()]
    >>> repdyn.sweep(loads, name="mine", probe=probe, store="sweeps").to_pandas()  # doctest: +SKIP

    Args:
        source: a run's folder, a folder of ``save_pretrained`` or ``.ckpt`` checkpoints, a GGUF file, a hub repository,
            or pairs of a step and a function that returns the model of that step. None where ``suite`` is given.
        store: folder or URL; by default ``sweep`` beside local checkpoints, or ``sweeps``.
        quiet: show no progress.
        **options: fields of :class:`repdyn.checkpoints.options.SweepOptions`, the options of ``repdyn sweep``: suite,
            revisions, name, like, probe, text, tokenizer, sequence_length, max_vectors, design, metrics, layers,
            device, dtype, max_disk, retry_failed, engine and others.

    Returns:
        The store, what was measured, and why some checkpoints were not.

    Raises:
        ValueError: the options select nothing, something that does not exist, or contradict each other.
        SweepStoppedError: no connection, or no space on the disk; the same call goes on from there.
    """
    if isinstance(options.get("suite"), str):
        options["suite"] = [options["suite"]]
    prepared = prepare(SweepOptions(source=source, store=store, **options), say=lambda line: None)
    return measure_prepared(prepared, say=lambda line: None, quiet=quiet)


def prepare(
    options: SweepOptions, models: Sequence[PublishedModel] | None = None, *, say: Say, to_plan: bool = False
) -> Prepared:
    """Find what the options of a sweep select, or other models, and what is wrong with it.

    ``say`` prints a note; ``to_plan`` says that nothing is to be measured: no device is needed, nor a network.
    """
    if models is None:
        check_contradictions(options)
    # a cluster has devices of its own
    if not to_plan and (options.engine == "serial" or options.device == "auto"):
        options = replace(options, device=available_device(options.device))
    options = completed(options)
    hub = Hub(timeout_seconds=options.timeout)
    try:
        sources, problems = find_sources(options, hub, models)
    except NoConnectionError as error:
        if not to_plan:
            raise
        hub.offline = True
        try:
            sources, problems = find_sources(options, hub, models)
        except SweepStoppedError:  # the cache has nothing of it
            raise error from None
        say(f"{error}; this plan is of what the hub's cache has")
    for source in sources:
        for note in selection_notes(source.selection):
            say(note)
    # the files of local checkpoints are not compared
    histories = [] if options.is_local else list_histories([each.selection for each in sources], hub)
    for history in histories:
        for line in fault_lines(history, audit(history)):
            say(line)
    chosen = select_shard(sources, *options.shard) if options.shard else sources
    return Prepared(options, hub, open_store(options.place()), chosen, find_foreign_targets(histories), problems)


def measure_prepared(prepared: Prepared, *, say: Say, quiet: bool = False) -> Sweep:
    """Measure what the store lacks of what :func:`prepare` found, and wait for its uploads; ``say`` prints a note."""
    seconds = INTERRUPTED_UPLOAD_SECONDS
    try:
        # remarks of transformers on a model that works, such as kernels that are not installed, look like errors
        with without_reports():
            swept = _measured(prepared, say=say, quiet=quiet)
        seconds = UPLOAD_SECONDS
    finally:
        problem = prepared.store.drain(seconds)
        if problem is not None:
            say(problem)
    return replace(swept, not_uploaded=problem)


def _measured(prepared: Prepared, *, say: Say, quiet: bool) -> Sweep:
    from repdyn.checkpoints import run  # with torch and transformers, which plans do without
    from repdyn.checkpoints.downloads import downloads_of

    options, hub, store, foreign = prepared.options, prepared.hub, prepared.store, prepared.foreign
    downloads = downloads_of(options, hub)
    every_task, without_probe = tasks_of(prepared.sources)
    tasks = [task for task in every_task if task.target not in foreign]
    run.check_comparable(tasks, store, options)
    listed = partition_tasks(tasks, store, options)
    for task in every_task:
        if task.target in foreign:
            run.store_foreign(task, store, options, foreign[task.target])
    # those of running processes are locked, and remain
    removed = [*remove_unfinished_files(store), *remove_abandoned_folders(), *downloads.purge()]
    if removed:
        say(f"removed what killed processes left: {shorten_list([str(path) for path in removed])}")
    if listed.done:
        say(f"{len(listed.done)} of {len(tasks)} checkpoints are in {store.location} already")
    if options.engine == "ray":
        from repdyn.checkpoints.ray_engine import sweep_with_ray  # an optional dependency

        result = sweep_with_ray(listed.waiting, store, options, hub)
    else:
        display = run.ProgressDisplay(len(listed.waiting), shown=not quiet)
        result = run.measure_tasks(listed.waiting, store, options, downloads, display)
    problems = [*prepared.problems, *without_probe, *(f"{task.target}: {reason}" for task, reason in result.failed)]
    problems += [f"{task.target}: failed before; --retry-failed retries it" for task in listed.failed_before]
    runs = tuple(dict.fromkeys(source.selection.run for source in prepared.sources))
    return Sweep(store, runs, tuple(str(task.target) for task in result.measured), tuple(problems))


def make_plans(prepared: Prepared) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what a sweep would do for each model, as docs/cli.md describes it, and why some cannot be measured."""
    options, store, foreign = prepared.options, prepared.store, prepared.foreign
    plans, problems = [], [*prepared.problems]
    for source in prepared.sources:
        targets = source.selection.targets
        listed, waiting = TaskList([], [], []), [target for target in targets if target not in foreign]
        # where nothing is done, the probe is not needed, which may require a download
        if store.folder_of(source.selection.run).exists():
            tasks, without_probe = tasks_of([source])
            problems += without_probe
            listed = partition_tasks([task for task in tasks if task.target not in foreign], store, options)
            waiting = [task.target for task in listed.waiting]
        found = map_concurrently(lambda target: _download_bytes(target, prepared.hub), waiting)
        sizes = [size for size in found if isinstance(size, int)]
        owners = {target.revision: foreign[target] for target in targets if target in foreign}
        plans.append(
            {
                "model": source.selection.run,
                "design": options.design,
                "checkpoints": [target.revision for target in targets],
                "waiting": [target.revision for target in waiting],
                "done": len(listed.done),
                "failed_before": len(listed.failed_before),
                "download_bytes": sum(sizes),
                "largest_bytes": max(sizes, default=0),
                "minutes": _minutes(store, listed, options),
                "same_as": {name: each.owner for name, each in owners.items() if not each.in_part},
                "mixed_with": {name: each.owner for name, each in owners.items() if each.in_part},
                "would_fail": [redacted(reason) for reason in found if isinstance(reason, str)],
            }
        )
    return plans, problems


def _minutes(store: Store, listed: TaskList, options: SweepOptions) -> float | None:
    """Return how long the waiting ones take at the pace of the one measured last, without their downloads."""
    for key in (task.key(options) for task in reversed(listed.done)):
        rows = store.read(key) if key in store else []
        parts = [row.value for row in rows if row.metric in {"seconds/load", "seconds/forward", "seconds/kernels"}]
        if parts:
            return sum(parts) * len(listed.waiting) / 60
    return None


def _download_bytes(target: Target, hub: Hub) -> int | str:
    """Return how much is downloaded for a checkpoint, or why it cannot be measured."""
    try:
        files = target.remote_files(hub)
    except CheckpointError as error:
        return f"{target}: {error}"
    is_here = target.path is not None or hub.cached(target.repository, target.commit, files) is not None
    return 0 if is_here else total_bytes(files)
