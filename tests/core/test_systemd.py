"""What systemd is told of a lane: a real socket listens, the engine is under the hand."""

import contextlib
import gc
import itertools
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from core.hand_engine import HandEngine, held_up, lane, until

import boundedgen as b
from boundedgen import systemd
from boundedgen._core import _events as ev

ONCE = b.RestartPolicy(wait=lambda state: 0.0, stop=lambda state: state.attempt_number >= 1)
THREAD = "boundedgen-systemd"


class Listener:
    """As systemd: what is told, with the time at which it came."""

    def __init__(self, address: str) -> None:
        self.messages: list[tuple[float, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def lines(self) -> list[str]:
        """All that was told so far, a line each."""
        with contextlib.suppress(BlockingIOError):
            while True:
                text = self._socket.recv(8192, socket.MSG_DONTWAIT).decode()
                self.messages.append((time.monotonic(), text))
        return [line for _, text in self.messages for line in text.split("\n")]

    def news(self) -> list[str]:
        return [line for line in self.lines() if line != "WATCHDOG=1"]

    def fed(self) -> int:
        return self.lines().count("WATCHDOG=1")

    def hears(self, *lines: str, but: str | None = None) -> None:
        """All that is told, but for the watchdog and lines with `but` in them, becomes exactly this."""

        def told() -> list[str]:
            return [line for line in self.news() if but is None or but not in line]

        with contextlib.suppress(AssertionError):
            until(lambda: len(told()) >= len(lines), 10)
        assert told() == list(lines)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a socket that is not there yet; this process is told of it, and not watched."""
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    path = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    return path


@pytest.fixture
def heard(address: str) -> Iterator[Listener]:
    with contextlib.closing(Listener(address)) as listener:
        yield listener


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, heard: Listener) -> Listener:
    """Every 0.2 s."""
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    return heard


def notifying() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


# --- states ----------------------------------------------------------------------------------------------------------


def test_a_life_is_told_from_the_start_to_the_end(heard: Listener) -> None:
    engine = HandEngine()
    engine.boots = False
    pipeline = b.BoundedPipeline(None, engine=engine, clock=engine.clock, restart=b.RestartPolicy(wait=lambda s: 0.0))
    with systemd.Notifier(pipeline):
        heard.hears("STATUS=starting")
        until(lambda: engine.links)
        engine.link.tell(ev.Ready(1, engine.facts))
        begun = ["STATUS=starting", "READY=1", "STATUS=ready"]
        heard.hears(*begun)
        engine.die()
        lost = "STATUS=recovering: died: the process died of signal 11 (SIGSEGV)"
        heard.hears(*begun, lost)
        until(lambda: len(engine.links) == 2)
        engine.link.tell(ev.Ready(2, engine.facts))
        heard.hears(*begun, lost, "STATUS=ready")
        pipeline.close()
        until(lambda: not notifying())
    end = [
        line for line in heard.news()[5:] if line != "STATUS=draining"
    ]  # which was over before anybody looked, or not
    assert sorted(end) == ["STATUS=closed", "STOPPING=1"]


def test_a_notifier_that_is_closed_first_says_at_once_that_it_stops_and_no_more(
    heard: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "LOOK", 1000.0)
    with lane() as (pipeline, _):
        with systemd.Notifier(pipeline):
            heard.hears("READY=1", "STATUS=ready")
        heard.hears("READY=1", "STATUS=ready", "STOPPING=1")
        assert not notifying()
    heard.hears("READY=1", "STATUS=ready", "STOPPING=1")


def test_around_the_pipeline_it_tells_of_the_drain(heard: Listener) -> None:
    engine = HandEngine()
    pipeline = b.BoundedPipeline(None, engine=engine, clock=engine.clock, limits=b.Limits(progress=1e6))
    pipeline.wait_ready(20)
    with systemd.Notifier(pipeline), pipeline:
        heard.hears("READY=1", "STATUS=ready")
        generation = pipeline.submit("x", max_new_tokens=4)
        engine.stay()
        closing = threading.Thread(target=pipeline.close, args=(20,))
        closing.start()
        heard.hears("READY=1", "STATUS=ready", "STATUS=draining", "STOPPING=1")
        engine.say()
        engine.finish()
        assert generation.result(20).finish_reason is b.FinishReason.STOP
        closing.join(20)


def test_a_lane_that_has_failed_is_told_with_its_reason_and_feeds_no_watchdog(watched: Listener) -> None:
    with lane(restart=ONCE) as (pipeline, engine), systemd.Notifier(pipeline):
        until(lambda: watched.fed() >= 2)
        engine.die()
        why = "failed: the restart budget is used up; last: died: the process died of signal 11 (SIGSEGV)"
        until(lambda: f"STATUS={why}" in watched.news())
        fed = watched.fed()
        time.sleep(0.5)
        assert watched.fed() == fed
        pipeline.close()
        until(lambda: not notifying())
        assert watched.news()[-2:] == [f"STATUS={why.replace('failed', 'closed', 1)}", "STOPPING=1"]


def test_a_status_is_one_short_line(heard: Listener) -> None:
    with lane(restart=ONCE) as (pipeline, engine), systemd.Notifier(pipeline):
        engine.link.tell(ev.StepRaised(1, 1, "first\nREADY=0\n" + 5000 * "é"))
        until(lambda: any(line.startswith("STATUS=failed") for line in heard.lines()))
    assert "READY=0" not in heard.lines()
    assert all(len(text.encode()) < 4096 for _, text in heard.messages)


def test_stalled_is_told_once_though_nothing_wakes_us(heard: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "LOOK", 0.02)
    with lane() as (pipeline, engine), systemd.Notifier(pipeline):
        generation = pipeline.submit("x", max_new_tokens=8)
        engine.stay()
        until(lambda: pipeline.stats().running)
        with held_up(engine):
            heard.hears("READY=1", "STATUS=ready")
            engine.clock.skip(5)
            told = ["READY=1", "STATUS=ready", "STATUS=stalled: the driver is more than 1 s late"]
            heard.hears(*told)
            engine.clock.skip(2)
            time.sleep(0.2)
            heard.hears(*told)
        generation.cancel()


def test_a_recycling_that_is_due_is_told_once_however_long_it_is_put_off(
    heard: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "LOOK", 0.02)
    with lane(limits=b.Limits(engine_age=100, recycle_drain=0)) as (pipeline, engine), systemd.Notifier(pipeline):
        generation = pipeline.submit("x", max_new_tokens=8, bounds=b.Bounds(total=500))
        engine.stay()
        heard.hears("READY=1", "STATUS=ready")
        due = "STATUS=ready: recycling: older than 100 s (Limits.engine_age)"
        late = "the driver is more than"  # it is, from the skip until it wakes, if somebody looks
        for seconds in (101, 5):
            engine.clock.skip(seconds)
            heard.hears("READY=1", "STATUS=ready", due, but=late)
            time.sleep(0.1)
        heard.hears("READY=1", "STATUS=ready", due, but=late)
        generation.cancel()


# --- the watchdog ----------------------------------------------------------------------------------------------------


def test_the_watchdog_is_fed_twice_as_often_as_it_asks_for(watched: Listener) -> None:
    with lane() as (pipeline, _), systemd.Notifier(pipeline):
        until(lambda: watched.fed() >= 8)
    at = [when for when, text in watched.messages if text == "WATCHDOG=1"]
    between = [after - before for before, after in itertools.pairwise(at)]
    assert min(between) < 0.16, "of a machine that is busy not each is in time"
    assert sum(between) / len(between) > 0.09


def test_a_driver_that_hangs_is_not_fed_for_until_it_comes_back(watched: Listener) -> None:
    with lane() as (pipeline, engine), systemd.Notifier(pipeline):
        generation = pipeline.submit("x", max_new_tokens=8)
        engine.stay()
        until(lambda: pipeline.stats().running and watched.fed())
        with held_up(engine):
            engine.clock.skip(20)
            until(lambda: not pipeline.health().live)
            time.sleep(0.15)
            fed = watched.fed()
            time.sleep(0.5)
            assert watched.fed() == fed
        until(lambda: watched.fed() > fed)
        generation.cancel()


@pytest.mark.parametrize(
    ("name", "value"),
    [("WATCHDOG_PID", "1"), ("WATCHDOG_USEC", "soon"), ("WATCHDOG_USEC", "0"), ("WATCHDOG_USEC", "-5")],
)
def test_a_watchdog_that_is_not_ours_or_makes_no_sense_is_not_fed(
    watched: Listener, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with lane() as (pipeline, _), systemd.Notifier(pipeline):
        watched.hears("READY=1", "STATUS=ready")
        time.sleep(0.15)
        assert not watched.fed()


def test_without_a_pid_the_watchdog_is_ours(watched: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_PID")
    with lane() as (pipeline, _), systemd.Notifier(pipeline):
        until(lambda: watched.fed() >= 2)


# --- the socket ------------------------------------------------------------------------------------------------------


def test_an_abstract_socket_is_told_too(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"@boundedgen-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with contextlib.closing(Listener(name)) as heard, lane() as (pipeline, _), systemd.Notifier(pipeline):
        heard.hears("READY=1", "STATUS=ready")


def test_without_a_socket_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    with lane() as (pipeline, _), systemd.Notifier(pipeline) as notifier:
        assert not notifying()
        notifier.start()
        assert not notifying()


@pytest.mark.parametrize("strange", ["vsock:2:1234", "relative"])
def test_a_socket_of_another_kind_is_logged_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, strange: str
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", strange)
    with lane() as (pipeline, _), systemd.Notifier(pipeline):
        assert not notifying()
    assert [r.getMessage() for r in caplog.records if "NOTIFY" in r.getMessage()] == [
        f"NOTIFY_SOCKET is '{strange}', which is no local socket; systemd is told nothing"
    ]


def test_what_cannot_be_sent_is_logged_once_and_sent_later(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(systemd, "LOOK", 0.02)
    caplog.set_level(logging.WARNING, "boundedgen")
    with lane() as (pipeline, engine), systemd.Notifier(pipeline):
        until(lambda: "systemd cannot be told" in caplog.text)
        time.sleep(0.2)
        assert caplog.text.count("systemd cannot be told") == 1
        generation = pipeline.submit("x", max_new_tokens=4)
        engine.say()
        engine.finish()
        assert generation.result(20).finish_reason is b.FinishReason.STOP
        with contextlib.closing(Listener(address)) as heard:
            heard.hears("READY=1", "STATUS=ready")


# --- threads ---------------------------------------------------------------------------------------------------------


def test_it_does_not_keep_a_pipeline_alive(heard: Listener) -> None:
    engine = HandEngine()
    pipeline = b.BoundedPipeline(None, engine=engine, clock=engine.clock)
    pipeline.wait_ready(20)
    systemd.Notifier(pipeline).start()
    heard.hears("READY=1", "STATUS=ready")
    (thread,), gone = notifying(), weakref.ref(pipeline)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del pipeline
        gc.collect()
        until(lambda: gone() is None)
    thread.join(10)
    assert not thread.is_alive()
    assert heard.news().count("STOPPING=1") == 1


def test_it_is_started_and_closed_once_however_often_one_asks(heard: Listener) -> None:
    with lane() as (pipeline, _):
        notifier = systemd.Notifier(pipeline)
        notifier.start()
        notifier.start()
        assert len(notifying()) == 1
        heard.hears("READY=1", "STATUS=ready")
        notifier.close()
        notifier.close()
        notifier.start()
        heard.hears("READY=1", "STATUS=ready", "STOPPING=1")


def test_only_a_pipeline_can_be_told_of() -> None:
    with pytest.raises(TypeError, match="pipeline must be a BoundedPipeline, not str"):
        systemd.Notifier("lane")  # type: ignore[arg-type]


def test_importing_boundedgen_does_not_import_it() -> None:
    code = "import sys, boundedgen; sys.exit('boundedgen.systemd' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
