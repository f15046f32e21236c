"""Field report 39: what a kill in mid-compile left in CACHE_DIR does not keep the engine from ever starting again."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from counts import happened
from process.engine_life import alive, gone
from process.lanes import AT_ONCE, MODELS, engine_pid, kill, simulated_host, until

import boundedgen as b
from boundedgen._engine import _compile_cache

KILLS = int(os.environ.get("BOUNDEDGEN_KILLS", "3"))


@contextlib.contextmanager
def lane(fault: Mapping[str, Any], properties: Mapping[str, Any]) -> Iterator[b.BoundedPipeline]:
    host = simulated_host(fault, properties=properties)
    with contextlib.closing(b.BoundedPipeline(None, engine=host, restart=AT_ONCE)) as opened:
        yield opened


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """One whose engine does not start with it."""
    folder = tmp_path / "cache"
    folder.mkdir()
    spoil(folder)
    (folder / "kernel.cl_cache").write_bytes(b"half a kernel")
    (folder / "openvino_model.xml").write_text("somebody else's")
    return folder


def spoil(folder: Path) -> None:
    (folder / "bad.blob").write_bytes(b"half a model")


def put_aside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def marks(folder: Path) -> list[str]:
    return sorted(name for name in names(folder) if name.startswith("boundedgen-start"))


def left_mark(folder: Path, compiled: int) -> Path:
    """What a start that did not end in order leaves, which found so many compiled files."""
    mark = folder / f"boundedgen-start-{os.getpid()}-0123abcd-{compiled}"
    mark.touch()
    return mark


def in_properties(folder: Path) -> dict[str, str]:
    return {"CACHE_DIR": str(folder)}


# --- the next one is ready -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "cause"), [("raise", "boot"), ("crash", "died"), ("exit", "died")])
def test_after_a_start_that_failed_the_next_one_puts_the_compile_cache_aside_and_is_ready(
    how: str, cause: str, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "boundedgen")
    with lane({"bad_cache": how}, {"CACHE_DIR": str(cache)}) as pipeline:
        pipeline.wait_ready(60)
        assert happened(pipeline.stats().kills_total) == {cause: 1}
        (aside,) = put_aside(cache)
        assert names(aside) == {"bad.blob", "kernel.cl_cache"}
        assert names(cache) == {"openvino_model.xml", aside.name}, "and no mark"
        (finding,) = pipeline.health().findings
        assert str(aside) in finding
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [f"engine 2: {finding}"]


def test_what_a_start_hangs_on_is_put_aside_also_by_a_server_that_knows_nothing_of_it(cache: Path) -> None:
    """The one before was not ready in time, gave up, and was started anew by systemd."""
    with lane({"bad_cache": "hang"}, in_properties(cache)) as pipeline:
        until(lambda: bool(marks(cache)))
        with pytest.raises(b.EngineUnavailable):
            pipeline.wait_ready(0.1)
    with lane({"bad_cache": "hang"}, in_properties(cache)) as pipeline:
        pipeline.wait_ready(60)
        assert pipeline.stats().incarnation == 1
        (aside,) = put_aside(cache)
        assert str(aside) in pipeline.health().findings[0]


SERVER = """
import sys, time
from process.lanes import simulated_host
link = simulated_host({"bad_cache": "hang"}, properties={"CACHE_DIR": sys.argv[1]}).spawn(1)
print(link.pid, flush=True)
time.sleep(600)
"""


def test_what_a_start_hangs_on_is_put_aside_when_its_server_was_killed(cache: Path) -> None:
    where = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    with subprocess.Popen([sys.executable, "-c", SERVER, str(cache)], stdout=subprocess.PIPE, env=where) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        until(lambda: bool(marks(cache)))
        server.kill()
        assert gone(pid, 10)
    with alive(simulated_host({"bad_cache": "hang"}, properties=in_properties(cache))) as second:
        (aside,) = put_aside(cache)
        assert str(aside) in second.facts.findings[0]
        assert marks(cache) == []


def test_a_relative_folder_of_one_device_of_several_is_found(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cache.parent)
    nested = {"DEVICE_PROPERTIES": {"GPU": {"CACHE_DIR": "cache"}, "CPU": {"CACHE_DIR": str(cache / "none")}}}
    with lane({"bad_cache": "raise"}, nested) as pipeline:
        pipeline.wait_ready(60)
        assert len(put_aside(cache)) == 1


# --- only if it may be the reason ------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", [["model", "no such model", True], ["device", "the device was lost", False]])
def test_a_start_that_failed_for_another_reason_leaves_the_cache_alone(refusal: list[Any], cache: Path) -> None:
    fault = {"boot_raises": refusal, "incarnations": [1]}
    with lane(fault, {"CACHE_DIR": str(cache)}) as pipeline:
        until(lambda: pipeline.health().state in ("ready", "failed"))
        assert not put_aside(cache)
        assert pipeline.health().findings == ()
    assert marks(cache) == []


def test_a_start_that_somebody_killed_costs_one_cache_since_it_may_have_hung(cache: Path) -> None:
    with lane({"boot_s": 60, "incarnations": [1]}, in_properties(cache)) as pipeline:
        until(lambda: bool(marks(cache)))
        kill(engine_pid(pipeline))
        pipeline.wait_ready(60)
        assert len(put_aside(cache)) == 1
        assert marks(cache) == []


def test_an_engine_that_was_ready_leaves_the_cache_alone_when_it_dies(cache: Path) -> None:
    with lane({"crash_at": 1, "incarnations": [1]}, {"CACHE_DIR": str(cache)}) as pipeline:
        pipeline.wait_ready(60)
        with pytest.raises(b.EngineLost):
            pipeline.generate([5], max_new_tokens=3)
        until(lambda: pipeline.stats().restarts_total == 1)
        assert not put_aside(cache)


def test_a_start_that_has_compiled_something_and_was_too_slow_has_got_on_and_keeps_it(tmp_path: Path) -> None:
    """However many starts it takes. The clock plays no part: the files are of tomorrow."""
    (tmp_path / "0.cl_cache").write_bytes(b"whole")
    for number in range(1, 4):
        with alive(simulated_host({"boot_s": 60}, properties=in_properties(tmp_path)), ready=False) as slow:
            until(lambda: any(f"-start-{slow.pid}-" in mark for mark in marks(tmp_path)))
            kernel = tmp_path / f"{number}.cl_cache"
            kernel.write_bytes(b"whole")
            os.utime(kernel, (time.time() + 86400,) * 2)
    with alive(simulated_host(properties=in_properties(tmp_path))) as last:
        assert last.facts.findings == ()
        assert names(tmp_path) == {"0.cl_cache", "1.cl_cache", "2.cl_cache", "3.cl_cache"}


def test_half_a_file_of_a_cold_start_costs_one_start_more(tmp_path: Path) -> None:
    """It cannot be told from what a slow start left; the one that fails on it adds nothing."""
    properties = in_properties(tmp_path)
    with alive(simulated_host({"boot_s": 60}, properties=properties), ready=False):
        pass
    spoil(tmp_path)
    with lane({"bad_cache": "crash"}, properties) as pipeline:
        pipeline.wait_ready(60)
        assert pipeline.stats().incarnation == 2
        assert len(put_aside(tmp_path)) == 1


# --- several at once -------------------------------------------------------------------------------------------------


def test_a_start_that_goes_on_beside_it_is_not_taken_for_one_that_failed(cache: Path) -> None:
    properties = in_properties(cache)
    with alive(simulated_host({"boot_s": 60}, properties=properties), ready=False):
        until(lambda: len(marks(cache)) == 1)
        with alive(simulated_host(properties=properties)) as second:
            assert second.facts.findings == ()
            assert len(marks(cache)) == 1, "its own is gone, and that of the other is not"
    assert not put_aside(cache)


def test_a_mark_counts_for_as_long_as_nobody_holds_it_whatever_its_pid(cache: Path) -> None:
    """A pid is given away again, and means nothing in another container."""
    left_mark(cache, compiled=2)
    start = _compile_cache.Start(in_properties(cache))
    assert len(put_aside(cache)) == 1
    assert marks(cache) == []
    assert len(start.notes) == 1


def test_a_start_that_ends_in_order_while_another_one_looks_is_not_taken_for_one_that_failed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, flock = left_mark(cache, compiled=2), fcntl.flock

    def too_late(file: int, how: int) -> None:
        mark.unlink(missing_ok=True)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    assert _compile_cache.Start(in_properties(cache)).notes == []


# --- once ------------------------------------------------------------------------------------------------------------


def test_starts_that_fail_for_a_reason_of_their_own_come_to_an_end_and_say_what_was_put_aside(cache: Path) -> None:
    with lane({"boot_raises": ["other", "not today", False]}, in_properties(cache)) as pipeline:
        until(lambda: "was put aside" in pipeline.health().reason)
        until(lambda: pipeline.health().state == "failed", 60)
        assert len(put_aside(cache)) == 1
        assert marks(cache) == [], "where nothing is compiled there is nothing to blame"


def test_a_cache_that_is_spoilt_again_is_put_aside_again_when_an_engine_has_been_ready(cache: Path) -> None:
    with lane({"bad_cache": "exit"}, {"CACHE_DIR": str(cache)}) as pipeline:
        pipeline.wait_ready(60)
        (first,) = put_aside(cache)
        spoil(cache)
        kill(engine_pid(pipeline))
        until(lambda: pipeline.stats().incarnation == 4 and pipeline.health().ready)
        (second,) = put_aside(cache)
        assert second.name > first.name, "the newest one only is kept"
        assert pipeline.generate([5], max_new_tokens=3, ignore_eos=True).completion_tokens == 3


# --- moving ----------------------------------------------------------------------------------------------------------


def test_a_name_that_is_taken_is_not_overwritten(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "bad-20300101T000000Z")
    taken = cache / "bad-20300101T000000Z"
    taken.write_text("a file of that name")
    left_mark(cache, compiled=2)
    (note,) = _compile_cache.Start(in_properties(cache)).notes
    assert taken.read_text() == "a file of that name"
    assert names(cache / f"{taken.name}-1") == {"bad.blob", "kernel.cl_cache"}
    assert f"{taken.name}-1" in note


def test_nothing_there_is_nothing_done_and_no_mark_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "none", tmp_path / "file"):
        start = _compile_cache.Start(in_properties(folder))
        start.over()
        assert start.notes == []
    assert names(tmp_path) == {"file"}
    assert _compile_cache.Start({"CACHE_DIR": ""}).notes == []


def test_a_folder_that_takes_no_mark_or_knows_no_locks_is_used_without(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    before = names(cache)
    monkeypatch.setattr(fcntl, "flock", refuse)
    left_mark(cache, compiled=2)
    start = _compile_cache.Start(in_properties(cache))
    start.over()
    assert start.notes == []
    assert names(cache) - before == {f"boundedgen-start-{os.getpid()}-0123abcd-2"}


def test_a_cache_that_cannot_be_moved_is_said_to_be_there_still(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "x" * 300)  # no name of a folder
    left_mark(cache, compiled=2)
    (note,) = _compile_cache.Start(in_properties(cache)).notes
    assert "could not be put aside" in note
    assert "bad.blob" in names(cache)


# --- the real engine -------------------------------------------------------------------------------------------------


@pytest.mark.timeout(60 + 10 * KILLS)
def test_killed_at_random_moments_of_a_cold_load_the_next_start_but_one_at_most_is_ready(tmp_path: Path) -> None:
    dice = random.Random(39)
    for number in range(KILLS):
        properties = {"CACHE_DIR": str(tmp_path / str(number))}
        pipeline = b.BoundedPipeline(MODELS / "plain", {"num_kv_blocks": 64}, "CPU", properties, restart=AT_ONCE)
        with contextlib.closing(pipeline):
            until(lambda: pipeline._driver.link is not None)  # noqa: B023
            pid = engine_pid(pipeline)
            time.sleep(dice.uniform(0.2, 1.2))
            kill(pid)
            until(lambda: pipeline.stats().incarnation > 1)  # noqa: B023
            pipeline.wait_ready(60)
            assert pipeline.stats().incarnation <= 3
            assert pipeline.generate([5], max_new_tokens=3, ignore_eos=True).completion_tokens == 3
