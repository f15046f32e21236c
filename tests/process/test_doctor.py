"""The doctor over real processes with a simulated engine: loaders that crash, hang and refuse, and lanes beside it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
from core.patients import levels, machine, of, wish
from process.lanes import Traces, engine_pid, no_more_than, simulated_host, simulated_lane

from boundedgen._device_lock import holder_of
from boundedgen._doctor._examination import examination
from boundedgen._doctor._finding import Level
from boundedgen._doctor._page import Report, page
from boundedgen._engine._neighbours import engines

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def bad_cache(tmp_path: Path) -> str:
    """What the simulated loader fails on."""
    (tmp_path / "bad.blob").touch()
    return str(tmp_path)


def round_of(
    fault: dict[str, Any] | None = None,
    *,
    properties: dict[str, Any] | None = None,
    machine_of: dict[str, Any] | None = None,
    **options: Any,
) -> Report:
    """The doctor's round on a simulated engine with a `fault`. Nothing is left behind."""
    before = Traces.now()
    host = simulated_host(fault, properties=properties)
    patient = machine(**(machine_of or {}))
    report = examination(
        wish(**{"boot": 20.0, "tokens": 512, **options}), machine=patient, host=host, grammar=lambda asked: None
    )
    no_more_than(before)
    return report


def test_a_good_lane_is_loaded_measured_and_advised() -> None:
    report = round_of()
    assert report.status == 0
    assert {one.level for one in report.model} == {OK}
    trial = report.trial
    assert trial is not None
    assert trial.probe is not None
    assert trial.probe.ok
    assert [rate.sequences for rate in trial.rates] == [1, 16]
    assert all(rate.tokens_per_s > 0 for rate in trial.rates)
    assert max(step.tokens for step in trial.steps) == 256, "a step that was full of prompt"
    assert len(trial.steps) > 100, "those that decode"
    assert report.recommended is not None
    assert {name: one.value for name, one in report.recommended.scheduler.items()} == {
        "num_kv_blocks": 4096,
        "max_num_seqs": 16,
    }


def test_as_many_as_are_wanted_are_measured_at_once() -> None:
    trial = round_of(sequences=9).trial
    assert trial is not None
    assert [rate.sequences for rate in trial.rates] == [1, 9]


def test_a_loader_that_hangs_is_a_finding_at_the_limit_of_a_boot() -> None:
    began = time.monotonic()
    report = round_of({"boot_s": 1000}, boot=1.0)
    assert time.monotonic() - began < 10.0
    (finding,) = of(report.model, "load")
    assert (finding.level, report.status, report.recommended) == (PROBLEM, 1, None)
    assert "not ready within 1 s" in finding.seen
    assert "--boot SECONDS" in finding.do


@pytest.mark.parametrize("how", ["crash", "exit"])
def test_a_loader_that_takes_its_process_along_is_a_finding_and_not_the_end_of_the_doctor(
    how: str, bad_cache: str
) -> None:
    report = round_of({"bad_cache": how}, properties={"CACHE_DIR": bad_cache})
    (finding,) = of(report.model, "load")
    assert (finding.level, report.status) == (PROBLEM, 1)
    assert "the load was not survived: the process " in finding.seen
    assert "Its last words: Fatal Python error: Segmentation fault" in finding.seen or how == "exit"
    assert "try another quantisation" in finding.do


def test_what_the_engine_says_when_it_refuses_is_told_apart_from_what_to_do() -> None:
    text = "The weights are cut short. Copy the model again. The engine said: Incorrect weights"
    (finding,) = of(round_of({"boot_raises": ["model", text, True]}).model, "load")
    assert finding.level is PROBLEM
    assert finding.seen.endswith("Incorrect weights")
    assert "Copy the model again." in finding.do


def test_a_boot_that_fails_for_now_is_not_tried_again_and_again() -> None:
    began = time.monotonic()
    report = round_of({"boot_raises": ["memory", "GPU has not enough memory. Lower cache_size.", False]})
    assert time.monotonic() - began < 10.0
    assert levels(report.model, "load") == [PROBLEM]


def test_an_engine_that_dies_while_it_is_tried_is_a_finding() -> None:
    report = round_of({"crash_at": 20})
    assert levels(report.model, "load") == [OK]
    assert levels(report.model, "speed")[-1] is PROBLEM
    assert "lost while it was tried" in of(report.model, "speed")[-1].seen
    assert report.status == 1


def test_nothing_is_loaded_for_a_model_that_is_not_there() -> None:
    report = examination(wish("/nowhere/model"), machine=machine(), host=None, grammar=None)
    assert levels(report.model, "model") == [PROBLEM]
    assert (report.trial, report.status) == (None, 1)


def test_nothing_is_loaded_where_the_device_is_missing() -> None:
    report = examination(wish(device="GPU"), machine=machine(), host=simulated_host())
    assert levels(report.machine, "device")[0] is PROBLEM
    assert report.trial is None


# --- beside a lane ---------------------------------------------------------------------------------------------------


def test_a_lane_that_runs_is_seen_and_left_alone_unless_the_doctor_is_told_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "gpu0.lock"
    with contextlib.closing(simulated_lane(device_lock=path)) as lane:
        lane.wait_ready(30)
        there = {"holder": holder_of(str(path))}
        report = round_of(machine_of=there, device_lock=str(path))
        assert levels(report.machine, "lock") == levels(report.model, "lane") == [WARNING]
        assert (report.trial, report.status) == (None, 0)
        assert page(report).endswith("\nNot tried: 2 warnings.\n")
        assert str(engine_pid(lane)) in str(holder_of(str(path))) + str(there["holder"])
        beside = round_of(machine_of=there, device_lock=str(path), beside=True)
        assert levels(beside.model, "load") == [OK]
        assert lane.generate([5], max_new_tokens=3).completion_tokens == 3
        assert lane.stats().incarnation == 1


def test_the_lock_is_held_while_a_model_is_tried_and_free_afterwards(tmp_path: Path) -> None:
    path = str(tmp_path / "gpu0.lock")
    assert levels(round_of(device_lock=path).model, "load") == [OK]
    assert holder_of(path) is None
    with contextlib.closing(simulated_lane(device_lock=Path(path))) as lane:
        lane.wait_ready(30)
        (finding,) = of(round_of(device_lock=path).model, "load")  # it was taken after the doctor had looked
        assert finding.level is PROBLEM
        assert f"device_lock {path} is held" in finding.seen


def test_engines_of_others_are_seen_in_the_list_of_processes() -> None:
    """Those of the test kit are another module, so that tests do not keep each other's doctors from loading."""
    with contextlib.closing(simulated_lane()) as lane:
        lane.wait_ready(30)
        assert engine_pid(lane) not in engines()
