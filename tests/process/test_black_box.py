"""The black box of real engines that are stopped, hang, crash or are killed: what is in it, and what it costs."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from process.lanes import (
    AT_ONCE,
    FULL,
    MODELS,
    engine_pid,
    error_of,
    gone,
    kill,
    pulse,
    simulated_host,
    stopped,
    until,
)

from boundedgen import BoundedPipeline, EngineLost, Generation, GenerationShutDown, Limits, RestartPolicy
from boundedgen._blackbox import _box
from boundedgen._blackbox._report import FILES, newest, report
from boundedgen._blackbox._witness import NAME

pytestmark = [pytest.mark.timeout(110), pytest.mark.usefixtures("nothing_left_behind")]

TIGHT = Limits(step=0.5, first_step=1.0, new_shape=1.0, ack=0.5, reclaim=0.5, progress=0.5, running_max=3, evidence=2.0)
FOR_EVER = RestartPolicy(wait=lambda state: 0.0, stop=lambda state: False)
IN_STEPS = {"step_s": 0.01}
SLACK = 1.5  #: of a machine that is shared


@contextlib.contextmanager
def boxed(
    where: Path, fault: Mapping[str, Any] | None = None, limits: Limits = TIGHT, restart: RestartPolicy = AT_ONCE
) -> Iterator[BoundedPipeline]:
    host = simulated_host({**IN_STEPS, **(fault or {})}, limits)
    lane = BoundedPipeline(None, engine=host, limits=limits, restart=restart, black_box=where)
    with contextlib.closing(lane):
        lane.wait_ready(30)
        yield lane


def long_ones(lane: BoundedPipeline, count: int = 3, prompt: str = "ab", **more: Any) -> list[Generation]:
    return [lane.submit(prompt, max_new_tokens=30_000, label=f"no {n}", **FULL, **more) for n in range(count)]


def streaming(lane: BoundedPipeline) -> Generation:
    (generation,) = long_ones(lane, 1)
    until(lambda: len(generation.partial.token_ids) >= 2 or generation.finish_reason is not None)
    return generation


def incidents(where: Path) -> list[Path]:
    return sorted(path for path in where.iterdir() if NAME.fullmatch(path.name))


def kept(where: Path, count: int = 1) -> Path:
    """The newest incident, once there are `count`."""
    until(lambda: len(incidents(where)) >= count, what=f"{count} incidents in {where}")
    return incidents(where)[-1]


def told(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "incident.json").read_text())
    return loaded


def rows(folder: Path) -> list[tuple[str, str]]:
    return [(row["phase"], row["label"]) for row in told(folder)["sequences"]]


def served_again(lane: BoundedPipeline, incarnation: int = 2) -> None:
    until(lambda: lane.stats().incarnation >= incarnation and lane.health().ready)
    assert lane.generate([5], max_new_tokens=3, **FULL).completion_tokens == 3


# --- what is in it -----------------------------------------------------------------------------------------------


def test_the_black_box_of_a_hung_engine_names_the_step_the_sequences_and_where_it_stands(tmp_path: Path) -> None:
    with boxed(tmp_path, {"hang_at": 20, "incarnations": [1]}) as lane:
        inside = long_ones(lane, 5)
        assert all(isinstance(error_of(one), EngineLost) for one in inside[:3])
        folder = kept(tmp_path)
        page = told(folder)
        served_again(lane)
    assert folder.name.endswith("-1-step")
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert page["cause"] == "step"
    assert "did not return within 0.56 s" in page["detail"]
    flying = page["step_in_flight"]
    assert (flying["step"], flying["tokens_at_most"]) == (20, 3)
    assert 0.5 < flying["age_s"] < 0.56 + SLACK
    assert rows(folder) == [("running", f"no {n}") for n in range(3)] + [("waiting", f"no {n}") for n in (3, 4)]
    assert [row["tokens"] > 10 for row in page["sequences"][:3]] == [True] * 3
    assert page["stats"]["running"] == 3
    assert page["stats"]["waiting"] == 2
    assert page["facts"]["pools"][0]["name"] == "kv"
    assert page["configuration"]["limits"]["step"] == 0.5
    assert {"boundedgen", "python", "kernel"} <= page["versions"].keys()
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, 21))
    assert steps[-1]["in_flight"]
    assert all(step["live"] == 3 and step["scheduled"] == 3 for step in steps[2:-1])
    inputs = [json.loads(line)["input"] for line in (folder / "inputs.jsonl").read_text().splitlines()]
    assert {"submit", "receive", "tick", "pulse"} <= set(inputs)
    assert inputs[-1] in ("tick", "poll")
    stacks = (folder / "stacks.txt").read_text()
    assert "in _hang" in stacks
    assert "in _sleep_holding_the_gil" in stacks
    threads = (folder / "threads.txt").read_text()
    assert f"thread {page['pid']} (" in threads
    assert "wchan " in threads
    assert "VmRSS" in threads
    assert "/proc/loadavg" in (folder / "machine.txt").read_text()
    assert page["evidence"]["seconds"] < 2.0


def test_the_black_box_of_a_stopped_real_engine_has_its_stack_since_it_is_continued_once_it_is_given_up(
    tmp_path: Path,
) -> None:
    lane = BoundedPipeline(
        MODELS / "plain", {"num_kv_blocks": 2048}, "CPU", limits=TIGHT, restart=AT_ONCE, black_box=tmp_path
    )
    with contextlib.closing(lane):
        lane.wait_ready(60)
        generation = streaming(lane)
        pid = engine_pid(lane)
        with stopped(pid):
            began = time.monotonic()
            assert isinstance(error_of(generation), EngineLost)
            gone(pid, TIGHT.evidence + SLACK)
            assert time.monotonic() - began < 0.5 + 0.6 + TIGHT.evidence + SLACK
        folder = kept(tmp_path)
        page = told(folder)
        assert page["cause"] in ("step", "ack", "progress")
        assert page["configuration"]["scheduler"]["num_kv_blocks"] == 2048
        assert "openvino" in " ".join(page["versions"])
        assert page["facts"]["device"]
        assert rows(folder) == [("running", "no 0")]
        stacks = (folder / "stacks.txt").read_text()
        assert "was stopped" in stacks
        assert "most recent call first" in stacks
        assert "_engine/_child.py" in stacks
        assert f"thread {pid} (" in (folder / "threads.txt").read_text()
        assert ": T\n" in (folder / "threads.txt").read_text()
        served_again(lane)


def test_the_black_box_of_a_crash_has_the_stack_that_python_printed_and_what_the_machine_knows(tmp_path: Path) -> None:
    with boxed(tmp_path, {"crash_at": 20, "incarnations": [1]}) as lane:
        inside = long_ones(lane)
        assert all(isinstance(error_of(one), EngineLost) for one in inside)
        folder = kept(tmp_path)
        served_again(lane)
    page = told(folder)
    assert page["cause"] == "died"
    assert "signal 11" in page["detail"]
    assert page["step_in_flight"]["step"] == 20
    assert rows(folder) == [("running", f"no {n}") for n in range(3)]
    assert page["failures_in_a_row"] == 1
    assert "Segmentation fault" in (folder / "output.txt").read_text()
    assert "in _crash" in (folder / "output.txt").read_text()
    assert "had ended" in (folder / "stacks.txt").read_text()
    assert "== kernel log" in (folder / "machine.txt").read_text()
    shown, missing = report(tmp_path)
    assert missing == []
    assert "Fatal Python error: Segmentation fault" in shown
    assert "Step 20 was in flight" in shown


@pytest.mark.parametrize(
    ("fault", "cause", "says"),
    [
        ({"raise_at": 5}, "step_raised", "a fault was asked for"),
        ({"exit_at": 5}, "died", "exit status 3"),
        ({"garbage_at": 5}, "wire", "frame"),
        ({"boot_raises": ["memory", "busy", False]}, "boot", "busy"),
    ],
)
def test_every_loss_of_an_engine_is_an_incident(tmp_path: Path, fault: dict[str, Any], cause: str, says: str) -> None:
    with boxed(tmp_path, {**fault, "incarnations": [1]}) as lane:
        if cause != "boot":
            assert isinstance(error_of(long_ones(lane, 1)[0]), EngineLost)
        folder = kept(tmp_path)
        served_again(lane)
    page = told(folder)
    assert (page["cause"], len(incidents(tmp_path))) == (cause, 1)
    assert says in page["detail"] + (folder / "output.txt").read_text()
    assert "Incident" in report(folder)[0]


def test_an_engine_that_ignores_a_stop_leaves_the_stay_that_it_held(tmp_path: Path) -> None:
    with boxed(tmp_path, {"ignore_stops": True, "incarnations": [1]}) as lane:
        held, other = long_ones(lane, 2)
        until(lambda: bool(held.partial.token_ids and other.partial.token_ids))
        held.cancel()
        folder = kept(tmp_path)
    page = told(folder)
    assert page["cause"] == "reclaim"
    assert [(row["phase"], row["answered"]) for row in page["sequences"]] == [
        ("stopping", "cancelled"),
        ("running", "engine_lost"),
    ]


def test_an_orderly_close_is_no_incident_and_one_that_dies_during_a_drain_is(tmp_path: Path) -> None:
    with boxed(tmp_path) as lane:
        running = streaming(lane)
    assert isinstance(error_of(running), GenerationShutDown)
    assert incidents(tmp_path) == []
    with boxed(tmp_path, {"exit_at": 60}) as lane:
        running = streaming(lane)
        lane.close(drain=20)
    assert isinstance(error_of(running), EngineLost | GenerationShutDown)
    assert told(kept(tmp_path))["cause"] == "died"


# --- what is not in it -------------------------------------------------------------------------------------------


def test_no_prompt_no_output_and_no_lease_id_is_anywhere_in_it(tmp_path: Path) -> None:
    asked = "what nobody else may ever read"
    with boxed(tmp_path, {"hang_at": 30, "incarnations": [1]}) as lane:
        lease = lane.lease("an owner", ttl=600)
        inside = long_ones(lane, 5, asked, lease=lease)
        lane.renew(lease.id)
        messages = [{"role": "user", "content": asked}]
        lane.submit(messages, max_new_tokens=30, label="chat", owner="other", stop_strings=[asked])
        assert isinstance(error_of(inside[0]), EngineLost)
        folder = kept(tmp_path)
        answered = inside[0].partial
        tokens = lane._driver.flows[inside[4].id].prompt
    assert len(answered.token_ids) > 20
    everything = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"an owner" in everything
    for secret in (asked, asked[5:15], lease.id, answered.text[:8]):
        assert secret.encode() not in everything, secret
    for ids in (tokens, answered.token_ids):
        assert str(list(ids[:4]))[1:-1].encode() not in everything
        assert str(list(ids[:4]))[1:-1].replace(" ", "").encode() not in everything
    hashes = {row["lease"] for row in told(folder)["sequences"]}
    assert {len(h) for h in hashes - {None}} == {8}
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


# --- what it costs -----------------------------------------------------------------------------------------------


def witness(lane: BoundedPipeline, code: str) -> None:
    """Have `code` run instead of what gathers evidence."""
    box = lane._driver.leaving.black_box
    assert box is not None
    box.about.witness = (sys.executable, "-I", "-S", "-c", code)


@pytest.mark.parametrize(
    "does", ["import time; time.sleep(90)", "import time; print('gathered', flush=True); time.sleep(90)"]
)
def test_evidence_that_blocks_delays_the_kill_until_the_end_of_its_time_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, does: str
) -> None:
    monkeypatch.setattr(_box, "PATIENCE", 0.2)
    limits = Limits(step=0.5, first_step=1.0, new_shape=1.0, running_max=3, evidence=1.5)
    blocks = "gathered" not in does
    with boxed(tmp_path, {"hang_at": 20, "incarnations": [1]}, limits) as lane:
        witness(lane, does)
        inside, pid = long_ones(lane), engine_pid(lane)
        assert all(isinstance(error_of(one), EngineLost) for one in inside)
        answered = time.monotonic()
        if blocks:  # it is there, and looked at, when its callers have long been answered
            time.sleep(0.5)
            assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        gone(pid, 1.5 + SLACK)
        assert time.monotonic() - answered < 1.5 + SLACK
        served_again(lane)
        until(lambda: "could not be written" in caplog.text)
    assert incidents(tmp_path) == []
    assert sum("could not be written" in record.message for record in caplog.records) == 1


def test_without_time_for_evidence_the_engine_is_killed_at_once_and_what_the_server_knows_is_kept(
    tmp_path: Path,
) -> None:
    limits = Limits(step=0.5, first_step=0.5, new_shape=0.5, running_max=3, evidence=0)
    with boxed(tmp_path, {"hang_at": 20, "incarnations": [1]}, limits) as lane:
        pid = engine_pid(lane)
        assert isinstance(error_of(long_ones(lane, 1)[0]), EngineLost)
        assert gone(pid, 5) < 0.5
        folder = kept(tmp_path)
    assert told(folder)["step_in_flight"]["step"] == 20
    assert "had ended" in (folder / "stacks.txt").read_text()


def test_with_too_many_being_written_it_is_killed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_box, "AT_ONCE_MOST", 0)
    with boxed(tmp_path, {"hang_at": 20, "incarnations": [1]}) as lane:
        pid = engine_pid(lane)
        assert isinstance(error_of(long_ones(lane, 1)[0]), EngineLost)
        assert gone(pid, 5) < 1.0
    assert incidents(tmp_path) == []


def test_a_short_reap_is_not_used_up_by_the_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_box, "PATIENCE", 0.2)
    limits = Limits(step=0.5, first_step=0.5, new_shape=0.5, running_max=3, evidence=60, reap=2.0)
    with boxed(tmp_path, {"hang_at": 20, "incarnations": [1]}, limits) as lane:
        witness(lane, "import time; time.sleep(90)")
        error_of(long_ones(lane, 1)[0])
        served_again(lane)


def test_closing_does_not_wait_for_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_box, "PATIENCE", 0.2)
    with boxed(tmp_path, {"hang_at": 20}) as lane:
        witness(lane, "import time; time.sleep(90)")
        error_of(long_ones(lane, 1)[0])
        began = time.monotonic()
        lane.close()
        assert time.monotonic() - began < TIGHT.evidence + SLACK


def test_only_the_first_of_a_row_and_the_newest_are_kept_and_nothing_else_in_the_folder_is_touched(
    tmp_path: Path,
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "20200101T000000.000Z").mkdir()
    old = tmp_path / "20200101T000000.000Z-1-1-died"
    old.mkdir()
    limits = Limits(running_max=3, incidents_kept=2)
    with boxed(tmp_path, None, limits, FOR_EVER) as lane:
        for incarnation in (1, 2, 3):
            generation = streaming(lane)
            kill(engine_pid(lane))
            assert isinstance(error_of(generation), EngineLost)
            until(lambda n=incarnation: any(f"-{n}-died" in p.name for p in incidents(tmp_path)))  # type: ignore[misc]
            served_again(lane, incarnation + 1)
        until(lambda: len(incidents(tmp_path)) == 2)
        names = [path.name for path in incidents(tmp_path)]
    assert [name.split("-")[2] for name in names] == ["1", "3"]
    assert "signal 9" in told(tmp_path / names[-1])["detail"]
    if told(tmp_path / names[-1])["machine"]["oom_kills"] is not None:
        assert "not the kernel for want of memory" in report(tmp_path)[0]
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted([*names, "notes.txt", "20200101T000000.000Z"])


# --- where it cannot be written -------------------------------------------------------------------------------------


def test_a_folder_that_is_gone_later_is_said_once_and_the_lane_serves_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    where = tmp_path / "box"
    with boxed(where, None, Limits(running_max=3), FOR_EVER) as lane, caplog.at_level(logging.WARNING, "boundedgen"):
        shutil.rmtree(where)
        for incarnation in (1, 2):
            generation = streaming(lane)
            kill(engine_pid(lane))
            assert isinstance(error_of(generation), EngineLost)
            served_again(lane, incarnation + 1)
        box = lane._driver.leaving.black_box
        assert box is not None
        box.join(20)
    complaints = [record.message for record in caplog.records if "could not be written" in record.message]
    assert len(complaints) == 1
    assert "No such file or directory" in complaints[0]
    assert not where.exists()


@contextlib.contextmanager
def small_disk(where: Path, size: str) -> Iterator[Path]:
    where.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", where], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", where], check=True)


def test_a_disk_that_is_full_later_keeps_incident_json_if_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", "64k") as where, boxed(where) as lane:
        (where / "ballast").write_bytes(bytes(36 << 10))
        generation = streaming(lane)
        until(lambda: pulse(lane).steps_ended > 60)  # enough inputs to fill what is left
        kill(engine_pid(lane))
        assert isinstance(error_of(generation), EngineLost)
        folder = kept(where)
        served_again(lane)
        until(lambda: "No space left" in caplog.text)
        shown, missing = report(folder)
        assert missing
        assert f"missing: {', '.join(missing)}" in shown
        for written in folder.glob("*.jsonl"):
            assert written.read_bytes().endswith(b"\n"), "what is there is whole"


def test_a_disk_that_is_full_at_the_start_is_refused_by_name(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "16k") as where:
        with contextlib.suppress(OSError):
            (where / "ballast").write_bytes(bytes(1 << 20))
        with pytest.raises(ValueError, match=r"black_box.*No space left"):
            BoundedPipeline(None, engine=simulated_host(), black_box=where)


# --- reading it ----------------------------------------------------------------------------------------------------


def test_the_command_prints_the_newest_incident(tmp_path: Path) -> None:
    with boxed(tmp_path, {"hang_at": 20, "incarnations": [1]}) as lane:
        error_of(long_ones(lane, 1)[0])
        kept(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "boundedgen", "incident", tmp_path], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"Incident {newest(tmp_path).name}"
    assert "was given up (step)" in lines[1]
    assert any("Step 20 was in flight" in line for line in lines)
    assert any("in _hang" in line for line in lines)
    assert any("running" in line and "no 0" in line for line in lines)
