"""A pipeline's metrics over HTTP, and what a scraper sees there."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from attrs import define, field
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

import boundedgen as b
from boundedgen.exporters.prometheus import PipelineCollector

TIMEOUT_S = 0.7  #: whoever takes longer has not answered this time

Series = tuple[str, tuple[tuple[str, str], ...]]  #: name and labels


@contextlib.contextmanager
def served(pipeline: b.BoundedPipeline, port: int = 0, name: str = "lane") -> Iterator[str]:
    """Where its metrics are, meanwhile."""
    registry = CollectorRegistry()
    registry.register(PipelineCollector({name: pipeline}))
    server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def scraped(address: str) -> dict[Series, float] | None:
    """All there is, but for histograms; None: no answer."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as page:
            text = page.read().decode()
    except (OSError, urllib.error.URLError):
        return None
    families = [f for f in text_string_to_metric_families(text) if f.type != "histogram"]
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


@define(eq=False)
class Recording:
    """What was scraped, one row each `every` seconds from the first answer on, and when the event was."""

    every: float = 1.0
    rows: list[dict[Series, float]] = field(factory=list)
    event: float = 0.0  #: seconds after the first row
    _began: float = 0.0

    def mark(self) -> None:
        """The event is now."""
        self.event = time.monotonic() - self._began

    @contextlib.contextmanager
    def of(self, address: str) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._run, args=(address, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(10)

    def _run(self, address: str, over: threading.Event) -> None:
        while (first := scraped(address)) is None:
            if over.wait(0.05):
                return
        self._began = time.monotonic()
        self.rows.append(first)
        while not over.wait(max(0.0, self._began + len(self.rows) * self.every - time.monotonic())):
            self.rows.append(scraped(address) or {})
