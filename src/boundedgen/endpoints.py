"""What a server answers to liveness, readiness and start-up probes, of one pipeline or of several. docs/server.md.

Pure functions of what `health()` and `stats()` said; nothing here waits, and nothing else imports this.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeVar, final

from attrs import field, frozen

from boundedgen._arguments import kind_of, short
from boundedgen._bounds import Limits
from boundedgen._fields import tells_of_its_fields
from boundedgen._stats import Health, HealthState, SchedulerStats

__all__ = ["Answer", "kubernetes_probes", "liveness", "readiness", "startup"]

Need = Literal["all", "any"]
_Told = TypeVar("_Told")
_LOAD: Final = ("waiting", "running", "running_max", "stopping", "blocks_free", "oldest_waiting_s")


@final
@tells_of_its_fields
@frozen(kw_only=True)
class Answer:
    """What to send. It fits every web framework: `JSONResponse(answer.body, answer.status, answer.headers)`."""

    status: int  #: 200: yes; 503: no
    headers: dict[str, str]  #: Cache-Control; of a 503 Retry-After too, in whole seconds, where a time is known
    #: strict JSON: `status` ("ok", or "unavailable"), then what one pipeline tells (state, reason, since_s,
    #: incarnation, error: the name of its type), or `lanes`, with all that of each, by its name
    body: dict[str, Any] = field(repr=False)


def startup(lanes: Health | Mapping[str, Health], *, need: Need = "all") -> Answer:
    """Is the start over? 200 from when it was ready once, whatever happens later.

    Also 200 once the lane was given up or closed before it ever was ready: as long as the answer is 503, Kubernetes
    does not ask for liveness, which says at once that there is nothing to wait for.
    `lanes` and `need`: as those of `readiness`.
    """
    return _answer(lanes, need, lambda health: health.state is not HealthState.STARTING)


def liveness(lanes: Health | Mapping[str, Health], *, need: Need = "all") -> Answer:
    """Leave the process alone? 200 also while an engine is started, hangs or is replaced: the lane heals by itself.

    503 once it was given up (FAILED), closed, or its driver is gone or 10 s behind: only a new process helps.
    `lanes` and `need`: as those of `readiness`; with "all" one lane that was given up ends the others with it, with
    "any" it stays as it is, and somebody has to be told of it by other means.
    """
    return _answer(lanes, need, lambda health: health.live, retry=False)


def readiness(
    lanes: Health | Mapping[str, Health],
    stats: SchedulerStats | Mapping[str, SchedulerStats] | None = None,
    *,
    need: Need = "all",
) -> Answer:
    """Send work here? 200 as long as it is READY, idle or full: who takes full lanes out has none left.

    503 while it starts, is STALLED or is replaced, with Retry-After; while it drains, after which it does not come
    back; and whenever it is not live. A step that hangs is STALLED once it has used up its budget, or a probe has
    failed, and no sooner: until then this is 200.

    `lanes`: what `health()` said, of one pipeline, or by name of each one that the server has. `stats`: what `stats()`
    said, of the same; then the body has its `load` too, for a balancer that goes by it. `need`: of several lanes,
    whether "all" have to be so or "any" one is enough. TypeError, ValueError: an argument that is none of these, or no
    lane at all.
    """
    answer = _answer(lanes, need, lambda health: health.ready and health.live)
    rows = answer.body if isinstance(lanes, Health) else answer.body["lanes"]
    if isinstance(lanes, Health) and stats is not None:
        rows["load"] = _load(_checked("stats", stats, SchedulerStats))
    elif stats is not None:
        told = _by_name("stats", stats, SchedulerStats)
        for name in rows.keys() & told.keys():
            rows[name]["load"] = _load(told[name])
    return answer


def kubernetes_probes(limits: Limits | None = None) -> dict[str, dict[str, int]]:
    """Periods and thresholds for the probes of a container, of the `limits` of its pipeline (default: `Limits()`).

    Whole seconds, under the names of Kubernetes; the path and the port are yours. A start may take `Limits.boot` and
    what it takes to give it up. One reading less than the threshold is not enough to be restarted for: a parent that
    stood still for a while is none that is gone.
    """
    limits = Limits() if limits is None else limits
    give_up = limits.boot + limits.reap
    every = 5
    return {
        "startupProbe": _probe(every, math.ceil(give_up / every) + 1),
        "livenessProbe": _probe(10, 3),
        "readinessProbe": _probe(2, 1),
    }


# --- how -------------------------------------------------------------------------------------------------------------


def _probe(period: int, failures: int) -> dict[str, int]:
    return {"periodSeconds": period, "timeoutSeconds": min(period, 5), "failureThreshold": failures}


def _answer(
    lanes: Health | Mapping[str, Health], need: Need, good: Callable[[Health], bool], *, retry: bool = True
) -> Answer:
    if need not in ("all", "any"):
        raise ValueError(f'need must be "all" or "any", not {short(need)}')
    found = {"": lanes} if isinstance(lanes, Health) else _by_name("lanes", lanes, Health)
    if not found:
        raise ValueError("lanes is empty: a server without a lane is neither ready nor not")
    bad = [health for health in found.values() if not good(health)]
    ok = not bad if need == "all" else len(bad) < len(found)
    headers = {"Cache-Control": "no-store"}
    after = None if ok or not retry else _after([health.retry_after_s for health in bad], need)
    if after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(after)))
    rows = {name: _row(health, good(health)) for name, health in found.items()}
    said = rows[""] if isinstance(lanes, Health) else {"status": _word(ok), "lanes": rows}
    return Answer(status=200 if ok else 503, headers=headers, body=said)


def _after(times: list[float | None], need: Need) -> float | None:
    """Of those that are not good, when there will be enough; None: nobody knows, or never."""
    known = [seconds for seconds in times if seconds is not None]
    if not known or (need == "all" and len(known) < len(times)):
        return None
    return max(known) if need == "all" else min(known)


def _word(ok: bool) -> str:
    return "ok" if ok else "unavailable"


def _row(health: Health, ok: bool) -> dict[str, Any]:
    return {
        "status": _word(ok),
        "state": health.state.value,
        "reason": health.reason,
        "since_s": health.since_s,
        "incarnation": health.incarnation,
        "error": None if health.error is None else type(health.error).__name__,
    }


def _load(stats: SchedulerStats) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in _LOAD}


def _by_name(what: str, given: object, kind: type[_Told]) -> dict[str, _Told]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} must be a {kind.__name__}, or a mapping of names to them, not {kind_of(given)}")
    return {str(name): _checked(f"{what}[{short(name)}]", one, kind) for name, one in given.items()}


def _checked(what: str, given: object, kind: type[_Told]) -> _Told:
    if not isinstance(given, kind):
        raise TypeError(f"{what} must be a {kind.__name__}, not {kind_of(given)}")
    return given
