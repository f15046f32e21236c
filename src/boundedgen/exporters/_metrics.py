"""Which metric tells of which field: the table of docs/metrics.md. Units are in the names, counters end in `_total`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Final

from attrs import fields, fields_dict, frozen

from boundedgen._arguments import plain_str, short
from boundedgen._bounds import Bounds, Limits
from boundedgen._engine._versions import installed, versions
from boundedgen._fields import remarks
from boundedgen._pipeline import BoundedPipeline
from boundedgen._stats import Health, PoolStats, ReclaimStats, SchedulerStats, TimeStats

PREFIX: Final = "boundedgen_"
NAME_MOST: Final = 256  #: characters of a pipeline's name


def checked(name: object, what: str) -> str:
    """Of a pipeline, plain. With a lone surrogate it could not be written, nor all that is told together with it."""
    plain = plain_str(name) if isinstance(name, str) else ""
    if not 0 < len(plain) <= NAME_MOST or plain != readable(plain):
        raise ValueError(f"{what} must be a str of 1 to {NAME_MOST} characters (no lone surrogate), not {short(name)}")
    return plain


def readable(text: str) -> str:
    """As UTF-8 can have it: the name of a file may be no text."""
    return text.encode("utf-8", "replace").decode()


@frozen
class Metric:
    name: str  #: as it is scraped, with its unit
    kind: str  #: gauge, counter, histogram, stateset (one of several is 1), or info (always 1, its label says it)
    label: str = ""  #: beside `pipeline`; empty: none
    help: str = ""  #: empty: what is written beside the field that it tells of


def _gauge(name: str, label: str = "", help: str = "") -> Metric:
    return Metric(PREFIX + name, "gauge", label, help)


def _counter(name: str, label: str = "") -> Metric:
    return Metric(PREFIX + name, "counter", label)


def _histogram(name: str, help: str = "") -> Metric:
    return Metric(PREFIX + name, "histogram", "", help)


def _states(name: str) -> Metric:
    return Metric(PREFIX + name, "stateset", PREFIX + name)


def _info(name: str, label: str, help: str = "") -> Metric:
    return Metric(PREFIX + name, "info", label, help)


#: A field that is a mapping has a sample for each key, under the label.
STATS: Final[Mapping[str, Metric]] = {
    "waiting": _gauge("waiting_sequences"),
    "running": _gauge("running_sequences"),
    "running_max": _gauge("running_max_sequences"),
    "stopping": _gauge("stopping_stays"),
    "leases": _gauge("leases"),
    "incarnation": _gauge("incarnation"),
    "engine_pid": _gauge("engine_pid"),
    "oldest_waiting_s": _gauge("oldest_waiting_seconds"),
    "oldest_running_s": _gauge("oldest_running_seconds"),
    "oldest_stopping_s": _gauge("oldest_stopping_seconds"),
    "blocks_total": _gauge("kv_blocks"),
    "blocks_used": _gauge("kv_used_blocks"),
    "blocks_free": _gauge("kv_free_blocks"),
    "blocks_reserved": _gauge("kv_reserved_blocks"),
    "block_size": _gauge("kv_block_size_tokens"),
    "cache_usage": _gauge("cache_usage_ratio"),
    "cache_usage_max": _gauge("cache_usage_max_ratio"),
    "cache_bytes": _gauge("cache_bytes"),
    "engine_rss_bytes": _gauge("engine_rss_bytes"),
    "step_current_s": _gauge("step_current_seconds"),
    "encode_current_s": _gauge("encode_current_seconds"),
    "step_budget_s": _gauge("step_budget_seconds"),
    "last_step_s": _gauge("last_step_seconds"),
    "last_progress_s": _gauge("last_progress_seconds"),
    "snapshot_age_s": _gauge("snapshot_age_seconds"),
    "driver_lag_s": _gauge("driver_lag_seconds"),
    "driver_lag_max_s": _gauge("driver_lag_max_seconds"),
    "tokens_per_s": _gauge("tokens_per_second"),
    "submitted_total": _counter("submitted_total"),
    "rejected_total": _counter("rejected_total", "error"),
    "finished_total": _counter("finished_total", "reason"),
    "deadlines_total": _counter("deadlines_total", "bound"),
    "leases_total": _counter("lease_events_total", "event"),
    "prompt_tokens_total": _counter("prompt_tokens_total"),
    "tokens_total": _counter("tokens_total"),
    "late_tokens_total": _counter("late_tokens_total"),
    "accepted_tokens_total": _counter("accepted_tokens_total"),
    "proposed_tokens_total": _counter("proposed_tokens_total"),
    "steps_total": _counter("steps_total"),
    "restarts_total": _counter("restarts_total"),
    "kills_total": _counter("kills_total", "cause"),
    "closes_total": _counter("closes_total"),
    "recycled_total": _counter("recycled_total"),
    "adapters": _gauge("adapter_weight", "adapter"),
    "resumed_total": _counter("resumed_total"),
    "paused_total": _counter("paused_total"),
    "quarantined_total": _counter("quarantined_total"),
    "requeued_total": _counter("requeued_total"),
    "hopeless_total": _counter("hopeless_total"),
    "service_error": _gauge("service_error_ratio"),
    "ghosts_total": _counter("ghosts_total"),
    "forgotten_total": _counter("forgotten_total"),
    "last_probe": _states("last_probe"),
    "last_probe_s": _gauge("last_probe_seconds"),
    "last_probe_age_s": _gauge("last_probe_age_seconds"),
}

TIMES: Final[Mapping[str, Metric]] = {
    "queued": _histogram("queued_seconds"),
    "first_token": _histogram("first_token_seconds"),
    "next_token": _histogram("next_token_seconds"),
    "total": _histogram("total_seconds"),
    "step": _histogram("step_seconds"),
}

#: A sample for each pool.
POOLS: Final[Mapping[str, Metric]] = {
    "blocks_total": _gauge("pool_blocks", "pool"),
    "blocks_reserved": _gauge("pool_reserved_blocks", "pool"),
    "blocks_free": _gauge("pool_free_blocks", "pool"),
    "tokens_per_block": _gauge("pool_block_size_tokens", "pool"),
}

RECLAIM: Final[Mapping[str, Metric]] = {
    "steps_max": _gauge("reclaim_max_steps"),
    "seconds_max": _gauge("reclaim_max_seconds"),
    "buckets_s": _histogram("reclaim_seconds", "from the stop being taken to the proof of release"),
    "proof": _info("reclaim_proof_info", "proof"),
}

HEALTH: Final[Mapping[str, Metric]] = {
    "state": _states("health"),
    "since_s": _gauge("health_since_seconds"),
    "error": _info("failure_info", "error"),
    "retry_after_s": _gauge("retry_after_seconds"),
    "findings": _gauge("findings", help="how many there are: settings that were changed or are unsafe, and the like"),
    "driver_alive": _gauge("driver_alive"),
    "ready": _gauge("ready"),
    "live": _gauge("live"),
}

#: Of the lane as it was built.
INFO: Final = Metric(
    PREFIX + "info", "info", "", "versions, the model's name, the device, the policies of admission and of resuming"
)
BOUNDS: Final = _gauge("bound_seconds", "bound", "of the pipeline, those that it has; a call's can be tighter")
#: Those that alarms are compared with, and that tell why something was refused.
MAIN_LIMITS: Final = (
    *("waiting_max", "owner_max", "sequences_max", "max_new_tokens", "max_new_tokens_default", "prompt_bytes"),
    *("boot", "first_step", "step_max", "progress", "ack", "reclaim", "reclaim_steps", "reap", "drain", "unread"),
    *("probe_idle", "probe_timeout", "engine_age", "engine_rss_bytes", "lease_ttl_max"),
)


def unit_of(limit: str) -> str:
    """As it stands in the name of a metric."""
    unit = str(fields_dict(Limits)[limit].metadata["unit"])
    return "seconds" if unit in ("s", "s outside of steps") else unit


LIMITS: Final[Mapping[str, Metric]] = {
    unit: _gauge(f"limit_{unit}", "limit", f"main Limits of the pipeline, those that it has, in {unit}")
    for unit in dict.fromkeys(map(unit_of, MAIN_LIMITS))
}

#: Fields without a metric, and why.
UNTOLD: Final[Mapping[tuple[type, str], str]] = {
    (SchedulerStats, "pools"): "a metric for each field of PoolStats",
    (SchedulerStats, "reclaim"): "a metric for each field of ReclaimStats",
    (SchedulerStats, "times"): "a histogram for each field of TimeStats",
    (SchedulerStats, "sequences"): "owners, labels and ids are no labels: there is no end to them",
    (PoolStats, "name"): "the label `pool`",
    (ReclaimStats, "count_total"): "`boundedgen_reclaim_seconds_count`",
    (ReclaimStats, "sum_s"): "`boundedgen_reclaim_seconds_sum`",
    (Health, "reason"): "a text of any length; it is in the log, and in health()",
    (Health, "incarnation"): "that of SchedulerStats",
    (Health, "adapters"): "that of SchedulerStats",
    (Health, "last_probe"): "that of SchedulerStats",
    (Health, "last_probe_s"): "that of SchedulerStats",
    (Health, "last_probe_age_s"): "that of SchedulerStats",
}

TABLES: Final = (
    (SchedulerStats, STATS),
    (TimeStats, TIMES),
    (PoolStats, POOLS),
    (ReclaimStats, RECLAIM),
    (Health, HEALTH),
)


def configured(pipeline: BoundedPipeline) -> Iterator[tuple[Metric, dict[str, str], float]]:
    """What never changes of a lane: metrics with their labels, beside `pipeline`, and their values."""
    settings, asked = pipeline._settings, pipeline._configuration
    about = {
        "boundedgen": versions()["boundedgen"],
        "openvino": installed("openvino"),
        "openvino_genai": versions()["openvino-genai"],
        "model": readable(PurePath(asked.get("models_path", "")).name),
        "device": readable(asked.get("device", "")),
        "admission": settings.admission.policy,
        "resume": settings.restart.resume,
    }
    yield INFO, about, 1.0
    for bound in fields(Bounds):
        if (seconds := getattr(settings.bounds, bound.name)) is not None:
            yield BOUNDS, {BOUNDS.label: bound.name}, float(seconds)
    for limit in MAIN_LIMITS:
        if (value := getattr(settings.limits, limit)) is not None:
            metric = LIMITS[unit_of(limit)]
            yield metric, {metric.label: limit}, float(value)


def told() -> Iterator[tuple[Metric, str, str]]:
    """Every metric, where it comes from, and its help. Takes milliseconds."""
    for kind, table in TABLES:
        texts = _texts(kind)
        for name, metric in table.items():
            source = f"{kind.__name__}.{name}"
            yield metric, source, metric.help or texts.get(name, source)
    yield INFO, "the constructor", INFO.help
    yield BOUNDS, "Bounds", BOUNDS.help
    for metric in LIMITS.values():
        yield metric, "Limits", metric.help


def _texts(kind: type) -> Mapping[str, str]:
    try:
        return remarks(kind)
    except OSError:  # installed without its source
        return {}
