"""The texts and tables of a report: what happened, runs, findings, alerts, fits, what was measured,
what failed.
"""

import math
from collections.abc import Sequence
from importlib.metadata import version

import pandas as pd

from repdyn.utils.numbers import NO_VALUE, number_text, short_count
from repdyn.views.display import display_of
from repdyn.views.judging import (
    STATUSES,
    DescribedRun,
    DescribedRuns,
    Insight,
    Status,
    comparison_statements,
)
from repdyn.views.judging.effects import Correlation
from repdyn.views.judging.findings import (
    JUDGED,
    MARKS,
    MEANINGS,
    PAPER,
    VERSION,
    Finding,
    findings_over_seeds,
    on_kind,
)
from repdyn.views.judging.fits import fits_of
from repdyn.views.judging.metrics import CAVEAT
from repdyn.views.judging.run import chosen_series
from repdyn.views.judging.usual import named_range
from repdyn.views.report.markup import Markup, details, joined, table, tag
from repdyn.views.tables.frames import failures, metrics_of, missing_values, values_of
from repdyn.views.tables.runs import differences
from repdyn.views.tables.style import KINDS, family_title, metric_title, subset_title
from repdyn.views.tables.texts import copies_line, cost_line, seconds_by_metric

MAX_CARDS = 3
"""Number of statements of a run that are visible; the others can be opened."""
MAX_WITH_CARDS = 3
"""Largest number of runs whose cards are visible; of more, each has one line."""
MAX_LINES = 8
"""Number of runs that have a visible line."""

_SIGNS: dict[Status, str] = {"failed": "\u2715", "watch": "!", "healthy": "\u2713", "unknown": "?"}


def glance(data: DescribedRuns) -> Markup:
    """Return the status of each run with its reason, and its statements; runs that failed come
    first.
    """
    runs = sorted(data.runs, key=lambda run: STATUSES.index(run.status[0]))
    abouts = [_about(run) for run in runs]
    is_shared = len(runs) > 1 and len(set(abouts)) == 1  # as of seeds of one model
    told = ["" for _ in runs] if is_shared else abouts
    has_cards = len(runs) <= MAX_WITH_CARDS
    lines = [_run_at_a_glance(run, about, has_cards) for run, about in zip(runs, told, strict=True)]
    more = lines[MAX_LINES:]
    shown = [*lines[:MAX_LINES], *([details(f"and {len(more)} more runs", *more)] if more else [])]
    of_all = (
        [tag("p", tag("small", f"All {len(runs)} runs: {abouts[0]}"), class_="headline")]
        if is_shared
        else []
    )
    between = [tag("div", *_differences(data), class_="between")] if len(runs) > 1 else []
    return joined([*of_all, *shown, *between])


def _about(run: DescribedRun) -> str:
    """Return what was run, and how it was measured."""
    rows, parameters = (
        run.rows,
        f", {short_count(run.parameters)} parameters" if run.parameters else "",
    )
    what = f"{rows['model'].iloc[0]}, {KINDS[run.causal]}{parameters}"
    return f"{what}; {run.extent}; {rows['layer'].nunique()} layers; {run.sampling}"


def _differences(data: DescribedRuns) -> list[Markup]:
    """Return in what runs differ: what is stored of their settings, and what was measured."""
    why = differences(data.runs)
    parts = [tag("p", f"These runs do not all compare: {why}.", class_="warning")] if why else []
    if data.not_seeds:
        parts.append(
            tag("p", f"Not shown as seeds of one model: {data.not_seeds}.", class_="warning")
        )
    statements = comparison_statements(data.runs, data.seeds)
    first, rest = (
        [tag("li", _link(each)) for each in part]
        for part in (statements[:MAX_CARDS], statements[MAX_CARDS:])
    )
    more = [details(f"{len(rest)} more differences", tag("ul", *rest))] if rest else []
    return [*parts, *([tag("ul", *first)] if first else []), *more]


def _link(statement: Insight) -> Markup:
    """Return a statement as a link to what it is about, if that is in the charts."""
    return (
        tag("a", statement.sentence, href=statement.link)
        if statement.link
        else joined([statement.sentence])
    )


