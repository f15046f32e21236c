"""`serve_stats` and `top --once` over real engine processes that hang, and that have been given up."""

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from process.lanes import engine_pid, simulated_lane, until, until_in_step

from boundedgen import EngineFailed, Limits, RestartPolicy
from boundedgen.__main__ import main
from boundedgen._top._lanes import ask

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


def served(path: Path) -> dict[str, Any]:
    began = time.monotonic()
    document = dict(ask(str(path)))
    assert time.monotonic() - began < 1
    return document


def test_it_answers_while_the_engine_is_stopped_and_shows_the_step_grow(tmp_path: Path) -> None:
    path = tmp_path / "lane.sock"
    with simulated_lane({"step_s": 0.2}, limits=Limits(step=60)) as lane:
        lane.serve_stats(path)
        generation = lane.submit("x", max_new_tokens=1000, owner="ann")
        until_in_step(lane)
        os.kill(engine_pid(lane), signal.SIGSTOP)
        until(lambda: served(path)["stats"]["step_current_s"] > 0.5)
        document = served(path)
        assert document["stats"]["running"] == 1
        assert document["stats"]["engine_pid"] == engine_pid(lane)
        assert document["stats"]["sequences"][0]["owner"] == "ann"
        assert document["stats"]["step_budget_s"] > 1
        os.kill(engine_pid(lane), signal.SIGCONT)
        until(lambda: served(path)["stats"]["step_current_s"] < 0.5)
        generation.cancel()


def test_it_answers_for_a_lane_that_has_failed_until_that_is_closed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lane.sock"
    lane = simulated_lane(restart=RestartPolicy(stop=lambda state: True))
    lane.wait_ready()
    lane.serve_stats(path, name="gpu-0")
    os.kill(engine_pid(lane), signal.SIGKILL)
    until(lambda: served(path)["health"]["state"] == "failed")
    document = served(path)
    assert (document["health"]["live"], document["health"]["error"]["type"]) == (False, EngineFailed.__name__)
    assert main(["top", "--once", str(path)]) == 1
    said = capfd.readouterr().out
    assert "FAILED  gpu-0" in said
    assert "!! EngineFailed: " in said
    assert "!! it will not heal by itself: restart the process" in said
    lane.close()
    assert not path.exists()
    assert main(["top", "--once", str(path)]) == 2


def test_who_asks_all_the_time_disturbs_nobody_and_each_answer_adds_up(tmp_path: Path) -> None:
    path = tmp_path / "lane.sock"
    with simulated_lane() as lane, lane.serve_stats(path):
        inside = [lane.submit("x", max_new_tokens=200) for _ in range(8)]
        asked = 0
        while not all(generation.finish_reason for generation in inside):
            stats = served(path)["stats"]
            assert (
                stats["submitted_total"] == sum(stats["finished_total"].values()) + stats["waiting"] + stats["running"]
            )
            asked += 1
        assert asked
        assert [generation.result(10).completion_tokens for generation in inside] == [200] * 8


def test_what_is_sent_to_it_never_reaches_the_lane(tmp_path: Path) -> None:
    path = tmp_path / "lane.sock"
    with simulated_lane() as lane, lane.serve_stats(path):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(str(path))
            client.sendall(b"POST /submit HTTP/1.1\r\n\r\n" + json.dumps({"prompt": "x"}).encode())
            assert client.recv(64).startswith(b"HTTP/1.1 405 ")
        assert lane.stats().submitted_total == 0
