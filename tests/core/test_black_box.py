"""What the black box writes of what the driver knows, where it may be put, and how a folder is read again."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest
from core.hand_engine import A, HandEngine, lane, until

import boundedgen as b
from boundedgen._blackbox import _box, _scene, _witness
from boundedgen._blackbox._report import newest, report
from boundedgen._bounds import Bounds
from boundedgen._core import _events as ev
from boundedgen._core._leases import Lease
from boundedgen._core._recording import INPUTS
from boundedgen._core._sequences import Submission
from boundedgen._lease import hashed

NAME = "20260101T000000.000Z-7-1-step"
LEASE = "0123456789abcdef"


# --- an engine that is no process ------------------------------------------------------------------------------------


def test_an_engine_that_is_no_process_is_killed_at_once_and_what_the_server_knows_is_kept(tmp_path: Path) -> None:
    with lane(HandEngine(running_max=1), black_box=tmp_path) as (pipeline, engine):
        inside, waiting = (pipeline.submit("x", max_new_tokens=8, label=name) for name in ("in", "out"))
        engine.say(A)
        until(lambda: inside.partial.text == "a")
        engine.die()
        with pytest.raises(b.EngineLost):
            inside.result(20)
        until(lambda: bool(list(tmp_path.glob("*-died"))))
        assert waiting.phase is not None
    page, missing = report(tmp_path)
    assert missing == []
    assert "running" in page
    assert "waiting" in page


@pytest.mark.parametrize("broken", ["scene_of", "stats_of"])
def test_a_black_box_that_fails_changes_nothing_for_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("a bug of the black box's")

    with lane(HandEngine(running_max=1), black_box=tmp_path) as (pipeline, engine):
        monkeypatch.setattr(_box, broken, fail)
        inside = pipeline.submit("x", max_new_tokens=8)
        until(lambda: pipeline.stats().running == 1) if broken == "scene_of" else engine.stay()
        engine.die()
        with pytest.raises(b.EngineLost):
            inside.result(20)
        until(lambda: "the black box failed" in caplog.text)
        until(lambda: pipeline.health().ready)
    assert list(tmp_path.iterdir()) == []


def kept(where: Path, count: int) -> list[dict[str, Any]]:
    """What incident.json says of each, the oldest first, once there are `count`."""
    until(lambda: len(list(where.glob("2*-*"))) == count)
    return [json.loads((folder / "incident.json").read_text()) for folder in sorted(where.glob("2*-*"))]


def raises(engine: HandEngine) -> None:
    engine.link.tell(ev.StepRaised(engine.link.incarnation, 1, "by hand"))


@pytest.mark.parametrize("lose", [HandEngine.die, raises])
def test_what_was_answered_is_in_the_incident_whether_the_engine_died_or_was_killed(
    tmp_path: Path, lose: Callable[[HandEngine], None]
) -> None:
    with lane(HandEngine(running_max=1), black_box=tmp_path) as (pipeline, engine):
        inside, waiting = (pipeline.submit("x", max_new_tokens=8) for _ in range(2))
        engine.stay()
        until(lambda: pipeline.stats().waiting == 1)
        lose(engine)
        with pytest.raises(b.EngineLost):
            inside.result(20)
        (told,) = kept(tmp_path, 1)
        assert waiting.phase is not None
    assert [(row["phase"], row["answered"]) for row in told["sequences"]] == [
        ("running", "engine_lost"),
        ("waiting", None),
    ]


@pytest.mark.parametrize("lose", [HandEngine.die, raises])
def test_the_way_of_a_sequence_into_quarantine_is_told_by_the_incidents(
    tmp_path: Path, lose: Callable[[HandEngine], None]
) -> None:
    again = b.RestartPolicy(resume="continue", wait=lambda state: 0.0)
    with lane(HandEngine(), black_box=tmp_path, restart=again) as (pipeline, engine):
        culprit = pipeline.submit("x", max_new_tokens=8)
        engine.stay()
        lose(engine)
        until(lambda: len(engine.links) == 2 and engine.link.requests)
        lose(engine)
        with pytest.raises(b.GenerationQuarantined):
            culprit.result(20)
        first, second = kept(tmp_path, 2)
    names = ("phase", "answered", "crashes", "strikes", "suspect", "trial")
    (row,), (again_row,) = first["sequences"], second["sequences"]
    assert [row[name] for name in names] == ["running", None, 1, 1, True, False]
    assert [again_row[name] for name in names] == ["running", "quarantined", 2, 2, True, True]
    page, _ = report(newest(tmp_path))
    assert re.search(r"answered +crashes +strikes +suspect +fruitless +trial", page)
    assert re.search(r"quarantined +2 +2 +yes +2 +yes", page)


def test_of_a_row_of_failures_the_first_incident_is_kept_beside_the_newest(tmp_path: Path) -> None:
    again = b.RestartPolicy(wait=lambda state: 0.0, stop=lambda state: False)
    limits = b.Limits(incidents_kept=2)
    with lane(HandEngine(), black_box=tmp_path, restart=again, limits=limits) as (pipeline, engine):
        for lost in (1, 2, 3, 4):
            until(lambda n=lost: len(engine.links) == n and pipeline.health().ready)  # type: ignore[misc]
            engine.die()
            until(lambda n=lost: bool(list(tmp_path.glob(f"2*-{n}-died"))))  # type: ignore[misc]
            until(lambda n=lost: len(list(tmp_path.glob("2*-*"))) <= 2)  # type: ignore[misc]
        first, last = kept(tmp_path, 2)
        oldest = min(path.name for path in tmp_path.glob("2*-*"))
    assert (first["incarnation"], last["incarnation"]) == (1, 4)
    assert last["first_of_row"] == first["first_of_row"] == oldest
    assert f"4 failures in a row, the first: {oldest}" in report(tmp_path)[0]


# --- in words --------------------------------------------------------------------------------------------------------


def test_every_input_of_the_governor_becomes_a_line_without_tokens_and_without_ids_of_leases() -> None:
    submission = Submission(id=3, prompt_tokens=2, max_new_tokens=4, lease=LEASE, bounds=Bounds(total=5))
    result = ev.SequenceResult((65501, 65502), (-0.5,), None)
    finish = ev.Finish(1, "stop", (result,))
    refusal = ev.Refusal(1, "invalid", "x" * 5000)
    stays = {"held", "taken", "stopping", "paused"}
    numbers = {field.name for field in attrs.fields(ev.Progress) if "tuple[int, ...]" in str(field.type)} - stays
    rows: dict[str, Any] = dict.fromkeys(numbers, (7, 65501))  # of which it is not known that they are no tokens
    progress = ev.Progress(
        1, steps=1, began=0.0, ended=1.0, scheduled=1, usage=0.5, held=(1,), finished=(finish,), refused=(refusal,),
        outputs=(ev.Output(1, (65501, 65502), (-0.5, -0.5)),), **rows,
    )  # fmt: skip
    given: dict[str, tuple[Any, ...]] = {
        "submit": (submission, 1.0),
        "refuse": (3, "Failed to compile: private words", 1.0),
        "grant": (Lease(id=LEASE, owner="me", ttl=5), 1.0),
        **dict.fromkeys(("renew", "revoke", "expire", "seen"), (LEASE, 1.0, 2.0)),
        "receive": (progress, 1.0),
        "cancel": (3, 1.0, b.FinishReason.SLOW_READER),
        "tighten": (3, Bounds(total=float("inf")), 0.0, 1.0),
        "pulse": (ev.Pulse(), 1.0),
    }
    inputs = [(name, given.get(name, (1.0,))) for name in INPUTS]
    lines = list(_scene.input_lines(inputs))
    assert [json.loads(line)["input"] for line in lines] == list(INPUTS)
    text = "\n".join(lines)
    assert LEASE not in text
    assert "65501" not in text
    assert "private" not in text
    assert text.count(hashed(LEASE) or "never") == 6
    assert max(map(len, lines)) < 1000
    (received,) = [json.loads(line)["args"][0] for line in lines if '"receive"' in line]
    assert received["outputs"] == [{"stay": 1, "token_ids": 2, "logprobs": 2}]
    assert received["singles"] == [7], "whose they are, not which"


def test_the_last_lines_are_kept_where_not_all_fit() -> None:
    lines = [f"line {n}" for n in range(100)]
    assert _scene.last_that_fit(lines, 15) == "line 99\n"
    assert _scene.last_that_fit(lines, 16) == "line 98\nline 99\n"
    assert _scene.last_that_fit(["é" * 8], 16) == ""
    assert _scene.last_that_fit(["é" * 8], 17) == "é" * 8 + "\n"


def test_of_too_many_sequences_as_many_are_listed_as_fit_and_the_rest_is_counted(tmp_path: Path) -> None:
    limits = b.Limits(running_max=1, incident_bytes=1 << 18)
    with lane(HandEngine(running_max=1), black_box=tmp_path, limits=limits) as (pipeline, engine):
        label = "many " * 40
        everybody = [pipeline.submit("x", max_new_tokens=8, label=label) for _ in range(300)]
        until(lambda: pipeline.stats().running == 1 and pipeline.stats().waiting == 299)
        engine.die()
        until(lambda: bool(list(tmp_path.glob("*-died"))))
        del everybody
    folder = newest(tmp_path)
    told = json.loads((folder / "incident.json").read_text())
    assert len(told["sequences"]) + told["sequences_left_out"] == 300
    assert 10 < len(told["sequences"]) < 201
    assert told["sequences"][0]["phase"] == "running"
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 1 << 18


# --- what the kernel tells -------------------------------------------------------------------------------------------


def test_of_the_kernels_log_only_what_is_no_older_than_the_engine_is_kept_and_what_names_it_is_told() -> None:
    log = [
        (10.0, "python[77]: segfault at 119"),
        (60.0, "xe 0000:03:00.0: [drm] GPU HANG"),
        (70.0, "python[78]: segfault at 0"),
        (80.0, "usb 1-1: new device"),
        (81.0, "INFO: task worker:77 is dead"),
        (99.0, "python[79]: segfault at 0"),
        (99.5, "Out of memory: Killed process 77 (python)"),
    ]

    def naming(text: str, age: float) -> bool:
        return _witness.naming_it(77)(text, age) or ("python" in text and age < 10)

    found, about_it = _witness.told_since(log, 100.0, 50.0, naming)
    assert [line.partition("] ")[2] for line in found] == [text for at, text in log[1:] if at != 80.0]
    assert [line.partition("] ")[2] for line in about_it] == [text for at, text in log if at >= 81.0]
    when = datetime.fromisoformat(about_it[-1].split()[0])
    assert abs((datetime.now(UTC) - when).total_seconds() - 0.5) < 5


def test_a_line_names_a_process_by_its_pid_and_for_a_moment_by_its_name() -> None:
    comm = Path("/proc/self/comm").read_text().strip()
    naming = _witness.naming_it(os.getpid())
    pid = os.getpid()
    for line in (f"{comm}[{pid}]: x", f"Killed process {pid} (x)", f"pid={pid}", f"task x:{pid} blocked", f"x [{pid}]"):
        assert naming(line, 1e6), line
    for line in (f"x[{pid}7]", f"at {pid}", f"x[7{pid}]", "x"):
        assert not naming(line, 0.0), line
    assert naming(f"{comm}[1]: segfault", 1.0)
    assert not naming(f"{comm}[1]: segfault", 1e6)
    assert not _witness.naming_it(0)("pid 0", 1e6)


def test_what_the_control_group_counts_is_told_before_and_now(tmp_path: Path) -> None:
    with lane(HandEngine(), black_box=tmp_path) as (_, engine):
        engine.die()
        (told,) = kept(tmp_path, 1)
    machine = told["machine"]
    assert machine["oom_kills_before"] == machine["oom_kills"] == _witness.oom_kills()
    assert machine["memory"].keys() == {"used", "most", "limit"}
    assert isinstance(machine.get("kernel_log", []), list)
    assert told["exit_status"] == -11


# --- where it is put -------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_one_is_refused_by_name_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for wrong, words in [
        (tmp_path / "file", "not a folder"),
        (tmp_path / "file" / "below", "cannot be written to"),
        (tmp_path / "loop", "black_box"),
        ("/proc/boundedgen", "cannot be written to"),
        ("", "path of a folder"),
        ("a\0b", "path of a folder"),
        (b"bytes", "black_box"),
    ]:
        with pytest.raises((ValueError, TypeError), match=words) as caught:
            b.BoundedPipeline(None, engine=HandEngine(), black_box=wrong)  # type: ignore[arg-type]
        assert "black_box" in str(caught.value)
    with pytest.raises(TypeError, match="black_box must be the path of a folder, not int"):
        b.BoundedPipeline(None, engine=HandEngine(), black_box=5)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "loop"]


def test_a_folder_is_made_and_left_empty_until_there_is_an_incident(tmp_path: Path) -> None:
    assert _box.folder_for(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_values_of_properties_that_look_like_secrets_are_not_told() -> None:
    from boundedgen._making import without_secrets

    given = {"INFERENCE_PRECISION_HINT": "f32", "API_KEY": "abc", "hub_token": "abc", "NUM_STREAMS": 2}
    told = without_secrets(given)
    assert told["INFERENCE_PRECISION_HINT"] == "f32"
    assert told["NUM_STREAMS"] == 2
    assert "abc" not in told.values()


# --- the process that looks and writes -----------------------------------------------------------------------------


@contextlib.contextmanager
def process(code: str) -> Iterator[tuple[int, int]]:
    """A process that has run `code` and sleeps: its pid and a pidfd."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"import signal, time\n{code}\nprint('there', flush=True)\ntime.sleep(60)"],
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline()
    pidfd = os.pidfd_open(child.pid)
    try:
        yield child.pid, pidfd
    finally:
        os.close(pidfd)
        child.kill()
        child.communicate()