def _run_at_a_glance(run: DescribedRun, about: str, has_cards: bool) -> Markup:
    """Return the status of a run, with cards of its statements; or with the first of them, and
    cards to be opened.
    """
    (status, reason), statements = run.status, run.insights.statements
    links = [*map(_link, statements)]
    cards = tag("div", *map(_card, statements[:MAX_CARDS]), class_="cards")
    if has_cards:
        more = [tag("li", link) for link in links[MAX_CARDS:]]
        content = [
            cards,
            *([details(f"{len(more)} more statements", tag("ul", *more))] if more else []),
        ]
    else:
        content = [details("more", cards)] if links else []
        reason = links[0] if links else reason
    badge = tag(
        "span",
        tag("span", _SIGNS[status], aria_hidden="true"),
        f" {status}",
        class_=f"status {status}",
    )
    headline = tag(
        "p",
        joined([badge, tag("b", run.label), reason, tag("small", about)], " "),
        class_="headline",
    )
    return tag("div", headline, *content, class_="run-glance")


def _card(insight: Insight) -> Markup:
    severity = tag("span", insight.severity, class_=f"severity {insight.severity}")
    return tag(
        "a", severity, insight.sentence, class_=f"card {insight.severity}", href=insight.link
    )


def opening(run: DescribedRun) -> dict[str, str]:
    """Return the metric and subset that the page opens a run with: those of its first alert,
    otherwise of its first statement, or the first ones. The page opens at the last step."""
    alerts_first = sorted(run.insights.statements, key=lambda statement: statement.kind != "alert")
    for statement in alerts_first:
        key = (statement.metric or "", statement.subset or "all")
        if key in run.series:
            metric, subset = key
            break
    else:
        metric, subset = next(chosen_series(run)).key
    return {"metric": metric, "subset": subset}


def first_run(data: DescribedRuns) -> int:
    """Return the number of the run that the page opens with: the first that failed or is watched,
    or was trained.
    """
    ranks = [(STATUSES.index(run.status[0]), len(run.steps) < 2) for run in data.runs]
    return min(range(len(ranks)), key=lambda number: (min(ranks[number][0], 2), ranks[number][1]))


BIBTEX = f"""@software{{repdyn,
  title = {{repdyn: representation dynamics of transformers}},
  author = {{{{repdyn developers}}}},
  version = {{{version("repdyn")}}},
  url = {{https://github.com/repdyn/repdyn}},
}}"""

MAX_ALERTS = 12
MAX_FAILURES = 200


def alerts_and_findings(data: DescribedRuns) -> Markup:
    """Return the alerts, then the published findings with their verdicts."""
    judged = [run for run in data.runs if run.findings and run.status[0] != "failed"]
    failed = [run.label for run in data.runs if run.status[0] == "failed"]
    parts = [_alerts(data.runs), tag("h3", "Published findings")]
    if failed:
        why = (
            "Published findings are about trainings that converge; they are not judged where the "
            "training failed: "
        )
        parts.append(tag("p", f"{why}{', '.join(failed)}."))
    if judged:
        of_run = {run.key: run.judged for run in data.runs}
        over_seeds = [
            (
                group.label,
                on_kind(
                    findings_over_seeds([of_run[member.key] for member in group.members]),
                    group.causal,
                ),
            )
            for group in data.seeds
            if any(metric in JUDGED for metric, _ in group.series)
        ]
        parts.append(_findings([*((run.label, run.findings) for run in judged), *over_seeds]))
    elif len(failed) < len(data.runs):
        parts.append(tag("p", "None is about what was measured."))
    return joined([*parts, _measured_models(data.runs)])


_USUAL_HEADINGS = ("run", "metric, at mid depth", "value", "as in", "above", "below", "measured")
_MODEL_HEADINGS = ("model", "what it is", "weights", "text", "probe", "on", "source")


