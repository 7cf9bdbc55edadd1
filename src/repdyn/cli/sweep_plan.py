"""What ``repdyn sweep --dry-run`` shows."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence

from repdyn.hub.client import Hub
from repdyn.store import Store
from repdyn.sweep.estimate import Assumptions
from repdyn.sweep.plan import ModelPlan, plan_fields, print_plan
from repdyn.sweep.sources import Source, tasks_of
from repdyn.sweep.targets import Target
from repdyn.sweep.tasks import ForeignWeights, Settings, partition_tasks
from repdyn.utils.console import PrintableConsole
from repdyn.utils.records import print_records, wants_records

_FILE_WIDTH = 200


def make_plans(
    sources: Sequence[Source],
    foreign: Mapping[Target, ForeignWeights],
    store: Store,
    settings: Settings,
    options: Namespace,
) -> tuple[list[ModelPlan], list[str]]:
    """Return what a sweep would do for each model, and why some models cannot be measured."""
    plans, problems = [], []
    for source in sources:
        selection = source.selection
        unmeasured = {target.revision: foreign[target] for target in selection.targets if target in foreign}
        if not store.folder_of(selection.run).exists():
            # nothing is done, so the probe is not needed, which may require a download
            own = [target for target in selection.targets if target not in foreign]
            plans.append(ModelPlan(selection, own, 0, 0, unmeasured, options.design))
            continue
        tasks, without_probe = tasks_of([source])
        tasks = [task for task in tasks if task.target not in foreign]
        task_list = partition_tasks(tasks, store, settings, retry_failed=options.retry_failed)
        waiting = [task.target for task in task_list.waiting]
        counts = len(task_list.done), len(task_list.failed_before)
        plans.append(ModelPlan(selection, waiting, *counts, unmeasured, options.design))
        problems += without_probe
    return plans, problems


def show_plans(plans: Sequence[ModelPlan], hub: Hub, options: Namespace) -> None:
    """Print what --dry-run shows: a table, or records."""
    assumptions = Assumptions.from_options(options)
    if wants_records(options):
        print_records(plan_fields(plans, hub, assumptions), options)
    else:
        width = None if sys.stdout.isatty() else _FILE_WIDTH
        print_plan(plans, hub, PrintableConsole(width=width), assumptions)
