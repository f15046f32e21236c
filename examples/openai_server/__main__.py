"""python -m examples.openai_server MODEL [--device GPU] [--port 8000] …"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import uvicorn

import boundedgen as b
from examples.openai_server.app import application
from examples.openai_server.serving import DrainingServer
from examples.openai_server.settings import Settings

ADMIN_TOKEN = "BOUNDEDGEN_ADMIN_TOKEN"  #: environment variable
API_KEYS = "BOUNDEDGEN_API_KEYS"  #: environment variable: a file with a JSON object, an owner for each key


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m examples.openai_server", description=__doc__)
    found.add_argument("model", help="a folder with an OpenVINO model, or a GGUF file")
    found.add_argument("--name", help="of the model in requests; else that of the folder or file")
    found.add_argument("--device", default="GPU")
    found.add_argument("--host", default="127.0.0.1")
    found.add_argument("--port", type=int, default=8000)
    found.add_argument("--scheduler", type=json.loads, default={}, help='scheduler_config as JSON: {"cache_size": 4}')
    found.add_argument("--properties", type=json.loads, default={}, help="of the device, as JSON")
    found.add_argument("--limits", type=json.loads, default={}, help="Limits as JSON, docs/limits.md")
    found.add_argument("--bounds", type=json.loads, default={}, help='of every request: {"total": 300, "queued": 60}')
    found.add_argument("--settings", type=json.loads, default={}, help="other Settings as JSON, settings.py")
    found.add_argument("--black-box", help="folder for incidents")
    found.add_argument("--drain", type=float, default=30.0, help="seconds after SIGTERM for what is inside")
    found.add_argument("--access-log", action="store_true")
    return found


def settings_of(given: argparse.Namespace) -> Settings:
    keys = os.environ.get(API_KEYS)
    return Settings(
        model=given.name or Path(given.model).stem,
        api_keys=json.loads(Path(keys).read_text(encoding="utf-8")) if keys else {},
        admin_token=os.environ.get(ADMIN_TOKEN) or None,
        drain_s=given.drain,
        **given.settings,
    )


def pipeline_of(given: argparse.Namespace) -> b.BoundedPipeline:
    limits: dict[str, Any] = {"lease_ttl_max": 60.0, "drain": given.drain, **given.limits}
    return b.BoundedPipeline(
        given.model,
        given.scheduler or None,
        given.device,
        given.properties or None,
        limits=b.Limits(**limits),
        bounds=b.Bounds(**{"total": 600, **given.bounds}),
        black_box=given.black_box,
    )


def main() -> int:
    given = parser().parse_args()
    settings = settings_of(given)
    pipeline = pipeline_of(given)
    app = application(pipeline, settings, given.model)
    config = uvicorn.Config(app, given.host, given.port, access_log=given.access_log, log_level="info")
    DrainingServer(config, pipeline, settings.drain_s).run()
    pipeline.close()
    return 0 if pipeline.health().error is None else 1


if __name__ == "__main__":
    sys.exit(main())
