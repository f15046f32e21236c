"""What is asked of a lane over HTTP by others than its clients. python examples/probes_and_metrics.py MODEL [DEVICE]

Wants boundedgen[prometheus].
"""

import json
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

import boundedgen as b
from boundedgen.endpoints import Answer, liveness, readiness, startup
from boundedgen.exporters.prometheus import PipelineCollector


def answer(pipeline: b.BoundedPipeline, path: str) -> Answer | None:
    """Status, headers and body, at once, in every state: `JSONResponse(it.body, it.status, it.headers)`."""
    health = pipeline.health()
    if path == "/startup":
        return startup(health)
    if path == "/live":
        return liveness(health)  # it stays 200 while the engine is replaced
    if path in ("/ready", "/health"):  # the latter is what proxies ask
        return readiness(health, pipeline.stats())
    if path == "/stats":  # for `python -m boundedgen top URL`
        return Answer(status=200, headers={}, body=pipeline.stats_document("chat"))
    return None


def deep_probe(pipeline: b.BoundedPipeline) -> b.ProbeVerdict:
    """Does a token come through, now? In a slot of its own, however full the lane is; a timeout is FAILED."""
    return pipeline.probe(timeout=10).verdict


def serve(pipeline: b.BoundedPipeline, port: int = 9464) -> ThreadingHTTPServer:
    """From threads of its own, from before the model is loaded until after the drain; in a web framework: routes."""
    REGISTRY.register(PipelineCollector({"chat": pipeline}))

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self.reply(200, {"Content-Type": CONTENT_TYPE_LATEST}, generate_latest())
            elif (told := answer(pipeline, self.path)) is not None:
                body = json.dumps(told.body, allow_nan=False).encode()
                self.reply(told.status, {"Content-Type": "application/json", **told.headers}, body)
            else:
                self.send_error(404)

        def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: they come every few seconds."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Pages)  # "" where others than this machine ask
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


# --- try it ----------------------------------------------------------------------------------------------------------


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as page:
            return int(page.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def main(model: str, device: str = "CPU") -> None:
    pipeline = b.BoundedPipeline(model, {"num_kv_blocks": 64}, device)
    with serve(pipeline, port=0) as server:
        base = f"http://127.0.0.1:{server.server_port}"
        with pipeline:
            pipeline.generate("Hello", max_new_tokens=5)
            told = {
                page: status(f"{base}/{page}") for page in ("ready", "live", "startup", "stats", "metrics", "other")
            }
            print("probe", deep_probe(pipeline), told)
        print("closed:", {page: status(f"{base}/{page}") for page in ("ready", "live", "metrics")})
        server.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
