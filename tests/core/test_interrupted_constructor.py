"""A signal handler raises while a pipeline is built, at whatever instant: no thread, lock or descriptor stays."""

import fcntl
import gc
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from core.hand_engine import HandEngine, until
from core.test_interrupts import SEED, At

import boundedgen as b

SAMPLES = 120


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("boundedgen")}


def is_free(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that came inside a __del__
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # it was built, and interrupted on the way out
def test_an_interrupt_at_any_instant_of_the_constructor_leaves_nothing_behind(tmp_path: Path) -> None:
    lock, engines, of_others = tmp_path / "gpu0.lock", list[HandEngine](), ours()

    def build() -> b.BoundedPipeline:
        engine = HandEngine()
        engines.append(engine)
        return b.BoundedPipeline(None, engine=engine, clock=engine.clock, device_lock=lock)

    whole = At(None)
    assert whole.run(build)
    until(lambda: ours() <= of_others)
    for nth in random.Random(SEED).sample(range(1, whole.seen), SAMPLES):
        At(nth).run(build)
        gc.disable()
        try:
            until(lambda: ours() <= of_others, 5)
            assert is_free(lock), nth
        finally:
            gc.enable()
    assert all(link.disposed for engine in engines for link in engine.links)
    gc.collect()
    engines.clear()


@pytest.mark.parametrize("begun", [True, False], ids=["that runs", "that never began"])
@pytest.mark.parametrize("name", ["boundedgen-driver", "boundedgen-tokenizer"])
def test_an_interrupt_while_a_thread_is_being_started_leaves_nothing_behind(
    name: str, begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Thread.start` waits for the new thread, and can be interrupted in that; `is_alive` is false ever after."""
    lock, start, before = tmp_path / "gpu0.lock", threading.Thread.start, len(os.listdir("/proc/self/fd"))
    of_others = ours()
    engine = HandEngine()

    def interrupted(thread: threading.Thread) -> None:
        if thread.name == name:
            if not begun:
                raise KeyboardInterrupt
            monkeypatch.setattr(thread._started, "wait", cut)  # type: ignore[attr-defined]
        start(thread)

    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:  # and with it the frames of the constructor
        b.BoundedPipeline(None, engine=engine, clock=engine.clock, device_lock=lock)
    assert all(link.disposed for link in engine.links)
    assert is_free(lock)
    until(lambda: ours() <= of_others)
    assert len(os.listdir("/proc/self/fd")) == before
    del kept


def test_a_constructor_that_can_start_no_thread_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lock, before, engine = tmp_path / "gpu0.lock", len(os.listdir("/proc/self/fd")), HandEngine()
    monkeypatch.setattr(threading.Thread, "start", exhausted)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        b.BoundedPipeline(None, engine=engine, clock=engine.clock, device_lock=lock)
    assert is_free(lock)
    assert len(os.listdir("/proc/self/fd")) == before
