"""How many lanes there should be: as many as are filled, to a part, by what is reserved and what waits."""

from __future__ import annotations

from typing import Any

FILLED = 0.7  #: of a lane; the rest is for what comes while another lane starts


def lanes_wanted(told: Any) -> tuple[float, dict[str, Any]]:
    """For `AutoscalingPolicy`; `told` is Serve's AutoscalingContext.

    The sum is what the callers need, however many lanes it is spread over now. Serve applies its delays and bounds.
    """
    loads = (told.aggregated_metrics or {}).get("load")
    if not loads:
        return told.target_num_replicas, {}  # nothing is known yet
    return sum(loads.values()) / FILLED, {}
