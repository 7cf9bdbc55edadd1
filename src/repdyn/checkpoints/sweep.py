"""A sweep of checkpoints, from its options to its outcome.

- :func:`sweep` is the public function: its arguments become a record of options.
- :func:`prepare` finds out, without loading a model, which checkpoints they select, in which store,
  and what is wrong with them.
- :func:`measure_prepared` measures what the store lacks; :mod:`repdyn.checkpoints.plans` says
  instead what it would cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tqdm import tqdm

from repdyn.checkpoints.audit import audit, fault_lines, foreign_targets
from repdyn.checkpoints.completion import check_contradictions, completed
from repdyn.checkpoints.errors import CheckpointError, NoConnectionError, SweepStoppedError
from repdyn.checkpoints.histories import list_histories
from repdyn.checkpoints.hub import Hub, repository_and_revision
from repdyn.checkpoints.options import (
    CompleteOptions,
    DeviceMap,
    Engine,
    Loads,
    SweepOptions,
    available_device,
    is_here,
)
from repdyn.checkpoints.sources import REPOSITORY, find_selections, select_shard
from repdyn.checkpoints.suites import ModelLike, models_of
from repdyn.checkpoints.targets import Selection, Target
from repdyn.checkpoints.tasks import FOREIGN, Task, partition_tasks
from repdyn.metrics import DEFAULT_METRICS, MetricLike
from repdyn.probe.design import NO_MASSIVE
from repdyn.store import Store, store_at
from repdyn.store.schema import FINISHED
from repdyn.utils.choices import Dtype
from repdyn.utils.printing import print_above_bars, without_reports

if TYPE_CHECKING:
    import pandas as pd

    from repdyn.capture.blocks import LayerPatterns
    from repdyn.checkpoints.measuring import Outcome
    from repdyn.probe import Probe

UPLOAD_SECONDS = 120.0
"""How long the end of a sweep waits for the uploads to a remote store."""

INTERRUPTED_UPLOAD_SECONDS = 10.0
"""How long one that an error or Ctrl-C ends waits for them."""

OF_FINISHED = (*DEFAULT_METRICS, f"anisotropy@{NO_MASSIVE}")
"""What is measured by default where all models are finished ones: a few vectors of massive norm
make most of the anisotropy of many.
"""


@dataclass(frozen=True)
class Prepared:
    """The plan of a sweep, complete before a model is loaded."""

    options: CompleteOptions
    hub: Hub
    store: Store
    selections: Sequence[Selection]
    foreign: Mapping[Target, dict[str, str]]
    """The marks of checkpoints that are not measured because they have weights of another one."""
    problems: Sequence[str]
    """Why some of what was asked for cannot be listed."""
    notes: Sequence[str]
    """What is not as its description says, or wrong with its files."""


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
    """Why some measurements are not in a remote store yet, and what uploads them; None if all are.
    """

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows of the swept runs, those of failures with their reasons included."""
        import pandas as pd

        # a run of which nothing is stored is in no list
        frames = [self.store.to_pandas(run) for run in self.runs if run in self.store.runs()]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def sweep(
    source: str | Path | Loads | None = None,
    *,
    store: str | Path | None = None,
    suite: str | Path | Sequence[ModelLike] = (),
    revisions: str = "all",
    pattern: str | None = None,
    name: str | None = None,
    like: str | Path | None = None,
    probe: Probe | str | Path | None = None,
    text: str | None = None,
    encoding: str | None = None,
    design: str | None = None,
    classes: str | Sequence[str] = (),
    sequence_length: int | None = None,
    max_vectors: int | None = None,
    batch_vectors: int | None = None,
    metrics: str | Sequence[MetricLike] = (),
    layers: LayerPatterns = None,
    loss: bool | None = None,
    device: str = "auto",
    dtype: Dtype | None = None,
    device_map: DeviceMap | None = None,
    attention: str | None = None,
    trust_remote_code: bool = False,
    load: str | None = None,
    tokenizer: str | None = None,
    tokens_per_forward: int | None = None,
    retry_failed: bool = False,
    max_disk: int | None = None,
    downloads: Path | None = None,
    timeout: int = 4 * 3600,
    engine: Engine = "serial",
    workers: int = 2,
    shard: tuple[int, int] | None = None,
    quiet: bool = False,
) -> Sweep:
    """Measure checkpoints one after another into a store; what it has already is not measured
    again.

    What is wrong with one checkpoint keeps no other from being measured: it is stored, and among
    the ``failures`` of the outcome.

    >>> repdyn.sweep("EleutherAI/pythia-70m", revisions="log", store="sweeps")  # doctest: +SKIP
    >>> repdyn.sweep("runs/quickstart/TIME", metrics=["two_nn"])  # doctest: +SKIP
    >>> steps = {step: f"checkpoints/{step}.ckpt" for step in (100, 200)}
    >>> loads = [(step, lambda path=path: Mine.load_from_checkpoint(path)) for step,
    ...     path in steps.items()]
    >>> repdyn.sweep(loads, name="mine", probe=probe, store="sweeps").to_pandas()  # doctest: +SKIP

    Args:
        source: a run's folder, a folder of ``save_pretrained`` or ``.ckpt`` checkpoints, a GGUF
            file, a hub repository, also as "REPOSITORY@REVISION" or its address, or pairs of a step
            and a function that returns the model of that step. None where ``suite`` is given.
        store: folder or URL of the results; by default ``sweep`` beside local checkpoints, or
            ``sweeps``.
        suite: suites, their models, patterns, or YAML files, in place of a source.
        revisions: "all", "log" (closest to powers of two), "every:10", or names or steps separated
            by commas.
        pattern: regular expression for names of revisions or folders, with a group "step".
        name: of the run in the store; by default the repository, or the last two parts of the path.
        like: live run whose attention, precision, probe and metrics to use; by default the one
            whose folder the source is.
        probe: a probe or its file; by default the live run's own, or one made of the text.
        text: of the probe: "enwik8", "builtin", "hf:DATASET", or a path; by default "enwik8".
        encoding: of the text file, such as "cp1251"; by default by its byte order mark, or UTF-8.
        design: sampling design, see docs/sampling.md; by default "independent".
        classes: word classes to measure as subsets, as in "token_rank@rare".
        sequence_length: tokens in a window; by default as the design has it, at most the model's
            context.
        max_vectors: vectors measured per layer, in batches of 4096; by default 4096.
        batch_vectors: vectors in a batch; by default all, at most 4096.
        metrics: names, as "two_nn[discard=0.8]@no_sink", Metric objects, or "all"; by default a
            live run's, or the usual two; of finished models alone "anisotropy@no_massive" too.
        layers: pattern of the blocks' names, as "layers.*", or one for each stack; by default they
            are detected.
        loss: measure the loss on the probe too; by default where a model has its output head.
        device: "cpu", "cuda", "cuda:1"; "auto" is cuda if available.
        dtype: precision of the weights; by default a live run's, else "float32", also where they
            are stored in half precision; "auto" keeps that.
        device_map: distribute a large model over devices and disk.
        attention: its implementation, such as "eager"; by default the live run's, or that of the
            configuration.
        trust_remote_code: run Python code that comes with a model.
        load: function of your own, as "module:function", that returns the model of a checkpoint's
            path.
        tokenizer: its folder or hub repository; by default the model's own.
        tokens_per_forward: tokens of one forward pass; by default 2048 on a CPU, else 8192.
        retry_failed: measure checkpoints that failed before once more.
        max_disk: disk space for weights, in bytes; by default without a limit.
        downloads: folder of the weights until they are measured; by default
            ``~/.cache/repdyn/downloads``.
        timeout: seconds for one download or listing.
        engine: measure one checkpoint after another, "serial", or several at once with "ray".
        workers: concurrent checkpoints on each machine, with Ray.
        shard: the number of one of N equal parts, counted from 1, and N; by default all is
            measured.
        quiet: show no progress.

    Returns:
        The store, what was measured, and why some checkpoints were not.

    Raises:
        ValueError: the options select nothing, something that does not exist, or contradict each
            other.
        SweepStoppedError: no connection, or no space on the disk; the same call goes on from there.
    """
    # Python has no shell around it that expands the home directory
    if isinstance(source, str | Path) and str(source).startswith("~"):
        source = Path(source).expanduser()
    if tokenizer is not None and tokenizer.startswith("~"):
        tokenizer = str(Path(tokenizer).expanduser())
    options = SweepOptions(
        source=source,
        store=store,
        suite=suite,
        revisions=revisions,
        pattern=pattern,
        name=name,
        like=like,
        probe=probe,
        text=text,
        encoding=encoding,
        design=design,
        classes=classes,
        sequence_length=sequence_length,
        max_vectors=max_vectors,
        batch_vectors=batch_vectors,
        metrics=metrics,
        layers=layers,
        loss=loss,
        device=device,
        dtype=dtype,
        device_map=device_map,
        attention=attention,
        trust_remote_code=trust_remote_code,
        load=load,
        tokenizer=tokenizer,
        tokens_per_forward=tokens_per_forward,
        retry_failed=retry_failed,
        max_disk=max_disk,
        downloads=downloads,
        timeout=timeout,
        engine=engine,
        workers=workers,
        shard=shard,
    )
    return measure_prepared(prepare(options), quiet=quiet)


