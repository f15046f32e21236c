"""python -m examples.ray_serve MODEL [--device GPU] [--lanes 2]: a fleet on this machine, asked by some callers."""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray import serve

import boundedgen as b
from examples.ray_serve.application import application
from examples.ray_serve.fleet import Fleet


async def ask(fleet: Fleet, number: int) -> str:
    story: dict[str, Any] = {"prompt": f"{number} times upon a time", "max_new_tokens": 40}
    answer = await fleet.generate(**story, bounds=b.Bounds(total=60), session=f"chat {number % 3}")
    return f"{answer.completion_tokens} tokens within {answer.total_s:.2f} s"


async def crowd(fleet: Fleet) -> None:
    print(*await asyncio.gather(*(ask(fleet, number) for number in range(8))), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.ray_serve")
    parser.add_argument("model", help="a folder with an OpenVINO model, or a GGUF file, on every node")
    parser.add_argument("--device", default="GPU")
    parser.add_argument("--lanes", type=int, default=2)
    asked = parser.parse_args()
    takes = {"num_gpus": 1} if asked.device == "GPU" else {"num_cpus": 1}
    ray.init(num_cpus=None if takes.get("num_gpus") else asked.lanes, include_dashboard=False, log_to_driver=False)
    serve.start(proxy_location="Disabled")
    lanes = application(asked.model, device=asked.device, lanes=asked.lanes, takes=takes)
    asyncio.run(crowd(Fleet(serve.run(lanes, route_prefix=None))))
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
