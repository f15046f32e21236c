"""All of it: a Serve application of lanes, with figures of Serve's that follow from those of a lane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

import boundedgen as b
from examples.ray_serve.lane import Lane
from examples.ray_serve.routing import MostRoom
from examples.ray_serve.scaling import lanes_wanted

SPARE = 64  #: calls at once of a lane that are no generations: leases, looking
STOPS = 5.0  #: s for a replica to end beyond that


def application(
    model: str,
    *,
    lanes: int | tuple[int, int] = 1,
    takes: Mapping[str, Any],
    device: str = "GPU",
    scheduler_config: Mapping[str, Any] | None = None,
    properties: Mapping[str, Any] | None = None,
    scaling: Mapping[str, Any] | None = None,
    serving: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """For `serve.run`.

    - `lanes`: how many, or the least and the most of them, by load.
    - `takes`: what a lane takes of its node, as Ray's `ray_actor_options`: {"num_gpus": 1}, or {"num_cpus": 8} with
      device="CPU" and properties={"INFERENCE_NUM_THREADS": "8"}.
    - `scaling`, `serving`: over what is chosen here for Serve's AutoscalingConfig and for the deployment.
    - `settings` are those of BoundedPipeline.
    """
    options = {**derived(settings.get("limits") or b.Limits(), settings.get("bounds") or b.Bounds(total=600))}
    options["request_router_config"] = RequestRouterConfig(
        request_router_class=MostRoom, request_routing_stats_period_s=1.0, request_routing_stats_timeout_s=5.0
    )
    if isinstance(lanes, int):
        options["num_replicas"] = lanes
    else:
        options["autoscaling_config"] = scaled(*lanes, **(scaling or {}))
    deployment = serve.deployment(Lane).options(
        name="Lane", ray_actor_options=dict(takes), **{**options, **(serving or {})}
    )
    return deployment.bind(model, scheduler_config, device, properties, settings)


def derived(limits: b.Limits, bounds: b.Bounds) -> dict[str, Any]:
    """What Serve has to be told, so that whoever waits does so in a lane, and whoever is inside can end."""
    assert bounds.total is not None
    inside = (limits.running_max or 256) + limits.waiting_max
    return {
        "max_ongoing_requests": inside + SPARE,
        "max_queued_requests": limits.waiting_max,
        "graceful_shutdown_timeout_s": bounds.total + limits.reap + STOPS,
        "graceful_shutdown_wait_loop_s": 0.5,
        "health_check_period_s": 5.0,  # three failures in a row: a lane that was given up is replaced in 15 s
        "health_check_timeout_s": 10.0,
    }


def scaled(least: int, most: int, **changes: Any) -> AutoscalingConfig:
    """A lane more is useful once it is ready: when half a minute and a model load have gone by."""
    chosen = {
        "min_replicas": least,
        "max_replicas": most,
        "upscale_delay_s": 30.0,
        "downscale_delay_s": 600.0,
        "look_back_period_s": 20.0,
        "policy": AutoscalingPolicy(policy_function=lanes_wanted),
    }
    return AutoscalingConfig(**{**chosen, **changes})
