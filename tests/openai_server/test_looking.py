"""Probes, metrics and statistics, and requests that come before the lane is ready."""

from __future__ import annotations

import os
import signal
import time

import pytest
from openai_server.served import PLAIN, Served, served

pytestmark = pytest.mark.timeout(60)


def test_probes_metrics_and_statistics_are_served(server: Served) -> None:
    for path in ("/livez", "/readyz", "/startupz", "/health"):
        answer = server.http.get(path)
        assert (answer.status_code, answer.json()["status"]) == (200, "ok")
        assert answer.headers["cache-control"] == "no-store"
    metrics = server.http.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert 'boundedgen_running_sequences{pipeline="plain"} 0.0' in metrics.text
    assert "process_open_fds" in metrics.text
    document = server.http.get("/stats").json()
    assert document["name"] == "plain"
    assert document["health"]["ready"] is True
    assert "load" in server.http.get("/readyz").json()


def test_they_answer_at_once_while_the_engine_hangs_and_clients_are_told_by_their_bounds() -> None:
    with served(faults=True) as server:
        pid = server.stats()["engine_pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            answer = server.post("/v1/chat/completions", server.chat(), **{"X-Bounds": "total=1"})
            assert answer.status_code in (503, 504)
            for path in ("/livez", "/readyz", "/stats", "/metrics"):
                began = time.monotonic()
                server.http.get(path)
                assert time.monotonic() - began < 1
        finally:
            os.kill(pid, signal.SIGCONT)
        server.at_rest()


def test_a_model_that_is_not_there_is_told_by_every_answer_and_by_the_exit_status() -> None:
    with served(PLAIN.with_name("not-there"), ready=False, faults=True, status=1) as server:
        server.wait("/livez", 503)
        assert server.http.get("/startupz").status_code == 200, "which lets the orchestrator ask for liveness"
        answer = server.post("/v1/completions", {"model": "not-there", "prompt": "x"})
        assert answer.status_code == 503
        assert (answer.json()["error"]["type"], answer.json()["error"]["code"]) == (
            "service_unavailable_error",
            "model_load_failed",
        )
        assert int(answer.headers["retry-after"]) >= 1
