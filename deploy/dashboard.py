"""`python -m deploy.dashboard` writes deploy/grafana/boundedgen.json from the panels below; a test compares them.

A dashboard as JSON is nothing that somebody can read or change by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from boundedgen import HealthState

FILE = Path(__file__).resolve().parent / "grafana" / "boundedgen.json"
COLUMNS, WIDTH, HEIGHT = 3, 8, 7  #: Grafana's grid has 24 columns
CHOSEN = 'pipeline=~"$pipeline",instance=~"$instance"'
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLOURS = {
    HealthState.STARTING: "light-blue",
    HealthState.READY: "green",
    HealthState.STALLED: "dark-orange",
    HealthState.RECOVERING: "yellow",
    HealthState.DRAINING: "purple",
    HealthState.FAILED: "red",
    HealthState.CLOSED: "gray",
}


@frozen
class Query:
    legend: str
    expr: str
    always: bool = True  #: it has a value in every run in which the lane was used


@frozen
class Panel:
    title: str
    unit: str  #: as Grafana names it
    what: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    stacked: bool = False


@frozen
class Row:
    title: str
    panels: Sequence[Panel]


def of(metric: str, *matchers: str) -> str:
    return f"boundedgen_{metric}{{{','.join((CHOSEN, *matchers))}}}"


def rate(metric: str, by: str) -> str:
    return f"sum by (pipeline, {by}) (rate({of(metric)}[$__rate_interval]))"


def quantiles(metric: str) -> list[Query]:
    return [
        Query(
            f"{{{{pipeline}}}} p{100 * q:g}",
            f"histogram_quantile({q}, sum by (le, pipeline) (rate({of(metric + '_bucket')}[$__rate_interval])))",
        )
        for q in (0.5, 0.9, 0.99)
    ]


def health() -> str:
    """The place of the state among all, from 0."""
    states = (of("health", f'boundedgen_health="{state}"') + f" * {n}" for n, state in enumerate(HealthState))
    return f"sum without (boundedgen_health) ({' or '.join(states)})"


def limit(name: str) -> Query:
    return Query(f"{{{{pipeline}}}} Limits.{name}", of("limit_seconds", f'limit="{name}"'))


def latency(title: str, metric: str, what: str) -> Panel:
    return Panel(title, "s", what, quantiles(metric))


ROWS: Sequence[Row] = (
    Row(
        "Is it well?",
        [
            Panel(
                "Lane health", "short", "What each lane is doing.", [Query("{{pipeline}} {{instance}}", health())],
                kind="state-timeline",
            ),
            Panel(
                "Step age against its budget", "s",
                "A step that hangs grows up to its budget; there the engine is killed.",
                [
                    Query("{{pipeline}} in flight", of("step_current_seconds")),
                    Query("{{pipeline}} budget", of("step_budget_seconds")),
                    Query("{{pipeline}} the last one", of("last_step_seconds")),
                ],
            ),
            Panel(
                "Time without progress", "s",
                "While there is work: since a token was scheduled or something released. Killed at Limits.progress.",
                [Query("{{pipeline}}", of("last_progress_seconds")), limit("progress")],
            ),
            Panel(
                "Engines lost, by cause, and restarts", "short", "Since the pipeline was built.",
                [
                    Query("{{pipeline}} {{cause}}", f"{of('kills_total')} > 0", always=False),
                    Query("{{pipeline}} restarts", of("restarts_total")),
                    Query("{{pipeline}} recycled", of("recycled_total")),
                ],
            ),
            Panel(
                "Lateness of the driver", "s", "Not near 0: look at the server's process, not at the engine.",
                [
                    Query("{{pipeline}} now", of("driver_lag_seconds")),
                    Query("{{pipeline}} the most so far", of("driver_lag_max_seconds")),
                ],
            ),
            Panel(
                "Probes", "s", "Seconds to one token in a slot of its own, of the latest probe.",
                [Query("{{pipeline}}", of("last_probe_seconds"), always=False)],
            ),
        ],
    ),
    Row(
        "How full is it?",
        [
            Panel(
                "Occupancy", "short", "Stopping ones are answered and still held: they count against the slots.",
                [
                    Query("{{pipeline}} running", of("running_sequences")),
                    Query("{{pipeline}} stopping", of("stopping_stays")),
                    Query("{{pipeline}} slots", of("running_max_sequences")),
                ],
            ),
            Panel(
                "Blocks by pool, reserved of all", "percentunit",
                "Admission needs room in every pool: one can be full while the others are empty.",
                [Query("{{pipeline}} {{pool}}", f"{of('pool_reserved_blocks')} / {of('pool_blocks')}")],
            ),
            Panel(
                "Cache in use", "percentunit", "Of the fullest pool, as the engine tells it.",
                [Query("{{pipeline}} cache", of("cache_usage_ratio"))],
            ),
            Panel(
                "Queue", "short", "Accepted, and not in the engine.", [Query("{{pipeline}}", of("waiting_sequences"))]
            ),
            Panel(
                "Oldest waiter", "s", "Since its submit; nothing where nobody waits.",
                [Query("{{pipeline}}", of("oldest_waiting_seconds"), always=False)],
            ),
            Panel(
                "Refused, by error", "cps", "Nothing was started for them.",
                [Query("{{pipeline}} {{error}}", rate("rejected_total", "error"))],
                stacked=True,
            ),
        ],
    ),
    Row(
        "What becomes of the calls?",
        [
            Panel(
                "Endings by reason", "cps", "stop and length are normal ends.",
                [Query("{{pipeline}} {{reason}}", rate("finished_total", "reason"))], stacked=True,
            ),
            Panel(
                "Deadlines by bound", "cps", "Which bound ended those that ended deadline.",
                [Query("{{pipeline}} {{bound}}", rate("deadlines_total", "bound"))], stacked=True,
            ),
            Panel(
                "Tokens", "short", "A second. Late ones were computed after their caller's end, and dropped.",
                [
                    Query("{{pipeline}} visible", f"rate({of('tokens_total')}[$__rate_interval])"),
                    Query("{{pipeline}} of prompts", f"rate({of('prompt_tokens_total')}[$__rate_interval])"),
                    Query("{{pipeline}} late", f"rate({of('late_tokens_total')}[$__rate_interval])"),
                ],
            ),
            Panel(
                "Leases", "short", "Live ones, implicit ones included.",
                [Query("{{pipeline}}", of("leases"))],
            ),
            Panel(
                "Lease events", "cps", "Many expired at once: the clients are gone.",
                [Query("{{pipeline}} {{event}}", rate("lease_events_total", "event"))],
            ),
            Panel(
                "Reclaim", "s", "How long what was stopped is still held; the engine is killed at Limits.reclaim.",
                [
                    Query("{{pipeline}} oldest now", of("oldest_stopping_seconds"), always=False),
                    Query("{{pipeline}} the most so far", of("reclaim_max_seconds")),
                    *quantiles("reclaim_seconds")[2:],
                    limit("reclaim"),
                ],
            ),
        ],
    ),
    Row(
        "How long does it take?",
        [
            latency("In the queue", "queued_seconds", "From submit to the first admission."),
            latency("To the first token", "first_token_seconds", "From submit to the first visible token."),
            latency("Between two tokens", "next_token_seconds", "Of one sequence."),
            latency("Whole generations", "total_seconds", "From submit to the end, however it ended."),
            latency("Steps", "step_seconds", "Of the engine, that returned."),
            Panel(
                "Memory of the engine", "bytes", "Resident, as of its last word.",
                [Query("{{pipeline}}", of("engine_rss_bytes"))],
            ),
        ],
    ),
)  # fmt: skip


def queries() -> Iterator[tuple[Panel, Query]]:
    for row in ROWS:
        for panel in row.panels:
            for query in panel.queries:
                yield panel, query


# --- as Grafana has it -----------------------------------------------------------------------------------------------


def dashboard() -> dict[str, Any]:
    return {
        "title": "boundedgen lanes",
        "uid": "boundedgen-lanes",
        "description": "Lanes of boundedgen, by pipeline. Written by deploy/dashboard.py.",
        "tags": ["boundedgen", "openvino", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [deaths()]},
        "templating": {"list": [datasource(), variable("pipeline", ""), variable("instance", 'pipeline=~"$pipeline"')]},
        "panels": list(placed()),
    }


def datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def variable(name: str, matcher: str) -> dict[str, Any]:
    query = (
        f"label_values(boundedgen_ready{{{matcher}}}, {name})" if matcher else f"label_values(boundedgen_ready, {name})"
    )
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "allValue": ".+",
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
        "sort": 1,
    }


def deaths() -> dict[str, Any]:
    """A line in every panel where an engine was lost."""
    return {
        "name": "Engines lost",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": f"changes({of('kills_total')}[$__rate_interval]) > 0",
        "titleFormat": "{{pipeline}}: engine lost",
        "textFormat": "{{cause}}",
    }


def placed() -> Iterator[dict[str, Any]]:
    y = number = 0
    for row in ROWS:
        number += 1
        grid = {"x": 0, "y": y, "w": COLUMNS * WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": grid, "panels": []}
        y += 1
        for n, panel in enumerate(row.panels):
            number += 1
            place = {"x": n % COLUMNS * WIDTH, "y": y + n // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT}
            yield {"id": number, "gridPos": place, **drawn(panel)}
        y += -(-len(row.panels) // COLUMNS) * HEIGHT


def drawn(panel: Panel) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.what,
        "datasource": DATASOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + n),
                "datasource": DATASOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "editorMode": "code",
                "range": True,
            }
            for n, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": defaults(panel), "overrides": []},
        "options": options(panel),
    }


def defaults(panel: Panel) -> dict[str, Any]:
    if panel.kind == "state-timeline":
        states = {str(n): {"text": s.value, "color": COLOURS[s], "index": n} for n, s in enumerate(HealthState)}
        return {"mappings": [{"type": "value", "options": states}], "color": {"mode": "thresholds"}}
    custom = {"lineWidth": 1, "fillOpacity": 20 if panel.stacked else 0, "spanNulls": False}
    stacking = {"stacking": {"mode": "normal", "group": "A"}} if panel.stacked else {}
    return {"unit": panel.unit, "min": 0, "custom": {**custom, **stacking}}


def options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "state-timeline":
        return {"showValue": "auto", "mergeValues": True, "legend": {"showLegend": False}}
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    sys.exit(0)
