"""Field report 39: what a kill in mid-compile left in CACHE_DIR does not keep the engine from ever starting again."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from counts import happened
from process.engine_life import alive
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
        assert names(cache) == {"openvino_model.xml", aside.name}
        (finding,) = pipeline.health().findings
        assert str(aside) in finding
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [f"engine 2: {finding}"]


def test_a_start_that_hung_and_was_killed_counts_as_one_that_failed(cache: Path) -> None:
    host = simulated_host({"bad_cache": "hang"}, properties={"CACHE_DIR": str(cache)})
    with alive(host, 1, ready=False) as first:
        first.turn(0.5)
    with alive(host, 2) as second:
        (aside,) = put_aside(cache)
        assert str(aside) in second.facts.findings[0]


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


def test_a_start_that_somebody_else_killed_leaves_the_cache_alone(cache: Path) -> None:
    with lane({"boot_s": 60, "incarnations": [1]}, {"CACHE_DIR": str(cache)}) as pipeline:
        until(lambda: pipeline._driver.link is not None)
        kill(engine_pid(pipeline))
        pipeline.wait_ready(60)
        assert not put_aside(cache)


def test_an_engine_that_was_ready_leaves_the_cache_alone_when_it_dies(cache: Path) -> None:
    with lane({"crash_at": 1, "incarnations": [1]}, {"CACHE_DIR": str(cache)}) as pipeline:
        pipeline.wait_ready(60)
        with pytest.raises(b.EngineLost):
            pipeline.generate([5], max_new_tokens=3)
        until(lambda: pipeline.stats().restarts_total == 1)
        assert not put_aside(cache)


def test_what_the_failed_start_has_compiled_itself_is_kept_for_the_next_one(tmp_path: Path) -> None:
    """One that was too slow to compile all in time has got on; only what it found may be why it failed."""
    host = simulated_host({"boot_s": 60, "incarnations": [1]}, properties={"CACHE_DIR": str(tmp_path)})
    with alive(host, 1, ready=False):
        time.sleep(0.1)  # files have the time of the last tick of the kernel's clock
        (tmp_path / "kernel.cl_cache").write_bytes(b"whole")
    with alive(host, 2) as second:
        assert second.facts.findings == ()
        assert names(tmp_path) == {"kernel.cl_cache"}


# --- once ------------------------------------------------------------------------------------------------------------


def test_starts_that_fail_with_a_fresh_cache_too_do_not_cost_another_one_and_come_to_an_end(cache: Path) -> None:
    """And the reason says that it was put aside."""
    with lane({"boot_raises": ["other", "not today", False]}, {"CACHE_DIR": str(cache)}) as pipeline:
        until(lambda: "was put aside" in pipeline.health().reason)
        until(lambda: bool(put_aside(cache)))
        spoil(cache)
        until(lambda: pipeline.health().state == "failed", 60)
        assert "bad.blob" in names(cache)
        assert len(put_aside(cache)) == 1


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
    (note,) = _compile_cache.put_aside({"CACHE_DIR": str(cache)}, time.time() + 1)
    assert taken.read_text() == "a file of that name"
    assert names(cache / f"{taken.name}-1") == {"bad.blob", "kernel.cl_cache"}
    assert f"{taken.name}-1" in note


def test_nothing_there_is_nothing_done(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        assert _compile_cache.put_aside({"CACHE_DIR": str(folder)}, time.time()) == ()
    assert _compile_cache.put_aside({"CACHE_DIR": ""}, time.time()) == ()


def test_a_cache_that_cannot_be_moved_is_said_to_be_there_still(tmp_path: Path) -> None:
    no_folder = tmp_path / "file"
    no_folder.touch()
    (note,) = _compile_cache.put_aside({"CACHE_DIR": str(no_folder)}, time.time())
    assert "could not be put aside" in note


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