def prepare(requested: SweepOptions, *, to_plan: bool = False) -> Prepared:
    """Find what the options of a sweep select, and what is wrong with it.

    ``to_plan`` says that nothing is to be measured: no device is needed, nor a network.
    """
    requested = _with_named_revision(requested)
    check_contradictions(requested)
    # a cluster has devices of its own
    if not to_plan and (requested.engine == "serial" or requested.device == "auto"):
        requested = replace(requested, device=available_device(requested.device))
    options = completed(requested)
    hub = Hub(timeout_seconds=options.timeout)
    notes: list[str] = []
    try:
        selections, problems = find_selections(options, hub)
    except NoConnectionError as error:
        # a plan downloads nothing: what the cache knows is enough for it
        if not to_plan:
            raise
        hub.offline = True
        try:
            selections, problems = find_selections(options, hub)
        except SweepStoppedError:  # the cache has nothing of it
            raise error from None
        notes.append(f"{error}; this plan is of what the hub's cache has")
    if not requested.metrics:
        options = _with_default_metrics(options, selections)
    for selection in selections:
        notes += selection.notes()
    notes += _notes_on_names(options)
    foreign: dict[Target, dict[str, str]] = {}
    # the files of local checkpoints are not compared
    histories = [] if options.is_local else list_histories(selections, hub)
    for history in histories:
        findings = audit(history)
        foreign |= foreign_targets(history, findings)
        notes += fault_lines(history, findings)
    # after the audit, which compares all checkpoints, also those of other shards
    chosen = select_shard(selections, *options.shard) if options.shard else selections
    return Prepared(
        options=options,
        hub=hub,
        store=store_at(options.place()),
        selections=chosen,
        foreign=foreign,
        problems=problems,
        notes=notes,
    )


