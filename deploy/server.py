"""A real Prometheus on the loopback for as long as it is wanted, which scrapes one address and has our rules."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from deploy.expected import RULES
from deploy.scraped import free_port

START_S = 20.0
CONFIGURATION = """
global: {{scrape_interval: {every}, scrape_timeout: {every}, evaluation_interval: {every}}}
rule_files: [{rules}]
scrape_configs: [{{job_name: lanes, static_configs: [{{targets: ["{address}"]}}]}}]
"""


class QueryError(Exception):
    """Prometheus refuses a query, and says why."""


@frozen
class Prometheus:
    """The API of one that runs."""

    address: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The vector, now."""
        return list(self._ask("query", {"query": expression})["result"])

    def range(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """The matrix."""
        asked = {"query": expression, "start": f"{start}", "end": f"{end}", "step": f"{step}"}
        return list(self._ask("query_range", asked)["result"])

    def targets(self) -> list[dict[str, Any]]:
        return list(self._ask("targets", {})["activeTargets"])

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._ask("rules", {})["groups"] for rule in group["rules"]]

    def _ask(self, what: str, given: Mapping[str, str]) -> Any:
        query = urllib.parse.urlencode(given)
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{what}?{query}", timeout=10) as page:
                said = json.load(page)
        except urllib.error.HTTPError as error:
            raise QueryError(error.read().decode(errors="replace")) from None
        if said.get("warnings"):
            raise QueryError(f"{said['warnings']}")
        return said["data"]


def is_there() -> bool:
    return shutil.which("prometheus") is not None


@contextlib.contextmanager
def prometheus(address: str, every: str = "250ms") -> Iterator[Prometheus]:
    """One that scrapes the `address`. RuntimeError: it did not start, with what it said."""
    with tempfile.TemporaryDirectory(prefix="boundedgen-prometheus-") as folder:
        port = free_port()
        file = Path(folder, "prometheus.yml")
        file.write_text(CONFIGURATION.format(every=every, rules=RULES, address=address), encoding="utf-8")
        command = [
            "prometheus",
            f"--config.file={file}",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        with Path(folder, "said").open("w+") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
            try:
                _wait_for(process, port, Path(folder, "said"))
                yield Prometheus(f"127.0.0.1:{port}")
            finally:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int, said: Path) -> None:
    """Until it knows whom to scrape, which takes it five seconds."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError, QueryError):
            if Prometheus(f"127.0.0.1:{port}").targets():
                return
        time.sleep(0.05)
    raise RuntimeError(f"prometheus did not start: {said.read_text(encoding='utf-8')[-2000:]}")
