"""The commands that list something: ``repdyn insights``, ``alerts`` and ``metrics``, as text, JSON or CSV."""

# Imports only what is quick to import: --help must not wait for torch.
from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repdyn.utils.arguments import SuggestingParser, add_store_command
from repdyn.utils.records import add_record_options, print_records, wants_records

if TYPE_CHECKING:
    from repdyn.alerts import Rule
    from repdyn.metrics import Metric
    from repdyn.store import Store

_INSIGHTS_EXAMPLES = """examples:
  repdyn insights runs/quickstart/TIME
  repdyn insights sweeps --run EleutherAI/pythia-70m
  repdyn insights RUN --json | jq '.[].status'
"""
_ALERTS_EXAMPLES = """examples:
  repdyn alerts runs/quickstart/TIME
  repdyn alerts sweeps --run EleutherAI/pythia-70m --rules alerts.yaml
  repdyn alerts --print-rules > alerts.yaml    the default rules, to be edited
  repdyn alerts RUN --fail && echo healthy     status 1 if there is an alert
  repdyn alerts RUN --json | jq '.[].alerts[].message'
"""
_METRICS_EXAMPLES = """examples:
  repdyn metrics
  repdyn metrics --markdown > all_metrics.md
  repdyn metrics --json | jq -r '.[].name'
"""


def add_listings(commands: argparse._SubParsersAction[SuggestingParser]) -> None:
    """Add the commands that list something."""
    insights = add_store_command(
        commands, "insights", "say what happened in the runs of a store", _INSIGHTS_EXAMPLES, _insights
    )
    add_record_options(insights)
    alerts = add_store_command(
        commands, "alerts", "list the alerts of the runs of a store", _ALERTS_EXAMPLES, _alerts, nargs="?"
    )
    alerts.add_argument("--rules", type=Path, metavar="FILE", help="YAML file of rules (default: those of each run)")
    alerts.add_argument("--fail", action="store_true", help="exit with status 1 if there is an alert")
    formats = alerts.add_mutually_exclusive_group()
    formats.add_argument("--print-rules", action="store_true", help="print the default rules, as such a file")
    add_record_options(formats)
    metrics = commands.add_parser(
        "metrics",
        help="list every metric",
        description="List every metric.",
        epilog=_METRICS_EXAMPLES,
    )
    formats = metrics.add_mutually_exclusive_group()
    formats.add_argument("--markdown", action="store_true", help="with settings and sources, as docs/all_metrics.md")
    add_record_options(formats)
    metrics.set_defaults(run_command=_metrics)


def _insights(options: argparse.Namespace) -> None:
    from repdyn.diagnosis import insights
    from repdyn.store import find_store
    from repdyn.terminal.alerts import print_insights

    found = insights(find_store(options.store), options.run, options.probe)
    if wants_records(options):
        print_records([each.as_dict() for each in found], options, each="statements")
    else:
        print_insights(found)


def _alerts(options: argparse.Namespace) -> None:
    from repdyn.alerts import RULES, as_yaml, read_rules
    from repdyn.store import find_store
    from repdyn.terminal.alerts import print_alerts

    if options.print_rules:
        print(as_yaml(RULES), end="")
        return
    if options.store is None:
        raise ValueError("expected the folder of a run or a store, got none; or --print-rules for the default rules")
    store, rules = find_store(options.store), read_rules(options.rules) if options.rules else None
    if wants_records(options):
        listed = _listed_alerts(store, options.run, options.probe, rules)
        print_records(listed, options, each="alerts")
        found = sum(len(run["alerts"]) for run in listed)
    else:
        found = print_alerts(store, options.run, probe=options.probe, rules=rules)
    if found and options.fail:
        raise SystemExit(1)


def _listed_alerts(
    store: Store, runs: Sequence[str] | None, probe: str | None, rules: Sequence[Rule] | None
) -> list[dict[str, Any]]:
    from repdyn.alerts import ALERT_COLUMNS, find_alerts, stored_rules
    from repdyn.tables.selection import select

    listed = []
    for (run, found), frame in select(store, runs, probe, columns=ALERT_COLUMNS).items():
        used = stored_rules(store.alerts_path(run)) if rules is None else rules
        alerts = [{**asdict(alert), "message": alert.message} for alert in find_alerts(frame, used)]
        steps = sorted(frame.loc[frame["layer"].notna(), "step"].unique().tolist())
        listed.append(
            {"run": run, "probe": found, "steps": steps, "rules": [rule.name for rule in used], "alerts": alerts}
        )
    return listed


def _metrics(options: argparse.Namespace) -> None:
    from repdyn.metrics import METRICS
    from repdyn.terminal.metric_list import markdown, print_metrics

    if wants_records(options):
        print_records([_listed_metric(metric) for metric in METRICS.values()], options)
    elif options.markdown:
        print(markdown(), end="")
    else:
        print_metrics()


def _listed_metric(metric: Metric) -> dict[str, Any]:
    from repdyn.metrics import DEFAULT_METRICS

    return {
        "name": metric.name,
        "meaning": metric.meaning,
        "family": metric.family,
        "range": metric.range,
        "unit": metric.unit or metric.name,
        "subsets": metric.subsets,
        "settings": dict(metric.settings),
        "position": metric.position,
        "per_head": metric.per_head,
        "probe_requires": metric.probe_requires or None,
        "source": metric.source,
        "default": metric.name in DEFAULT_METRICS,
    }