def _with_named_revision(options: SweepOptions) -> SweepOptions:
    """Return options whose source is a repository alone, where it was an address or named its
    revision too.
    """
    source = options.source
    if not isinstance(source, str) or is_here(source):
        return options
    repository, revision = repository_and_revision(source)
    if not REPOSITORY.fullmatch(repository):
        return options
    if revision is None:
        return replace(options, source=repository)
    if options.revisions != "all":
        raise ValueError(
            f"expected revisions in one place, got {source!r} and revisions={options.revisions!r}; "
            "leave one out"
        )
    return replace(options, source=repository, revisions=revision)


def _with_default_metrics(
    options: CompleteOptions, selections: Sequence[Selection]
) -> CompleteOptions:
    """Return options with what is measured of finished models, where all are such and no live run
    names metrics.
    """
    # those of a live run
    if options.metrics != DEFAULT_METRICS:
        return options
    stages = {target.stage for selection in selections for target in selection.targets}
    return replace(options, metrics=OF_FINISHED) if stages == {FINISHED} else options


def _notes_on_names(options: CompleteOptions) -> list[str]:
    """Say that a folder is measured where its path is also the name of a published model."""
    source = options.source
    if not (isinstance(source, str) and options.is_local and REPOSITORY.fullmatch(source)):
        return []  # all suites are read otherwise
    if not models_of(source):
        return []
    return [
        f"the folder {Path(source).absolute()} is measured, not the hub repository {source}; for "
        "that, run the command in another folder"
    ]


def make_probe(options: CompleteOptions, hub: Hub, selection: Selection) -> Probe:
    """Return the probe that was given, or one made for the model of a selection or the checkpoints
    in a folder.
    """
    from repdyn.probe import Probe  # with torch and transformers, which plans do without

    if options.probe is not None:
        return Probe.load(options.probe) if isinstance(options.probe, str | Path) else options.probe
    from repdyn.checkpoints.probes import hub_probe, local_probe

    if selection.model is None:
        return local_probe(Path(cast(str, options.source)), selection.targets, options, hub)
    return hub_probe(selection, options, hub)


