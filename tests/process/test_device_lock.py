"""An engine that lost its server, or that of another server, is seen before a second one is started on its device."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import textwrap
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from process.lanes import engine_pid, gone, kill, said, script, simulated_lane, until

import boundedgen as b

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gpu0.lock"


def refusal(path: Path) -> str:
    """Why a pipeline cannot be had; the test fails if it can."""
    with pytest.raises(b.DeviceUnavailable) as caught, contextlib.closing(simulated_lane(device_lock=path)):
        pass
    assert str(path) in str(caught.value)
    return str(caught.value)


def is_free(path: Path) -> bool:
    """So that the lock is taken and given back at once."""
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def holders(path: Path) -> set[int]:
    """The processes that have it open, by what the kernel says."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if any(os.readlink(link) == str(path) for link in Path(f"/proc/{process.pid}/fd").iterdir()):
                found.add(process.pid)
    return found


def ready(lane: b.BoundedPipeline) -> int:
    lane.wait_ready(30)
    return engine_pid(lane)


# --- held ------------------------------------------------------------------------------------------------------------


def test_a_second_pipeline_of_a_process_is_refused_and_free_to_start_once_the_first_is_closed(path: Path) -> None:
    with contextlib.closing(simulated_lane(device_lock=path)) as lane:
        engine = ready(lane)
        assert holders(path) == {os.getpid(), engine}
        assert "another pipeline of this process" in (why := refusal(path))
        assert str(engine) in why
        assert lane.generate([5], max_new_tokens=3).completion_tokens == 3
    assert is_free(path)
    with contextlib.closing(simulated_lane(device_lock=path)) as again:
        assert ready(again) != engine
    assert holders(path) == set()


SERVER = textwrap.dedent(
    """
    import os, pathlib, subprocess, sys, time
    from process.lanes import engine_pid, simulated_lane
    lane = simulated_lane(device_lock=pathlib.Path(sys.argv[1]))
    lane.wait_ready()
    print(engine_pid(lane), flush=True)
    for order in sys.stdin:
        if order == "close\\n":
            lane.close()
        elif order == "fork\\n" and (pid := os.fork()) == 0:
            time.sleep(100)
            os._exit(0)
        elif order == "start\\n":
            pid = subprocess.Popen(["sleep", "100"], close_fds=False).pid
        print(pid if order in ("fork\\n", "start\\n") else "done", flush=True)
    """
)


def tell(server: subprocess.Popen[str], order: str) -> str:
    assert server.stdin is not None
    server.stdin.write(f"{order}\n")
    server.stdin.flush()
    return said(server)


def test_the_server_and_the_engine_that_hold_it_are_named_and_closing_frees_it(path: Path) -> None:
    with script(SERVER, path) as server:
        engine = said(server)
        why = refusal(path)
        assert f"server process {server.pid} and its engine, process {engine}" in why
        tell(server, "close")
        with contextlib.closing(simulated_lane(device_lock=path)) as lane:
            ready(lane)


@pytest.mark.parametrize("order", ["fork", "start"])
def test_neither_a_fork_of_the_server_nor_what_it_starts_keeps_it(order: str, path: Path) -> None:
    with script(SERVER, path) as server:
        said(server)
        child = int(tell(server, order))
        try:
            until(lambda: child not in holders(path), 5.0)
            assert not is_free(path), "the fork has let go of its own descriptor only"
            tell(server, "close")
            assert is_free(path)
            assert psutil.pid_exists(child)
        finally:
            kill(child)


ORPHAN = textwrap.dedent(
    """
    import os, subprocess, sys, time
    from boundedgen import _device_lock
    if sys.argv[2] == "server":
        lock = _device_lock.lock_of(sys.argv[1])
        heir = [sys.executable, "-c", sys.argv[3], str(lock.fileno()), "heir"]
        subprocess.Popen(heir, pass_fds=(lock.fileno(),), start_new_session=True).wait()
    else:
        assert os.get_inheritable(fd := int(sys.argv[1]))
        _device_lock.inherit(fd)
        assert not os.get_inheritable(fd), "what an engine starts would keep the device after it"
        print(os.getpid(), flush=True)
        os.close(1)
        time.sleep(100)
    """
)


def test_an_engine_that_nothing_ends_keeps_the_device_from_the_server_after_its_own(path: Path) -> None:
    """A process that inherits what an engine does stands for one that is stuck in the kernel: no signal reaches it."""
    with script(ORPHAN, path, "server", ORPHAN) as server:
        engine = int(said(server))
        try:
            assert f"server process {server.pid} and its engine, process {engine}" in refusal(path)
            server.kill()
            server.wait()
            assert holders(path) == {engine}
            assert f"engine process {engine}, whose server is gone: end it (kill -9 {engine})" in refusal(path)
        finally:
            kill(engine)
            gone(engine, 5.0)
    assert is_free(path)


def test_the_next_engine_of_a_pipeline_holds_it_too(path: Path) -> None:
    with contextlib.closing(simulated_lane(device_lock=path)) as lane:
        first = ready(lane)
        kill(first)
        while lane.stats().restarts_total == 0:
            assert not is_free(path), "the server holds it while there is no engine"
            time.sleep(0.005)
        second = engine_pid(lane)
        assert holders(path) == {os.getpid(), second}
        assert str(second) in (why := refusal(path))
        assert str(first) not in why


def test_a_pipeline_that_nobody_closed_gives_it_back_when_it_is_collected(path: Path) -> None:
    lane = simulated_lane(device_lock=path)
    ready(lane)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del lane
    until(lambda: is_free(path), 10.0)


# --- who holds it ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def held(path: Path, text: str) -> Iterator[None]:
    """By somebody who has written `text`."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def died() -> int:
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "[1, 2]",
        '{"server": 7, "engine": null}',
        '{"server": {"pid": -1, "started": 0}}',
        json.dumps({"server": {"pid": 1, "started": 12345}}),  # there is a process 1, but it is another one
        pytest.param(
            json.dumps({"server": {"pid": died(), "started": 12345}, "engine": {"pid": died(), "started": 0}}),
            id="died",
        ),
        "[" * 4096,
    ],
)
def test_a_text_of_old_or_of_anybody_names_nobody(text: str, path: Path) -> None:
    with held(path, text):
        assert "held by an unknown process" in (why := refusal(path))
        assert f"fuser -v {path}" in why


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [5, b"lock", True, ["lock"]])
def test_another_type_than_a_path_is_a_type_error_that_names_it(wrong: Any) -> None:
    with pytest.raises(TypeError, match="device_lock must be the path of a file"):
        b.BoundedPipeline("nowhere", device_lock=wrong)


@pytest.mark.parametrize("name", ["", "a\0b", "none/lock", "folder", "pipe", "long" * 100, "\udc80\ud800"])
def test_a_path_that_can_be_no_lock_is_a_value_error_that_names_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="device_lock"):
        b.BoundedPipeline("nowhere", device_lock=name)


def test_arguments_that_are_wrong_otherwise_leave_it_free(path: Path) -> None:
    with pytest.raises(ValueError, match="total"):
        b.BoundedPipeline("nowhere", bounds=b.Bounds(), device_lock=path)
    assert not path.exists()
