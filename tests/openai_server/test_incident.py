"""A proxy that holds its sockets and reads on for clients that are gone; and many clients, some of whom leave."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sse_soak
from attrs import evolve
from holding_proxy import nginx
from proxy_incident import WITH, WITHOUT, Plan, Probe, Told, complaints, figures_of, incidents, short
from workload import small

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


@pytest.mark.parametrize("proxy", ["own", "nginx"])
def test_a_proxy_that_reads_on_holds_the_lane_without_leases_and_does_not_with_them(proxy: str) -> None:
    """A request for one token waits for as long as the proxy holds on; with leases for their ttl and two steps."""
    if proxy == "nginx" and nginx() is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    plan = short(proxy)
    told = asyncio.run(incidents(plan))
    assert complaints(plan, told) == [], (told[WITHOUT].probes, told[WITH].probes)
    assert figures_of(told[WITHOUT])["orphans inside for, s"] > 0.8 * plan.hold
    assert figures_of(told[WITH])["orphans inside for, s"] < plan.ttl + 0.5
    if proxy == "own":
        assert told[WITHOUT].void > told[WITH].void > 0


def test_of_many_clients_that_stream_and_leave_nothing_is_left_and_every_answer_ends_typed() -> None:
    report = asyncio.run(sse_soak.soak(small(), clients=40, seconds=2.0, warm_up=1.0, seed=1))
    assert report.complaints(timed=False) == [], report
    assert sum(report.ends.values()) > 40


def test_what_is_left_behind_late_or_untyped_is_a_complaint() -> None:
    rest = sse_soak.Look(100.0, 20, 5)
    good = sse_soak.Report(1, 1.0, {"done stop": 1, "left": 1}, rest, rest, {"p99": 19.0}, {})
    assert good.complaints(timed=True) == []
    for bad in (
        evolve(good, ends={**good.ends, "UNTYPED cut off": 1}),
        evolve(good, ends={"done stop": 1}),
        evolve(good, after=evolve(rest, rss_mib=117.0)),
        evolve(good, after=evolve(rest, descriptors=21)),
        evolve(good, after=evolve(rest, tasks=6)),
        evolve(good, lag_ms={"p99": 20.0}),
    ):
        assert len(bad.complaints(timed=True)) == 1


def test_the_commands_say_what_they_do(tmp_path: Path) -> None:
    """And draw their picture."""
    pytest.importorskip("matplotlib")
    from proxy_incident_picture import draw

    sample = {"at": 1.0, "waiting": 0, "running": 1, "stopping": 0, "last_step_s": 0.1, "orphans": 1}
    told = {name: Told([Probe(0.5, 0.1), Probe(1.0)], [sample], vanished=0.8) for name in (WITHOUT, WITH)}
    draw(Plan("m", 10), told, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes()[1:4] == b"PNG"
    for script in ("proxy_incident", "sse_soak"):
        command = [sys.executable, f"benchmarks/{script}.py", "--help"]
        places = os.pathsep.join(("src", ".", os.environ.get("PYTHONPATH", "")))
        done = subprocess.run(
            command, cwd=Path(__file__).parents[2], env={**os.environ, "PYTHONPATH": places},
            capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
        assert f"python benchmarks/{script}.py" in done.stdout
