"""python -m examples.grpc_server MODEL [--device GPU] [--port 50051]"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal

import boundedgen as b
from examples.grpc_server.server import serving


async def main(asked: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    pipeline = b.BoundedPipeline(asked.model, asked.scheduler, asked.device)
    server, port = serving(pipeline, f"{asked.host}:{asked.port}")
    try:
        await server.start()  # probes are answered while the model loads, and after that has failed
        print(f"serving at {asked.host}:{port}", flush=True)
        await stopped.wait()
        print("draining", flush=True)
    finally:
        await pipeline.aclose(drain=asked.drain)  # still served: "not ready", and the end of what is inside
        await server.stop(grace=1)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m examples.grpc_server")
    found.add_argument("model", help="a folder with an OpenVINO model, or a GGUF file")
    found.add_argument("--device", default="GPU")
    found.add_argument("--host", default="127.0.0.1")
    found.add_argument("--port", type=int, default=50051)
    found.add_argument("--scheduler", type=json.loads, default={}, help='scheduler_config as JSON: {"cache_size": 4}')
    found.add_argument("--drain", type=float, default=30.0, help="seconds after SIGTERM for what is inside")
    return found


if __name__ == "__main__":
    asyncio.run(main(parser().parse_args()))
