"""What an orchestrator, a balancer and a scraper ask. python examples/probes_and_metrics.py MODEL [DEVICE]"""

import json
import sys

import boundedgen as b
from boundedgen.endpoints import Answer, liveness, readiness, startup


def answer(pipeline: b.BoundedPipeline, path: str) -> Answer:
    """Status, headers and body, at once, in every state: `JSONResponse(it.body, it.status, it.headers)`."""
    health = pipeline.health()
    if path == "/startup":
        return startup(health)
    if path == "/live":
        return liveness(health)  # it stays 200 while the engine is replaced
    return readiness(health, pipeline.stats())  # /ready, or the /health of a proxy


def deep_probe(pipeline: b.BoundedPipeline) -> b.ProbeVerdict:
    """Does a token come through, now? In a slot of its own, however full the lane is; a timeout is FAILED."""
    return pipeline.probe(timeout=10).verdict


def metrics(pipeline: b.BoundedPipeline) -> dict[str, float | None]:
    """Answers at once, also while the engine hangs: then `step_current_seconds` grows."""
    stats = pipeline.stats()
    return {
        "waiting": stats.waiting,
        "running": stats.running,
        "stopping": stats.stopping,  # ended, and not yet proved to have left
        "blocks_free": stats.blocks_free,
        "step_current_seconds": stats.step_current_s,
        "oldest_waiting_seconds": stats.oldest_waiting_s,
        "refused_total": stats.rejected_total["Saturated"],
        "unavailable_total": stats.rejected_total["EngineUnavailable"],  # no engine in time for them
        "hopeless_total": stats.hopeless_total,  # waited, and could not make their deadlines any more
        "engine_kills_total": sum(stats.kills_total.values()),  # faults; an orderly close is none
        **{f"finished_{reason}_total": count for reason, count in stats.finished_total.items()},
    }


def everything(pipeline: b.BoundedPipeline) -> str:
    """For a page that somebody on call looks at, and for `python -m boundedgen top URL`: strict JSON."""
    return json.dumps(pipeline.stats_document("my lane"), allow_nan=False)


# --- try it ----------------------------------------------------------------------------------------------------------


def main(model: str, device: str = "CPU") -> None:
    with b.BoundedPipeline(model, {"num_kv_blocks": 64}, device) as pipeline:
        pipeline.generate("Hello", max_new_tokens=5)
        ready, live = answer(pipeline, "/ready"), answer(pipeline, "/live")
        print("ready", ready.status, "live", live.status, "probe", deep_probe(pipeline))
        print(json.dumps(ready.body))
        print(metrics(pipeline))
        print(everything(pipeline))


if __name__ == "__main__":
    main(*sys.argv[1:])