def _measured_models(runs: Sequence[DescribedRun]) -> Markup:
    """Return which measured models the middle of each run resembles, and where their ranges are
    from; nothing where none compares.
    """
    placed = [(run, resemblance) for run in runs for resemblance in run.resemblances]
    if not placed:
        return Markup()
    rows = [
        (
            run.label,
            resemblance.subject,
            resemblance.value_text,
            resemblance.similar_text or NO_VALUE,
            *(
                NO_VALUE if model is None else named_range(model)
                for model in (resemblance.below, resemblance.above)
            ),
            resemblance.probes,
        )
        for run, resemblance in placed
    ]
    named = dict.fromkeys(model for _, resemblance in placed for model in resemblance.named)
    sources = dict.fromkeys(
        (
            model.name,
            model.about,
            model.weights,
            model.text,
            tag("code", model.probe) if model.probe else NO_VALUE,
            model.measured,
            model.source,
        )
        for model in named
    )
    title = "Beside measured models"
    caption = "Measured models that each run resembles at mid depth, on other texts"
    where = "Where the ranges of these models are from"
    tables = (
        table(caption, _USUAL_HEADINGS, rows),
        details(where, table(where, _MODEL_HEADINGS, sources, quiet=True)),
    )
    if len(runs) > MAX_WITH_CARDS:
        return details(title, *tables)
    return joined([tag("h3", title), *tables])


def measured(data: DescribedRuns) -> Markup:
    """Return what was measured with which model, device and versions, and at what cost."""
    rows = [
        (
            run.label,
            f"{run.extent} ({run.n_failed} failed)" if run.n_failed else run.extent,
            _or_dash(max(run.tokens, default=None)),
            f"{len(metrics_of(run.rows))}",
            _listed(run.rows, "dim"),
            _listed(run.rows, "dtype"),
            _listed(run.rows, "device"),
            _listed(run.rows, "attention"),
            ", ".join(
                f"{name} {_listed(run.rows, f'{name}_version')}"
                for name in ("repdyn", "torch", "transformers")
            ),
            f"{str(max(run.rows['measured_at'].unique()))[:16].replace('T', ' ')} UTC",
            tag("code", run.probe),
        )
        for run in data.runs
    ]
    headings = (
        "run",
        "steps",
        "tokens",
        "metrics",
        "dimension",
        "states in",
        "on",
        "attention",
        "versions",
        "last measured",
        "probe",
    )
    costs = [
        tag("li", tag("b", run.label), ": ", text)
        for run in data.runs
        if (text := cost_line(run.frame))
    ]
    parts = [
        table("With what it was measured", headings, rows, quiet=True),
        tag("ul", *costs) if costs else Markup(),
    ]
    return joined([*parts, *map(_metric_table, data.runs), *map(_settings_table, data.runs)])


def failed_checkpoints(data: DescribedRuns) -> Markup:
    """Return the checkpoints that could not be measured, each with its reason, and those that are
    copies.
    """
    by_run = [failures(rows) for rows in data.frames.values()]
    # no column of an empty frame takes part in finding the types of the others
    failed = pd.concat([rows for rows in by_run if len(rows)] or by_run[:1])
    missing = failed.drop_duplicates(["run", "step", "checkpoint", "reason"])
    copied = [
        tag("p", tag("b", name), ": ", text)
        for name, of in data.frames.items()
        if (text := copies_line(of))
    ]
    if missing.empty:
        return joined([tag("p", "No checkpoint failed."), *copied])
    listed = missing[["run", "step", "revision", "metric", "reason"]].iloc[:MAX_FAILURES]
    rows = [
        (
            run,
            f"{step:,}",
            "" if pd.isna(revision) else str(revision),
            metric,
            " ".join(reason.split()),
        )
        for run, step, revision, metric, reason in listed.itertuples(index=False)
    ]
    more = len(missing) - len(rows)
    note = tag("p", f"And {more} more; the store has them all.") if more else Markup()
    failed_table = table(
        "Failed checkpoints",
        ("run", "step", "revision", "first metric", "reason"),
        rows,
        quiet=True,
    )
    return joined([failed_table, note, *copied])


def without_value(data: DescribedRuns) -> Markup:
    """Return the metrics that lack values, by reason."""
    rows = []
    for run, missing in (
        (model, each) for model in data.runs for each in missing_values(model.rows)
    ):
        subsets = [
            "" if of == "all" else f" ({subset_title(of, run.vectors_of)})"
            for _, of in missing.metrics
        ]
        names = [
            metric_title(name) + of for (name, _), of in zip(missing.metrics, subsets, strict=True)
        ]
        rows.append(
            (run.label, ", ".join(names), f"{missing.number:,} of {missing.of:,}", missing.reasons)
        )
    if not rows:
        return tag("p", "Every measured metric has a value at every layer and step.")
    return table(
        "Values that are NaN", ("run", "metrics", "cells of each", "because"), rows, quiet=True
    )