def test_an_engine_that_does_not_answer_for_its_stacks_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_witness, "STACK_WAIT", 0.1)
    memory = os.memfd_create("stacks")
    os.write(memory, b"of an earlier time")
    with process("signal.signal(signal.SIGUSR2, signal.SIG_IGN)") as (pid, pidfd):
        text = "\n".join(_witness.stacks(pid, pidfd, memory))
        assert "no stack: it was asked and has not answered within 0.1 s; its main thread is in state S" in text
        os.kill(pid, signal.SIGSTOP)
        until(lambda: _witness.state_of(f"/proc/{pid}") == "T")
        text = "\n".join(_witness.stacks(pid, pidfd, memory))
        assert text.startswith("the process was stopped")
        assert "no stack" in text
    os.close(memory)


def test_what_does_not_come_back_is_left_behind_and_the_rest_is_kept() -> None:
    def stuck() -> Iterator[str]:
        yield "the first line"
        time.sleep(2)
        yield "too late"

    def broken() -> Iterator[str]:
        yield "before"
        raise OSError("no such thing")

    began = time.monotonic()
    kinds: list[tuple[str, str, _witness.Source]] = [
        ("a.txt", "stuck", stuck),
        ("a.txt", "broken", broken),
        ("b.txt", "well", lambda: ["all", "of it"]),
    ]
    texts, late = _witness.gather(kinds, began + 0.3)
    assert time.monotonic() - began < 1.5
    assert late == ["stuck"]
    assert texts["b.txt"] == "== well\nall\nof it\n\n"
    assert "the first line\n<this did not come to an end in time>" in texts["a.txt"]
    assert "before\n<OSError: no such thing>" in texts["a.txt"]
    assert "too late" not in texts["a.txt"]


