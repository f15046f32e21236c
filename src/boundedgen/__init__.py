"""Bounded generation on OpenVINO GenAI: deadlines, owner leases, proved reclamation, an engine that is replaced."""

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
)

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
    "retrying",
]