def citation(data: DescribedRuns) -> Markup:
    """Return what to cite, and a sentence on each run for a methods section."""
    sentences = [
        f"{run.label}: measured with repdyn {_listed(run.rows, 'repdyn_version')} on the probe "
        f"{run.probe}; {run.sampling}."
        for run in data.runs
    ]
    what = tag(
        "p",
        "Cite repdyn and the papers whose metrics you use; ",
        tag("code", "repdyn metrics"),
        " lists them.",
    )
    methods = tag("ul", *(tag("li", text) for text in sentences))
    return joined([what, tag("pre", BIBTEX), tag("p", "For a methods section:"), methods])


def _findings(judged: Sequence[tuple[str, Sequence[Finding]]]) -> Markup:
    """Return the findings of runs, and of seeds of one model, each with a label."""
    criteria = {
        finding.title.rpartition(",")[0]: finding.criterion
        for _, of_run in judged
        for finding in of_run
    }
    terms = (
        part for title, text in criteria.items() for part in (tag("dt", title), tag("dd", text))
    )
    source = tag("p", f"Findings of: {PAPER}. Criteria version {VERSION}.")
    how = details("How they are judged", source, tag("dl", *terms))
    if len(judged) == 1:
        return joined([_finding_table(*judged[0]), how])
    more = details(
        "The numbers behind the verdicts",
        *(_finding_table(label, found) for label, found in judged),
    )
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in MEANINGS.items())
    caption = f"Published findings, criteria version {VERSION}. {meanings}"
    return joined([_table_of_runs(caption, judged), more, how])


def _table_of_runs(caption: str, judged: Sequence[tuple[str, Sequence[Finding]]]) -> Markup:
    """Return the verdicts of several runs; a model of another kind has other findings."""
    verdicts = [
        {f"{finding.name}, {finding.subset}": _verdict(finding) for finding in found}
        for _, found in judged
    ]
    titles = list(dict.fromkeys(title for of_run in verdicts for title in of_run))
    rows = [
        (label, *(of_run.get(title, "") for title in titles))
        for (label, _), of_run in zip(judged, verdicts, strict=True)
    ]
    return table(caption, ("run", *titles), rows)


def _finding_table(label: str, judged: Sequence[Finding]) -> Markup:
    rows = []
    for finding in judged:
        numbers = (
            [details("numbers", finding.evidence)] if finding.evidence != finding.sentence else []
        )
        rows.append((finding.title, _verdict(finding), joined([finding.summary, *numbers])))
    return table(
        f"Published findings, {label}, criteria version {VERSION}",
        ("finding", "verdict", "in this run"),
        rows,
    )


def _verdict(finding: Finding) -> Markup:
    sign = tag("span", MARKS[finding.verdict].replace("-", "\u2212"), aria_hidden="true")
    is_open = finding.verdict == "cannot be judged"
    look = "verdict unknown" if is_open else "verdict"
    return tag("span", sign, f" {finding.verdict}", class_=look)


def _alerts(runs: Sequence[DescribedRun]) -> Markup:
    """List the statements on alerts; the first few are visible, the others can be opened."""
    statements = ((run, statement) for run in runs for statement in run.insights.statements)
    told = [(run, statement) for run, statement in statements if statement.kind == "alert"]
    if not told:
        return tag("p", "\u2714 No alert: no rule was broken at any step.", class_="calm")
    lines = [
        tag("li", *([tag("b", run.label), ": "] if len(runs) > 1 else []), statement.sentence)
        for run, statement in told
    ]
    shown = lines[:MAX_ALERTS]
    hidden = lines[MAX_ALERTS:]
    more = details(f"and {len(hidden)} more", tag("ul", *hidden)) if hidden else Markup()
    # as many as are marked in the charts and listed in the terminal: one at each step
    number = sum(len(statement.steps) for _, statement in told)
    return tag("div", tag("h3", f"Alerts ({number})"), tag("ul", *shown), more, class_="alerts")


