"""What each release of openvino-genai has and has not: data, checked on each of them by `nox -s compat`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, final

from attrs import frozen

from boundedgen._engine._versions import versions

#: Parts of the engine that a release may lack, beside fields of its configurations; and what is done instead.
PERF_METRICS: Final = "GenerationHandle.get_perf_metrics"
LA_POOL: Final = "PipelineMetrics.la_peak_pool_blocks"
INSTEAD: Final[Mapping[str, str]] = {
    PERF_METRICS: "release is proved by the count of requests, a step or two later",
    LA_POOL: "the linear-attention pool is taken from the scheduler's settings",
}
#: Without it a hybrid with prompt lookup shows other tokens, silently.
CANDIDATE_STATES: Final = "a recurrent state for each drafted candidate"
#: A fault that came with a release.
HYBRID_CACHING_RAISES: Final = "a prompt that repeats cached content of a hybrid makes every further step raise"

_FIELDS_OF_3: Final = ("branching_factor", "tree_depth", "return_omni_outputs")
#: Tokenizers that this release or a later one converted crash older ones while they load (SIGSEGV).
TOKENIZERS_CHANGED: Final = "2026.4"


@final
@frozen
class Release:
    """`name`: how its version begins. `lacks`: fields, parts and faults that the newest release has."""

    name: str
    lacks: tuple[str, ...] = ()

    @property
    def proof(self) -> str:
        """How it proves that it let go of a request."""
        return "request_count" if PERF_METRICS in self.lacks else "perf_metrics"

    def told(self, *, hybrid: bool) -> tuple[str, ...]:
        """What is done in a weaker way, in words."""
        matters = (PERF_METRICS, LA_POOL) if hybrid else (PERF_METRICS,)
        return tuple(
            f"openvino-genai {self.name} has no {part}: {INSTEAD[part]}" for part in matters if part in self.lacks
        )


#: Newest first. Another release is taken for the newest of these that is not newer than it.
RELEASES: Final = (
    Release("2026.4"),
    Release("2026.3", (PERF_METRICS, LA_POOL, CANDIDATE_STATES)),
    Release("2026.2", (PERF_METRICS, LA_POOL, CANDIDATE_STATES, HYBRID_CACHING_RAISES, *_FIELDS_OF_3)),
)


def release_of(version: str) -> Release:
    """What is known of a version. One that cannot be read is taken for the newest, an older one for the oldest."""
    given = _numbers(version)
    return next((known for known in RELEASES if not given or _numbers(known.name) <= given), RELEASES[-1])


@cache
def installed_release() -> Release:
    """Of the openvino-genai that this process, and every engine that it starts, runs."""
    return release_of(versions()["openvino-genai"])


def tokenizer_defect(converted_by: str, installed: str) -> str:
    """Why a tokenizer that one version converted would crash another; empty: nothing is known against it."""
    changed = _numbers(TOKENIZERS_CHANGED)
    if _numbers(installed) and _numbers(installed) < changed <= _numbers(converted_by):
        return (
            f"was converted by openvino-tokenizers {converted_by}, which crashes openvino-genai {installed} while it "
            "loads"
        )
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
