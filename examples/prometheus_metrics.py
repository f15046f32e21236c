"""Metrics for Prometheus, from a server's own registry. python examples/prometheus_metrics.py MODEL [DEVICE]"""

import sys
import urllib.request
from wsgiref.simple_server import WSGIServer

from prometheus_client import REGISTRY, start_http_server

import boundedgen as b
from boundedgen.exporters.prometheus import PipelineCollector


def tell(**pipelines: b.BoundedPipeline) -> PipelineCollector:
    """Beside what this server's registry has already; `pipeline="chat"` is the label of one that is given as `chat`."""
    collector = PipelineCollector(pipelines)
    REGISTRY.register(collector)
    return collector


def serve(port: int = 9464) -> WSGIServer:
    """/metrics, on a port and in a thread of its own. In a web framework mount `prometheus_client.make_asgi_app()`."""
    server, _ = start_http_server(port, addr="127.0.0.1")
    return server


# --- try it ----------------------------------------------------------------------------------------------------------


def main(model: str, device: str = "CPU") -> None:
    with b.BoundedPipeline(model, {"num_kv_blocks": 64}, device) as pipeline:
        tell(chat=pipeline)
        pipeline.generate("Hello", max_new_tokens=5, ignore_eos=True)
        with serve(port=0) as server:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as page:
                lines = page.read().decode().splitlines()
            server.shutdown()
        wanted = ("boundedgen_health{", "boundedgen_tokens_total{", "boundedgen_first_token_seconds_count{")
        print(*(line for line in lines if line.startswith(wanted)), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