def tasks_of(
    selections: Sequence[Selection], options: CompleteOptions, hub: Hub
) -> tuple[list[Task], list[str]]:
    """Return the selected checkpoints with their probes, and why some have no probe."""
    tasks: list[Task] = []
    problems: list[str] = []
    for selection in selections:
        try:
            probe = make_probe(options, hub, selection)
        # a model without a tokenizer, say, keeps no other from being measured
        except CheckpointError as error:
            problems.append(f"{selection.run}: {error}")
        else:
            tasks += [Task(target, probe) for target in selection.targets]
    return tasks, problems


def measure_prepared(
    prepared: Prepared, *, quiet: bool = False, show: Callable[[str], None] = print_above_bars
) -> Sweep:
    """Measure what the store lacks of what :func:`prepare` found, and wait for its uploads.

    Unless ``quiet``, ``show`` prints line by line what happens.
    """
    # with torch and transformers, which plans do without
    from repdyn.checkpoints.measuring import check_comparable

    options = prepared.options
    store = prepared.store
    if quiet:
        show = _show_nothing
    every_task, without_probe = tasks_of(prepared.selections, options, prepared.hub)
    # those with weights of another checkpoint are marked in the store, under the same keys
    tasks = [task for task in every_task if task.target not in prepared.foreign]
    check_comparable(tasks, store, options)
    by_state = partition_tasks(tasks, store, options)
    # until all is measured: whoever interrupts a sweep does not wait for two minutes
    upload_seconds = INTERRUPTED_UPLOAD_SECONDS
    try:
        _store_foreign(every_task, prepared)
        if by_state.done:
            n_done = len(by_state.done)
            show(f"{n_done} of {len(tasks)} checkpoints are in {store.location} already")
        outcomes = _measure(by_state.waiting, prepared, quiet=quiet, show=show)
        upload_seconds = UPLOAD_SECONDS
    finally:
        # what was measured before an error is uploaded too
        not_uploaded = store.drain(upload_seconds)
        if not_uploaded is not None:
            show(not_uploaded)
    failures = [
        *prepared.problems,
        *without_probe,
        *(f"{end.task.target}: {end.text}" for end in outcomes if end.state == "failed"),
        *(
            f"{task.target}: failed before; retry_failed=True retries it"
            for task in by_state.failed_before
        ),
    ]
    # each once, in order: a selection may have a run of averaged weights beside that of raw ones
    runs = [target.run for selection in prepared.selections for target in selection.targets]
    return Sweep(
        store=store,
        runs=tuple(dict.fromkeys(runs)),
        measured=tuple(str(end.task.target) for end in outcomes if end.state == "measured"),
        failures=tuple(failures),
        not_uploaded=not_uploaded,
    )


def _store_foreign(tasks: Sequence[Task], prepared: Prepared) -> None:
    """Store of the checkpoints with weights of another one why they are not measured."""
    from repdyn.checkpoints.measuring import store_failure

    options = prepared.options
    store = prepared.store
    for task in tasks:
        marks = prepared.foreign.get(task.target, {})
        # written once, so that a repeated sweep changes no file
        if marks and marks != task.stored_marks(store, options):
            (name, owner), *_ = marks.items()
            store_failure(task, store, options, f"{FOREIGN[name]} {owner}", **marks)


def _measure(
    tasks: Sequence[Task], prepared: Prepared, *, quiet: bool, show: Callable[[str], None]
) -> list[Outcome]:
    """Measure checkpoints one after another, or with Ray, under a bar."""
    from repdyn.checkpoints.downloads import Downloads
    from repdyn.checkpoints.measuring import collect, measure_tasks

    options = prepared.options
    # hidden where standard error is no terminal
    disable = True if quiet else None
    bar = tqdm(total=len(tasks), desc="checkpoints", disable=disable, leave=False)
    if options.engine == "ray":
        from repdyn.checkpoints.ray_engine import sweep_with_ray  # an optional dependency

        outcomes = sweep_with_ray(tasks, prepared.store, options, prepared.hub)
    else:
        downloads = Downloads(prepared.hub, options)
        outcomes = measure_tasks(tasks, prepared.store, options, downloads, bar.set_postfix_str)
    # remarks of transformers on a model that works, such as kernels that are not installed, look
    # like errors
    with without_reports():
        return collect(outcomes, bar, show)


def _show_nothing(text: str) -> None:
    """Show no line: what happened is in the store, and in what the sweep returns."""
