"""The beginning of a run: the model is tried, the run is there in the store, its sinks begin.

In this order, since each of these may refuse to go on: a model that cannot be measured leaves no
empty run behind, and a sink is told the id that the run has in the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from repdyn.capture.capture import try_model
from repdyn.capture.model import RunnableModel
from repdyn.capture.trial import prepare
from repdyn.capture.wrappers import class_name
from repdyn.measurement.options import Measurement
from repdyn.probe import Probe
from repdyn.store import Store
from repdyn.store.remote import RefusedError, RemoteError
from repdyn.tracking.budget import Cost
from repdyn.tracking.notices import Notices
from repdyn.tracking.options import TrackingOptions
from repdyn.tracking.origin import EarlierSteps, Origin
from repdyn.tracking.run import Measurer, TrackedRun
from repdyn.tracking.sinks import Loggers, RunInfo, Sinks
from repdyn.tracking.weights import AVERAGED, LastStep
from repdyn.tracking.writer import STORE_SECONDS, Writer
from repdyn.utils.attempts import TimeoutRunner
from repdyn.utils.caller_state import isolated_rng
from repdyn.utils.distributed import Ranks, n_processes


@dataclass(kw_only=True)
class Plan:
    """Holds the settings that a run begins with, except for its model and step."""

    options: TrackingOptions
    probe: Probe
    name: str
    store: Store | None
    label: str
    weights_kind: str
    origin: Origin | None
    settings: Mapping[str, Any]
    root_module: nn.Module | None
    cost: Cost
    loggers: Loggers
    notices: Notices

    @cached_property
    def measurement(self) -> Measurement:
        """Return what is measured at each step."""
        return Measurement(probe=self.probe, options=self.options)

    def info(self, run_id: str | None) -> RunInfo:
        """Return what the sinks are told."""
        return RunInfo(
            name=self.name,
            id=run_id,
            store=self.store,
            probe=self.probe.hash,
            weights_kind=self.weights_kind,
            metrics=tuple((request.name, request.subset) for request in self.measurement.requests),
            schedule=repr(self.cost.schedule),
            configuration=self.options.configuration or {},
            label=self.label,
            has_history=self.origin is not None,
            loggers=self.loggers,
        )


def begin_run(plan: Plan, ranks: Ranks, model: nn.Module, step: int) -> TrackedRun:
    """Begin a run at a step, on all ranks that measure.

    Raises:
        ValueError: a metric needs something the probe lacks, the model does not run on the probe,
            or ranks differ.
        OSError: the store cannot be written.
        RuntimeError: on ranks other than the first, when it failed there.
    """
    options = plan.options
    probe = plan.probe
    ranks.require_same(
        "what a run is tracked by", {"schedule": repr(plan.cost.schedule), "probe": probe.hash}
    )
    measurement = plan.measurement
    # the trial runs the model, which may draw random numbers
    with isolated_rng(), ranks.sync_errors():
        tried = _tried(plan, model, ranks)
    writer = Writer(plan.store, probe)
    run_id = None
    earlier = None
    state_cache = None
    if plan.store is not None:
        # the id is random: one rank draws it
        run_id = ranks.on_rank_zero(partial(begin_in_store, plan, plan.store, writer, step))
        earlier = EarlierSteps(
            plan.store,
            run_id=run_id,
            probe=probe.hash,
            layers=options.choice,
            compares=bool(measurement.comparing),
        )
        state_cache = earlier.cache(goes_on=plan.origin is not None)
    measurer = Measurer(
        measurement=measurement,
        on_error="raise" if options.on_error == "raise" else "record",
        ranks=ranks,
        cost=plan.cost,
        last_step=_last_step(plan, tried),
        root_module=plan.root_module,
        rank=dist.get_rank() if ranks.size == 1 and n_processes() > 1 else None,
        last_prepared=tried,
        state_cache=state_cache,
        model_name=class_name(model),
    )
    info = plan.info(run_id)
    sinks = Sinks(options.sinks_of_a_run(), plan.notices)
    if ranks.is_rank_zero:
        sinks.begin(info, step)
    # a training from the start has no steps to take over: nothing is looked up for it
    relatives = earlier if plan.origin is not None else None
    return TrackedRun(
        info=info,
        measurer=measurer,
        notices=plan.notices,
        writer=writer,
        sinks=sinks,
        earlier=relatives,
    )


def _last_step(plan: Plan, tried: RunnableModel | None) -> LastStep:
    """Return what keeps gradients and weights for the metrics that need them."""
    captures = plan.measurement.captures
    # an average has no gradients, and no step of an optimizer has made it
    if plan.weights_kind == AVERAGED:
        captures = frozenset()
    return LastStep(captures, plan.cost.schedule, None if tried is None else tried.module)


def begin_in_store(plan: Plan, store: Store, writer: Writer, step: int) -> str:
    """Begin the run in the store, on the first of the ranks, and return its id."""
    try:
        # apart from the writing, which goes to this machine whether or not a remote store answers
        TimeoutRunner(STORE_SECONDS)(f"reading {store.location}", store.refresh)
    except RefusedError:
        raise
    except (RemoteError, TimeoutError) as error:
        plan.notices.once(
            "remote", f"{error}; rows are stored in {store.path} and uploaded when it answers"
        )
    parent = {}
    if plan.origin is not None:
        origin = plan.origin
        parent = {"parent": origin.run_id, "parent_step": step, "parent_store": origin.store}
    about = {
        "metrics": [f"{request.name}@{request.subset}" for request in plan.measurement.requests],
        "layers": plan.options.choice,
        "schedule": repr(plan.cost.schedule),
        "n_steps": plan.cost.n_steps,
        "probe": plan.probe.hash,
        "probe_name": plan.probe.name,
        "weights_kind": plan.weights_kind,
        "training": plan.settings,
        "against": plan.options.earlier,
    }
    run = writer.call("writing to", lambda store: store.begin_run(plan.name, about, **parent))
    return run.id


def _tried(plan: Plan, model: nn.Module, ranks: Ranks) -> RunnableModel | None:
    """Return the model once it has run on a few windows of the probe, left as it was; raise what
    is wrong with it.

    None where that is no fault of the configuration, or of some ranks alone: the first measurement
    will tell.
    """
    prepared = None
    fault: Exception | None = None
    try:
        prepared = prepare(
            model,
            plan.probe,
            plan.options.layers,
            forward=plan.options.forward,
            root_module=plan.root_module,
            keep_hooks=plan.options.keep_hooks,
        )
        try_model(prepared, plan.probe)
    except (OSError, MemoryError, torch.OutOfMemoryError):
        pass  # there may be memory, space or a connection by then
    except Exception as error:
        fault = error
    # a fault of the configuration is one on all ranks
    if all(ranks.all_gather(fault is not None)) and fault is not None:
        raise fault
    return prepared


def averaged_plan(plan: Plan) -> Plan:
    """Return the plan of the run of the averaged weights, beside that of the trained ones."""
    origin = plan.origin
    averaged = None
    if origin is not None and origin.averaged is not None:
        averaged = Origin(origin.averaged, origin.store)
    # notices of its own: each run tells once of what is undefined, and counts its own steps
    return replace(
        plan,
        name=f"{plan.name} ({AVERAGED})",
        label=f"{plan.label}_{AVERAGED}" if plan.label else AVERAGED,
        weights_kind=AVERAGED,
        origin=averaged,
        notices=Notices(plan.options.on_error),
    )
