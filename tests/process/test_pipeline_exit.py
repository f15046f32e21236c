"""What the supervisor of a server sees of a lane that has failed: a process that did not end well."""

from __future__ import annotations

import contextlib
import signal
import socket
import textwrap
import time
from pathlib import Path

import pytest
from process.lanes import said, script

pytestmark = pytest.mark.timeout(60)

SERVER = textwrap.dedent(
    """
    import sys, time
    from boundedgen import GenerationError, HealthState, RestartPolicy
    from process.lanes import simulated_lane

    budget = RestartPolicy(wait=lambda state: 0.0, stop=lambda state: state.attempt_number >= 1)
    sys.excepthook = lambda kind, error, trace: print(kind.__name__, error)
    with simulated_lane({"raise_at": int(sys.argv[1])}, restart=budget) as lane:
        try:
            lane.generate([5], max_new_tokens=3, timeout=20)
        except GenerationError:
            while lane.health().state is HealthState.RECOVERING:
                time.sleep(0.01)
        print(lane.health().state, flush=True)
    """
)


def test_field_report_54_a_server_whose_lane_has_failed_does_not_exit_with_0() -> None:
    with script(SERVER, 1) as process:
        assert said(process) == "failed"
        assert said(process).startswith("EngineFailed the restart budget is used up; last: step_raised")
        assert process.wait(20) == 1


def test_a_server_whose_lane_has_not_failed_exits_with_0() -> None:
    with script(SERVER, 1000) as process:
        assert said(process) == "ready"
        assert process.wait(20) == 0


SERVICE = textwrap.dedent(
    """
    import signal, threading
    from boundedgen.systemd import Notifier
    from process.lanes import simulated_lane

    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    pipeline = simulated_lane({"step_s": 0.02})
    with Notifier(pipeline), pipeline:
        generation = pipeline.submit([5], max_new_tokens=60, ignore_eos=True)
        print("serving", flush=True)
        while not over.wait(1.0) and pipeline.health().error is None:
            pass
    print(generation.finish_reason, flush=True)
    """
)


def test_a_service_of_systemd_is_ready_is_live_drains_on_sigterm_and_exits_with_0(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The service of docs/systemd.md; the test is systemd, and stops it as `KillMode=mixed` does."""
    path = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    monkeypatch.setenv("WATCHDOG_USEC", "500000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    told: list[str] = []
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as systemd:
        systemd.bind(path)
        systemd.settimeout(20)
        with script(SERVICE) as process:
            while "READY=1" not in told or told.count("WATCHDOG=1") < 2:
                told += systemd.recv(4096).decode().split("\n")
            said(process, "serving")
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            while told[-1] != "STOPPING=1":
                told += systemd.recv(4096).decode().split("\n")
            assert said(process) == "length", "it was drained"
            assert process.wait(20) == 0
            assert time.monotonic() - began < 10
    news = [line for line in told if line != "WATCHDOG=1"]
    assert news in (
        ["STATUS=starting", "READY=1", "STATUS=ready", "STATUS=draining", "STOPPING=1"],
        ["READY=1", "STATUS=ready", "STATUS=draining", "STOPPING=1"],  # a very quick start
    )