def test_the_process_that_writes_ends_by_itself_when_nobody_tells_it_anything(tmp_path: Path) -> None:
    now = time.monotonic()
    arguments = (tmp_path, NAME, 2, 1 << 20, now, now + 0.5, os.getpid(), -1, -1, now)
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", _witness.__file__, *map(str, arguments)], stdin=subprocess.PIPE
    )
    assert child.wait(20) == -signal.SIGALRM
    assert child.stdin is not None
    child.stdin.close()
    assert list(tmp_path.iterdir()) == []


def test_unfinished_folders_of_old_are_removed_and_new_ones_and_strangers_stay(tmp_path: Path) -> None:
    names = [f"2026010{n}T000000.000Z-1-1-died" for n in range(1, 5)]
    for name in [*names, f".{names[0]}.part", f".{names[1]}.part", ".git", "my-folder"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("x")
    os.utime(tmp_path / f".{names[0]}.part", (0, 0))
    _witness.prune(tmp_path, 3, names[3], "")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted([*names[1:], f".{names[1]}.part", ".git", "my-folder"])


@pytest.mark.parametrize("keep", [1, 2])
def test_the_incident_just_written_stays_also_when_the_clock_was_ahead_before(tmp_path: Path, keep: int) -> None:
    of_the_future = [f"2099010{n}T000000.000Z-1-1-died" for n in range(1, 5)]
    now = "20260101T000000.000Z-1-1-died"
    for name in [*of_the_future, now]:
        (tmp_path / name).mkdir()
    _witness.prune(tmp_path, keep, now, now)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [now, *of_the_future[len(of_the_future) + 1 - keep :]]
    )


def test_with_too_many_being_written_one_more_is_not_kept_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_box, "AT_ONCE_MOST", 0)
    with lane(HandEngine(running_max=1), black_box=tmp_path) as (pipeline, engine):
        for lost in (1, 2):
            g = pipeline.submit("x", max_new_tokens=8)
            until(lambda n=lost: pipeline.stats().incarnation == n and pipeline.stats().running == 1)  # type: ignore[misc]
            engine.die()
            with pytest.raises(b.EngineLost):
                g.result(20)
    assert list(tmp_path.iterdir()) == []
    (said,) = [r.message for r in caplog.records if "could not be written" in r.message]
    assert said.endswith("too many are being written, or no thread can be started")