def _metric_table(run: DescribedRun) -> Markup:
    rows, seconds = run.rows, seconds_by_metric(run.rows)
    whole = float(seconds.sum())
    lines = [
        (
            metric_title(metric),
            tag("code", metric),
            family_title(display_of(metric).family),
            ", ".join(
                subset_title(of, run.vectors_of) for name, of in run.series if name == metric
            ),
            f"{seconds[metric]:.3f}",
            f"{seconds[metric] / whole:.0%}" if whole else "",
        )
        for metric in metrics_of(rows)
    ]
    headings = ("metric", "name", "family", "tokens", "seconds per checkpoint", "share")
    caption = f"Metrics of {run.label}, and what each cost (median over checkpoints)"
    return details(
        f"Metrics and their cost: {run.label}", table(caption, headings, lines, numbers=2)
    )


def _settings_table(run: DescribedRun) -> Markup:
    if not run.settings:
        return Markup()
    caption = f"Settings of the training {run.label}"
    return details(caption, table(caption, ("setting", "value"), run.settings.items(), quiet=True))


def _or_dash(count: float | None) -> str:
    return "\u2013" if count is None else short_count(count)


def _listed(rows: pd.DataFrame, column: str) -> str:
    return ", ".join(map(str, values_of(rows, column))) or "\u2013"


_CORRELATION_HEADINGS = (
    "metric",
    "tokens",
    "of the values",
    "95% interval",
    "n",
    "of the changes",
    "95% interval",
    "n",
)
_CORRELATION_METHOD = (
    "Spearman's rank correlation of the mean over layers with the loss: over the checkpoints, and "
    "over the changes from each checkpoint to the next, which removes trends."
)


def course_of_training(data: DescribedRuns) -> Markup:
    """Return a table for each run with the correlation of each metric with the loss, or why there
    is none; and the fits of the largest activation."""
    correlated = [run for run in data.runs if run.insights.loss_correlations.of_metrics]
    missing = [run for run in data.runs if not run.insights.loss_correlations.of_metrics]
    why = [
        tag("li", tag("b", run.label), f": {run.insights.loss_correlations.reason}.")
        for run in missing
    ]
    correlations = details(
        "Correlation with the loss",
        *([tag("p", _CORRELATION_METHOD, " ", CAVEAT)] if correlated else []),
        *map(_correlation_table, correlated),
        *([tag("p", "No correlation:"), tag("ul", *why)] if why else []),
    )
    return joined([correlations, _activation_growth(data)])


def _correlation_table(run: DescribedRun) -> Markup:
    def numbers(correlation: Correlation) -> tuple[str, str, str]:
        if math.isnan(correlation.value):
            return NO_VALUE, NO_VALUE, f"{correlation.n}"
        return (
            f"{correlation.value:.2f}",
            f"{correlation.low:.2f} to {correlation.high:.2f}",
            f"{correlation.n}",
        )

    correlations = run.insights.loss_correlations
    rows = [
        (
            metric_title(of.metric),
            subset_title(of.subset, run.vectors_of),
            *numbers(of.values),
            *numbers(of.changes),
        )
        for of in correlations.of_metrics
    ]
    return table(
        f"Correlation with the {correlations.loss}, {run.label}",
        _CORRELATION_HEADINGS,
        rows,
        numbers=6,
    )


_FIT_HEADINGS = (
    "layer",
    "metric",
    "worth a statement",
    "A",
    "lambda",
    "gamma",
    "t0",
    "K",
    "R²",
    "steps",
    "maximum at",
)
_FIT_FORMULA = (
    "Least squares over the steps of A exp(-lambda x) log(x) + K, with x = gamma step + t0. R² "
    "says that the curve describes the course, not that the course has this law."
)


def _activation_growth(data: DescribedRuns) -> Markup:
    """Return a table for each run in which ``largest_activation`` was measured at enough steps;
    empty if none was.
    """
    tables = []
    for run in data.runs:
        rows = [
            (
                str(layer),
                metric_title(series.metric),
                "yes" if fit.is_reported else "no",
                *map(number_text, fit[:5]),
                f"{fit.r_squared:.3f}",
                str(fit.n_steps),
                f"{fit.peak_step:,.0f}",
            )
            for series in run.series.values()
            for layer, fit in fits_of(series).items()
        ]
        if rows:
            tables.append(
                table(
                    f"Largest activation over training, {run.label}", _FIT_HEADINGS, rows, numbers=8
                )
            )
    return (
        details("Largest activation over training", tag("p", _FIT_FORMULA), *tables)
        if tables
        else Markup()
    )
