"""The doctor's checks of a machine, on machines that are made up, and how the facts of this one are gathered."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from core.patients import CPU, GPU, look, machine, place, survey, wish

from boundedgen._device_lock import DeviceLock, Holder, holder_of
from boundedgen._doctor import _machine
from boundedgen._doctor._finding import Check, Finding, Level, amount, count, found, span
from boundedgen._doctor._machine import Machine, place_of, quota_of, read_survey, surveyed
from boundedgen._doctor._machine_checks import CHECKS, Case, may_load
from boundedgen._engine._defect import Defect
from boundedgen._engine._devices import Part
from boundedgen._engine._neighbours import engines

OK, NOTE, WARNING, PROBLEM = Level.OK, Level.NOTE, Level.WARNING, Level.PROBLEM
OTHERS = {"openvino": "2026.4.0", "openvino-genai": "2026.4.0.0", "openvino-tokenizers": "2026.4.0.0"}
FUTURE = {"openvino": "2027.1.0", "openvino-genai": "2027.1.0.0", "openvino-tokenizers": "2027.1.0.0"}
LOADER = Part("loader", Defect("the loader is missing.", "Install it."))
NODE = Part("render node", Defect("there is no render node.", "Start it with --device /dev/dri."))
HERE = Holder("/run/gpu0.lock", server=os.getppid(), engine=os.getpid())
ON_GPU: dict[str, Any] = {"device": "GPU"}
LOCKED: dict[str, Any] = {"device_lock": "/run/gpu0.lock"}


def versions(**changes: str) -> dict[str, str]:
    return {**machine().versions, **changes}


def examined(check: str, changes: dict[str, Any], options: dict[str, Any]) -> list[Finding]:
    return look(CHECKS, Case(wish(None, **options), machine(**changes)), check)


#: check, the machine's difference, what is asked for, the worst level, and words of what was seen and of what to do
CASES: list[tuple[str, dict[str, Any], dict[str, Any], Level, str, str]] = [
    ("python", {}, {}, OK, "Python 3.12.3 on Linux", ""),
    ("python", {"python": "3.15.0"}, {}, WARNING, "3.15.0", "3.13"),
    ("python", {"pythons": ()}, {}, NOTE, "not installed as a package", ""),
    ("versions", {}, {}, OK, "openvino-genai 2026.4.1.0", ""),
    ("versions", {"versions": versions(openvino="")}, {}, PROBLEM, "not installed: openvino.", "pip install"),
    ("versions", {"versions": versions(openvino="2026.3.1")}, {}, PROBLEM, "different releases", "pip install"),
    ("versions", {"versions": versions(**OTHERS)}, {}, OK, "known to work", ""),
    ("versions", {"versions": versions(**FUTURE)}, {}, WARNING, "nobody has tried", "openvino-genai==2026.4.1"),
    (
        *("versions", {"survey": survey(failed={"openvino_genai": "ImportError: libx.so"})}, {}),
        *(PROBLEM, "cannot be imported: ImportError: libx.so", "--force-reinstall"),
    ),
    ("kernel", {}, {}, OK, "pidfd_open", ""),
    ("kernel", {"kernel": {"pidfd_open": "Function not implemented"}}, {}, PROBLEM, "not implemented", "seccomp"),
    ("limits", {}, {}, OK, "open files 65,536, address space unlimited", ""),
    ("limits", {"limits": {"open files": 256}}, {}, WARNING, "256 open files", "ulimit -n"),
    ("limits", {"limits": {"address space": 4_000_000_000}}, {}, WARNING, "4 GB", "ulimit -v unlimited"),
    ("limits", {"limits": {"processes": 64}}, {}, WARNING, "64 processes", "ulimit -u"),
    ("processors", {}, {}, OK, "8 processors", ""),
    ("processors", {"quota": 2.0}, {}, WARNING, "may use 2 of them", '"INFERENCE_NUM_THREADS": 2'),
    ("processors", {"quota": 2.0}, ON_GPU, NOTE, "may use 2 of them", ""),
    ("memory", {}, {}, OK, "16 GB", ""),
    ("memory", {}, {"scheduler": None}, OK, "the cache gets 3 GiB", ""),
    ("memory", {"memory": 1_000_000_000}, {}, WARNING, "1 GB", "more memory"),
    ("memory", {"memory": None}, {}, NOTE, "cannot be seen", ""),
    (
        *("memory", {"survey": survey(CPU, GPU)}, {"device": "GPU", "scheduler": None}),
        *(WARNING, "GPU has memory of its own", "Give num_kv_blocks"),
    ),
    ("shm", {}, {}, OK, "67.1 MB free; not used", ""),
    ("temp", {}, {}, OK, "/tmp: 50 GB free", ""),
    ("temp", {"temp": place("/tmp", writable=False)}, {}, PROBLEM, "cannot be written", "TMPDIR"),
    ("temp", {"temp": place("/tmp", free_bytes=1000)}, {}, WARNING, "1 KB free", "TMPDIR"),
    ("cache", {"survey": survey(CPU, GPU)}, ON_GPU, WARNING, "no CACHE_DIR", '"CACHE_DIR": FOLDER'),
    ("cache", {"caches": (place("/c", compiled=3),)}, {}, OK, "CACHE_DIR /c: 50 GB free, 3 compiled files", ""),
    ("cache", {"caches": (place("/c", writable=False),)}, {}, PROBLEM, "cannot be written to", "Make it"),
    ("cache", {"caches": (place("/c", exists=False, writable=False),)}, {}, PROBLEM, "cannot be made", "Make it"),
    ("cache", {"caches": (place("/c", free_bytes=1000),)}, {}, WARNING, "a full disk", "room"),
    ("device", {}, {}, OK, "CPU: A processor", ""),
    (
        "device",
        {"survey": survey(evolve(CPU, kind="INTEGRATED"), GPU)},
        ON_GPU,
        OK,
        "A770 Graphics, 16 GB, discrete",
        "",
    ),
    ("device", {}, ON_GPU, PROBLEM, "finds no Intel GPU that OpenVINO supports", "--device CPU"),
    ("device", {"survey": survey(CPU, parts=(NODE,))}, ON_GPU, PROBLEM, "no render node", "--device /dev/dri"),
    ("device", {"survey": survey(CPU, GPU)}, {"device": "GPU.1"}, PROBLEM, "no device GPU.1. OpenVINO lists", ""),
    ("device", {}, {"device": "NPU"}, PROBLEM, "no device NPU", "linux-npu-driver"),
    (
        *("device", {"survey": survey(failed={"devices": "killed by SIGSEGV"})}, {}),
        *(PROBLEM, "cannot list its devices (killed by SIGSEGV)", "Install openvino again"),
    ),
    ("gpu", {"survey": survey(CPU, GPU)}, ON_GPU, OK, "loader, driver, render node, permission: there", ""),
    (
        *("gpu", {"survey": survey(CPU, GPU, drivers={"Arc": "24.39"})}, ON_GPU),
        *(OK, "driver 24.39 of Arc", ""),
    ),
    ("gpu", {"survey": survey(CPU, parts=(LOADER, NODE))}, ON_GPU, PROBLEM, "no render node", "--device /dev/dri"),
    (
        *("gpu", {"survey": survey(parts=(NODE,), devices=(), failed={"devices": "killed by SIGSEGV"})}, ON_GPU),
        *(PROBLEM, "no render node", "--device /dev/dri"),
    ),
    ("gpu", {"survey": survey(CPU, GPU, parts=(NODE,))}, ON_GPU, NOTE, "lists a GPU all the same", ""),
    ("gpu", {"survey": survey(parts=(), failed={"parts": "it hung"})}, ON_GPU, PROBLEM, "it hung", "intel-opencl-icd"),
    ("lock", {}, {}, OK, "no engine of boundedgen is seen", ""),
    ("lock", {"engines": (7, 9)}, {}, WARNING, "processes 7, 9", "--device-lock FILE"),
    ("lock", {"engines": (7, 9)}, LOCKED, OK, "is free", ""),
    ("lock", {"holder": HERE}, LOCKED, WARNING, f"server process {os.getppid()}", "stop that server"),
    ("lock", {"holder": Holder("/x", engine=5)}, LOCKED, PROBLEM, "whose server is gone", "End it (kill -9 5)"),
    ("lock", {"holder": Holder("/x")}, LOCKED, PROBLEM, "an unknown process", "fuser -v /x"),
    ("lock", {"lock_failed": "Permission denied"}, LOCKED, PROBLEM, "Permission denied", "a file of your own"),
]


@pytest.mark.parametrize(("check", "changes", "options", "level", "seen", "do"), CASES)
def test_a_machine_is_told_what_is_wrong_with_it_and_what_to_do(
    check: str, changes: dict[str, Any], options: dict[str, Any], level: Level, seen: str, do: str
) -> None:
    findings = examined(check, changes, options)
    rank = list(Level).index
    assert max((one.level for one in findings), key=rank) is level
    assert any(seen in one.seen and do in one.do for one in findings if one.level is level), findings
    assert all(one.do for one in findings if one.level in (WARNING, PROBLEM))


def test_every_check_is_tried_with_a_good_and_a_bad_machine() -> None:
    good = {check for check, _, _, level, _, _ in CASES if level is OK}
    assert good == {check.name for check in CHECKS}
    assert {check for check, _, _, level, _, _ in CASES if level is not OK} == good - {"shm"}


def test_a_good_machine_has_no_findings_that_somebody_must_act_on() -> None:
    findings = list(found(CHECKS, Case(wish(None), machine())))
    assert {one.level for one in findings} == {OK}
    assert {one.check for one in findings} == {check.name for check in CHECKS} - {"gpu", "cache"}


def test_what_is_missing_on_the_way_to_a_gpu_is_told_once() -> None:
    changes = {"survey": survey(CPU, parts=(LOADER, NODE))}
    (device, *_), (rest,) = examined("device", changes, ON_GPU), examined("gpu", changes, ON_GPU)
    assert "the loader is missing" in device.seen
    assert "no render node" in rest.seen


def test_nothing_is_said_of_a_gpu_that_nobody_asked_for() -> None:
    assert examined("gpu", {"survey": survey(parts=(NODE,))}, {}) == []


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        ({}, {}, True),
        ({"engines": (7,)}, {}, False),
        ({"engines": (7,)}, {"beside": True}, True),
        ({"engines": (7,)}, LOCKED, True),
        ({"holder": HERE}, LOCKED, False),
        ({"holder": HERE}, {**LOCKED, "beside": True}, True),
        ({"lock_failed": "no"}, LOCKED, False),
    ],
)
def test_a_model_is_loaded_only_where_nobody_is_known_to_run_an_engine(
    changes: dict[str, Any], options: dict[str, Any], expected: bool
) -> None:
    assert may_load(Case(wish(**options), machine(**changes))) is expected


def test_a_check_that_raises_is_a_finding_and_not_the_end_of_the_others() -> None:
    def broken(case: object) -> Sequence[Finding]:
        raise KeyError("nothing")

    def whole(case: object) -> Sequence[Finding]:
        return [Finding(OK, "fine")]

    first, second = found([Check("broken", broken), Check("whole", whole)], None)
    assert (first.level, first.check) == (PROBLEM, "broken")
    assert "KeyError" in first.seen
    assert second == Finding(OK, "fine", "", "whole")


# --- gathering -------------------------------------------------------------------------------------------------------

TOLD = [
    ["parts", [["loader", "", ""], ["driver", "no driver.", "Install it."]]],
    ["openvino_genai", {"version": "2026.4.1"}],
    ["devices", [{"name": "GPU", "full_name": "Arc", "memory_bytes": 5}]],
    ["opencl", [{"name": "Arc", "driver": "24.39"}]],
]


def lines(*told: object) -> bytes:
    return "\n".join(json.dumps(line) for line in told).encode()


def test_a_survey_is_read_line_by_line_past_what_drivers_print() -> None:
    survey = read_survey(b"a driver greets\n" + lines(*TOLD) + b"\n42\n", "it ended with 0")
    assert survey.failed == {}
    assert survey.parts == (Part("loader", None), Part("driver", Defect("no driver.", "Install it.")))
    assert (survey.listed, survey.devices[0].memory_bytes) == (("GPU",), 5)
    assert survey.drivers == {"Arc": "24.39"}


def test_what_a_survey_said_before_it_crashed_is_kept() -> None:
    survey = read_survey(lines(*TOLD[:2]) + b'\n["devices", [{"na', "killed by SIGSEGV")
    assert survey.failed == {"devices": "killed by SIGSEGV", "opencl": "killed by SIGSEGV"}
    assert survey.parts == read_survey(lines(*TOLD), "").parts


def test_what_could_not_be_told_is_told_in_words() -> None:
    survey = read_survey(lines(*TOLD[:3], ["opencl", "OSError: libOpenCL.so.1"]), "it ended with 0")
    assert survey.failed == {"opencl": "OSError: libOpenCL.so.1"}
    assert survey.drivers == {}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
        ("import sys; sys.exit('no plugins')", "it ended with 1: no plugins"),
        ("import time; time.sleep(100)", "it did not answer within 1 s"),
    ],
)
def test_a_driver_that_crashes_or_hangs_whoever_asks_is_a_finding(code: str, said: str) -> None:
    begin = f"print('{json.dumps(TOLD[0])}', flush=True)\n"
    survey = surveyed([sys.executable, "-c", begin + code], 1.0 if "sleep" in code else 30.0)
    assert len(survey.parts) == 2
    assert said in survey.failed["devices"]


def test_a_driver_that_hangs_is_not_left_behind_by_a_doctor_that_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    hangs = f"import os, time; print(os.getpid(), file=open({str(told)!r}, 'w'), flush=True); time.sleep(60)"
    (tmp_path / "openvino_genai.py").write_text(hangs)
    code = "import sys; sys.path.insert(0, sys.argv[1])\nfrom boundedgen._doctor import _machine; _machine.surveyed()"
    doctor = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    try:
        until = time.monotonic() + 10.0
        while not (told.exists() and told.read_text().endswith("\n")):
            assert time.monotonic() < until
            time.sleep(0.01)
        hanging = os.pidfd_open(int(told.read_text()))
    finally:
        doctor.kill()
        doctor.wait(10.0)
    try:
        assert select.select([hanging], [], [], 5.0)[0], "it lives on"
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(hanging, signal.SIGKILL)
        os.close(hanging)


def test_a_survey_that_cannot_be_started_is_a_finding() -> None:
    assert "no process could be started" in surveyed(["/nowhere/python"]).failed["devices"]


def test_a_container_that_may_use_less_than_the_processors_it_sees(tmp_path: Path) -> None:
    assert quota_of(tmp_path) is None
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert quota_of(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert quota_of(tmp_path) == 1.5


def test_a_container_of_the_first_kind_may_use_less_too(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    for name, value in (("cfs_quota_us", 50_000), ("cfs_period_us", 100_000)):
        (tmp_path / "cpu" / f"cpu.{name}").write_text(f"{value}\n")
    assert quota_of(tmp_path) == 0.5
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert quota_of(tmp_path) is None


def test_a_folder_is_looked_at_and_not_made(tmp_path: Path) -> None:
    (tmp_path / "a.blob").touch()
    (tmp_path / "file").touch()
    assert place_of(str(tmp_path)).compiled == 1
    later = place_of(str(tmp_path / "later" / "still"))
    assert (later.exists, later.writable) == (False, True)
    assert not (tmp_path / "later").exists()
    assert not place_of(str(tmp_path / "file" / "inside")).writable


def test_the_holder_of_a_lock_is_seen_without_making_or_keeping_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert holder_of(path) is None
    assert not os.path.exists(path)
    lock = DeviceLock(path)
    assert holder_of(path) == Holder(path, server=os.getpid())
    lock.close()
    assert holder_of(path) is None
    DeviceLock(path).close()


def test_whoever_holds_a_lock_and_wrote_nothing_down_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        holder = holder_of(str(path))
    assert holder == Holder(str(path))
    assert holder is not None
    assert not holder.runs


def test_engines_are_told_from_other_processes_of_ours(tmp_path: Path) -> None:
    start = "/lib/boundedgen/_engine/_start.py"
    for pid, arguments in {
        "12": ["python", "-P", start, "[]", "boundedgen._engine", "1"],
        "13": ["python", "-P", start, "[]", "boundedgen._engine._grammar_child", "1"],
        "14": ["vi", start],
        "15": ["python", "-P", start, "[]"],
        "self": ["python", "-P", start, "[]", "boundedgen._engine"],
    }.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes("\0".join(arguments).encode() + b"\0")
    (tmp_path / "16").mkdir()
    assert engines(tmp_path) == (12,)


def test_amounts_and_times_are_written_for_people() -> None:
    assert [amount(size) for size in (12, 370_000, 64 << 20, 16e9, 3e12)] == [
        *("12 bytes", "370 KB", "67.1 MB", "16 GB", "3,000 GB")
    ]
    assert [span(seconds) for seconds in (0.0213, 4.14, 300)] == ["21.3 ms", "4.14 s", "300 s"]
    assert (count(1, "block"), count(1000, "block")) == ("1 block", "1,000 blocks")


def test_the_facts_of_this_machine_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_machine, "surveyed", lambda: read_survey(b"", "not asked"))
    here = _machine.machine_of(wish(None))
    assert isinstance(here, Machine)
    assert here.kernel == dict.fromkeys(here.kernel, "")
    assert here.processors >= 1
    assert here.memory
    assert here.temp.writable
    told = textwrap.shorten(" ".join(one.seen for one in found(CHECKS, Case(wish(None), here))), 10_000)
    assert "failed itself" not in told


def test_a_lock_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert _machine._lock(str(tmp_path / "file" / "lock")) == (None, "it is not there, and cannot be made")
    assert _machine._lock(str(tmp_path)) == (None, "it is no plain file, or not to be written to")
    assert _machine._lock(str(tmp_path / "lock")) == (None, "")
    assert _machine._lock(None) == (None, "")
