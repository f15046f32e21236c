"""Bounded generation on OpenVINO GenAI: deadlines, owner leases, proved reclamation, an engine that is replaced."""

from typing import TYPE_CHECKING

from boundedgen._engine import _start as _start  # it remembers the working directory, which may change before more is

if TYPE_CHECKING:
    from boundedgen._admission import Admission
    from boundedgen._bounds import Bounds, Deadline, Limits
    from boundedgen._completion import Alternative, Chunk, Completion, Reclamation
    from boundedgen._errors import (
        BoundedGenError,
        CacheExhausted,
        DeadlineExceeded,
        DeviceUnavailable,
        EngineFailed,
        EngineLost,
        EngineUnavailable,
        FinishReason,
        GenerationCancelled,
        GenerationEngineFailed,
        GenerationError,
        GenerationInternalError,
        GenerationQuarantined,
        GenerationShutDown,
        InvalidRequest,
        LeaseExpired,
        LeaseLost,
        ModelLoadFailed,
        NeverFits,
        PipelineClosed,
        Rejected,
        Saturated,
        SlowReader,
    )
    from boundedgen._generation import Generation
    from boundedgen._lease import Lease
    from boundedgen._pipeline import BoundedPipeline
    from boundedgen._restart import RestartPolicy
    from boundedgen._retrying import RetryBudget, retrying
    from boundedgen._stats import (
        Health,
        HealthState,
        PoolStats,
        ProbeResult,
        ProbeVerdict,
        ReclaimStats,
        SchedulerStats,
        SequenceRow,
        TimeHistogram,
        TimeStats,
    )
    from boundedgen._stats_listener import StatsSocketError
    from boundedgen._stats_socket import StatsSocket

__version__ = "0.1.0"

__all__ = [
    "Admission",
    "Alternative",
    "BoundedGenError",
    "BoundedPipeline",
    "Bounds",
    "CacheExhausted",
    "Chunk",
    "Completion",
    "Deadline",
    "DeadlineExceeded",
    "DeviceUnavailable",
    "EngineFailed",
    "EngineLost",
    "EngineUnavailable",
    "FinishReason",
    "Generation",
    "GenerationCancelled",
    "GenerationEngineFailed",
    "GenerationError",
    "GenerationInternalError",
    "GenerationQuarantined",
    "GenerationShutDown",
    "Health",
    "HealthState",
    "InvalidRequest",
    "Lease",
    "LeaseExpired",
    "LeaseLost",
    "Limits",
    "ModelLoadFailed",
    "NeverFits",
    "PipelineClosed",
    "PoolStats",
    "ProbeResult",
    "ProbeVerdict",
    "ReclaimStats",
    "Reclamation",
    "Rejected",
    "RestartPolicy",
    "RetryBudget",
    "Saturated",
    "SchedulerStats",
    "SequenceRow",
    "SlowReader",
    "StatsSocket",
    "StatsSocketError",
    "TimeHistogram",
    "TimeStats",
    "retrying",
]

# By module. A name is imported when it is first asked for: each engine's process imports this package too and wants
# none of them, and a server, which wants most, need not pay for attrs, asyncio and a hundred classes before it does.
_NAMES = {
    "_admission": "Admission",
    "_bounds": "Bounds Deadline Limits",
    "_completion": "Alternative Chunk Completion Reclamation",
    "_errors": (
        "BoundedGenError CacheExhausted DeadlineExceeded DeviceUnavailable EngineFailed EngineLost "
        "EngineUnavailable FinishReason GenerationCancelled GenerationEngineFailed GenerationError "
        "GenerationInternalError GenerationQuarantined GenerationShutDown InvalidRequest LeaseExpired "
        "LeaseLost ModelLoadFailed NeverFits PipelineClosed Rejected Saturated SlowReader"
    ),
    "_generation": "Generation",
    "_lease": "Lease",
    "_pipeline": "BoundedPipeline",
    "_restart": "RestartPolicy",
    "_retrying": "RetryBudget retrying",
    "_stats": (
        "Health HealthState PoolStats ProbeResult ProbeVerdict ReclaimStats SchedulerStats SequenceRow TimeHistogram "
        "TimeStats"
    ),
    "_stats_listener": "StatsSocketError",
    "_stats_socket": "StatsSocket",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # mypy would believe that there is every name

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        globals()[name] = found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
