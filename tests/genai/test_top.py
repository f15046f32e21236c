"""The real `top`, in a real terminal, over the real engine: ready, stopped, going on."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from genai import lanes
from process.terminal import COLUMNS, Terminal

from boundedgen import BoundedPipeline, Limits

STEP = re.compile(r"^ step .*?([\d.]+)s of ", re.MULTILINE)


def step_age(screen: str) -> float:
    found = STEP.search(screen)
    return 0.0 if found is None else float(found[1])


def stop_inside_of_a_step(pipeline: BoundedPipeline) -> int:
    """The engine's process."""
    pid = pipeline.stats().engine_pid
    assert pid is not None
    for _ in range(100):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.05)
        if pipeline.stats().step_current_s > 0.03:
            return pid
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)
    raise AssertionError("never inside of a step")


@pytest.mark.slow
@pytest.mark.timeout(110)
def test_top_shows_an_engine_that_stops_and_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "lane.sock")
    with lanes.lane(scheduler={"num_kv_blocks": 512}, limits=Limits(running_max=4)) as pipeline:
        pipeline.serve_stats(path, name="plain")
        with Terminal(tmp_path, path, "--every", "0.2") as terminal:
            terminal.shows("READY  plain", "nothing is wrong", "nothing inside", "no step ")
            inside = [
                pipeline.submit("x", max_new_tokens=1900, owner=f"user{i}", label="long", **lanes.FULL)
                for i in range(40)
            ]
            terminal.shows("4 running", "user", "waiting")
            pid = stop_inside_of_a_step(pipeline)
            try:
                terminal.until(lambda screen: step_age(screen) > 0.5, "step that grows")
                terminal.shows("READY  plain", "a step hangs, or is long")
                terminal.resize(120, 30)
                terminal.until(lambda screen: screen.count("\n") == 30, "30 lines")
                terminal.resize(COLUMNS, 20)
                screen = terminal.until(lambda screen: screen.count("\n") == 20, "20 lines")
                assert max(map(len, screen.splitlines())) <= COLUMNS
            finally:
                os.kill(pid, signal.SIGCONT)
            terminal.until(lambda screen: "a step hangs" not in screen and step_age(screen) < 0.5, "step that ended")
            for generation in inside:
                generation.cancel()
            terminal.shows("nothing inside", "READY")
            terminal.press("q")
            terminal.shows("left with 0", "icanon")
