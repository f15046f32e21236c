"""Ctrl-C at a real terminal, signals, exits and forks: the server ends when it is told to, and its engine with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator

import pytest
from process.lanes import gone, kill, said, script

pytestmark = pytest.mark.timeout(60)

ENDS_WITHIN = 3.0
LEAVES_WITHIN = 2.0


class Terminal:
    """A script that owns a terminal, with an engine whose process id is the first that it says."""

    def __init__(self, process: subprocess.Popen[str], keyboard: int) -> None:
        self.process, self._keyboard = process, keyboard
        self.engine = int(said(process))

    def interrupt(self) -> float:
        """Press Ctrl-C; the time of that."""
        os.write(self._keyboard, b"\x03")
        return time.monotonic()

    def ends(self, within: float = ENDS_WITHIN) -> str:
        """What it wrote to stderr; it has ended within `within` seconds, and its engine has left."""
        began = time.monotonic()
        self.process.wait(20)
        took = time.monotonic() - began
        gone(self.engine, LEAVES_WITHIN)
        assert self.process.stderr is not None
        errors = self.process.stderr.read()
        assert took < within, (took, errors)
        return errors


@contextlib.contextmanager
def terminal(source: str, *arguments: object) -> Iterator[Terminal]:
    keyboard, tty = os.openpty()
    try:
        with script(PRELUDE + textwrap.dedent(source), *arguments, stdin=tty, stderr=subprocess.PIPE) as process:
            shown = Terminal(process, keyboard)
            try:
                yield shown
            finally:
                kill(shown.engine)
    finally:
        os.close(keyboard)
        os.close(tty)


PRELUDE = textwrap.dedent(
    """
    import asyncio, fcntl, signal, sys, termios, threading, time
    from boundedgen import HealthState, Limits
    from process.lanes import engine_pid, simulated_lane, until, until_in_step
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def lane_of(**limits):
        return simulated_lane({"step_s": 0.005}, limits=Limits(drain=30.0, **limits))

    def endless(lane):  # kept by whoever calls: Python loses an interrupt that comes while it drops an object
        streams = [lane.submit([5], max_new_tokens=30_000, ignore_eos=True) for _ in range(3)]
        until(lambda: all(s.partial.token_ids for s in streams))
        print(engine_pid(lane), flush=True)
        return streams

    def draining(lane):
        def tell():
            until(lambda: lane.health().state is HealthState.DRAINING)
            print("draining", flush=True)
        threading.Thread(target=tell, daemon=True).start()

    """
)

WITH = """
    with lane_of() as lane:
        streams = endless(lane)
        for chunk in streams[0]:
            pass
"""
WITH_OVER = """
    with lane_of() as lane:
        streams = endless(lane)
        draining(lane)
"""
CLOSES = """
    with lane_of() as lane:
        draining(lane)
        try:
            streams = endless(lane)
            for chunk in streams[0]:
                pass
        except KeyboardInterrupt:
            lane.close(drain=30)
"""
HANDLER = """
    def on_interrupt(number, frame):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        lane.close(drain=30)

    with lane_of() as lane:
        draining(lane)
        signal.signal(signal.SIGINT, on_interrupt)
        streams = endless(lane)
        for chunk in streams[0]:
            pass
"""
ASYNC_WITH = """
    async def main():
        async with lane_of() as lane:
            streams = endless(lane)
            async for chunk in streams[0]:
                pass
    asyncio.run(main())
"""
ASYNC_WITH_OVER = """
    async def main():
        async with lane_of() as lane:
            streams = endless(lane)
            draining(lane)
    asyncio.run(main())
"""
ASYNC_CLOSES = """
    async def main():
        async with lane_of() as lane:
            streams = endless(lane)
            draining(lane)
            try:
                async for chunk in streams[0]:
                    pass
            except asyncio.CancelledError:
                await lane.aclose(drain=30)
    asyncio.run(main())
"""


@pytest.mark.parametrize("source", [WITH, ASYNC_WITH], ids=["threads", "asyncio"])
def test_field_report_50_one_interrupt_ends_a_server_that_does_not_catch_it(source: str) -> None:
    with terminal(source) as server:
        server.interrupt()
        errors = server.ends()
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert "boundedgen-" not in errors
        assert "Exception" not in errors


@pytest.mark.parametrize(
    ("source", "first"),
    [(CLOSES, True), (HANDLER, True), (WITH_OVER, False), (ASYNC_CLOSES, True), (ASYNC_WITH_OVER, False)],
    ids=["closes", "closes in its handler", "leaves its with", "acloses", "leaves its async with"],
)
def test_field_report_50_an_interrupt_breaks_a_drain_that_is_under_way(source: str, first: bool) -> None:
    with terminal(source) as server:
        if first:
            server.interrupt()
        said(server.process, "draining")
        time.sleep(0.2)
        assert server.process.poll() is None
        server.interrupt()
        errors = server.ends()
        print(errors)
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert "boundedgen-" not in errors
        assert "Exception" not in errors


SURVIVES = """
    lane = lane_of()
    lane.wait_ready()
    draining(lane)
    streams = endless(lane)
    try:
        lane.close(drain=30)
    except KeyboardInterrupt:
        until(lambda: lane.health().state is HealthState.CLOSED, 1.0)
        print(*(s.finish_reason for s in streams), flush=True)
"""


def test_a_close_that_is_interrupted_ends_its_drain_also_where_the_process_lives_on() -> None:
    with terminal(SURVIVES) as server:
        said(server.process, "draining")
        server.interrupt()
        assert said(server.process) == "shutdown shutdown shutdown"
        assert server.ends() == ""


STUCK = """
    lane = simulated_lane({"hang_at": 5}, limits=Limits(step=100.0, ack=100.0, reclaim=100.0, progress=100.0))
    lane.wait_ready()
    streams = [lane.submit([5], max_new_tokens=30_000, ignore_eos=True) for _ in range(3)]
    until_in_step(lane, for_s=0.2)
    print(engine_pid(lane), flush=True)
    lane.close(drain=30)
"""


def test_a_server_that_is_terminated_while_its_engine_hangs_takes_it_along() -> None:
    with terminal(STUCK) as server:
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        assert server.ends() == ""
        assert server.process.returncode == -signal.SIGTERM


def test_an_interrupt_ends_a_server_that_drains_and_whose_engine_hangs() -> None:
    with terminal(STUCK) as server:
        time.sleep(0.2)
        server.interrupt()
        assert server.ends().rstrip().endswith("KeyboardInterrupt")


EXITS = """
    how = sys.argv[1]
    lane = lane_of()
    lane.wait_ready()
    lane.itself = lane
    kept = endless(lane)
    if how == "reader":
        threading.Thread(target=lambda: [None for chunk in kept[0]], daemon=True).start()
    elif how == "atexit":
        import atexit
        atexit.register(lane.close, 0.3)
    elif how == "closing daemon":
        threading.Thread(target=lane.close, args=(30,), daemon=True).start()
        until(lambda: lane.health().state is HealthState.DRAINING)
"""


@pytest.mark.parametrize("how", ["reader", "atexit", "closing daemon"])
def test_a_process_that_exits_with_an_unclosed_pipeline_and_generations_inside_ends_well_and_soon(how: str) -> None:
    with terminal(EXITS, how) as server:
        errors = server.ends(LEAVES_WITHIN)
        print(errors)
        assert server.process.returncode == 0
        assert "Traceback" not in errors


FORKS = """
    import multiprocessing, os
    from boundedgen import PipelineClosed
    lane = lane_of()
    lane.wait_ready()
    kept = endless(lane)

    def child():
        for act in (lambda: lane.submit([5]), lambda: lane.generate([5]), kept[0].result, lane.wait_ready):
            try:
                act()
            except PipelineClosed:
                continue
            os._exit(7)

    def fork(leave):
        if (pid := os.fork()) == 0:
            child()
            leave(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    codes = []
    fork(sys.exit)
    thread = threading.Thread(target=fork, args=(os._exit,))
    thread.start()
    thread.join()
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    codes.append(process.exitcode)
    before = [len(s.partial.token_ids) for s in kept]
    until(lambda: all(len(s.partial.token_ids) > count for s, count in zip(kept, before)))
    print(*codes, lane.stats().restarts_total, flush=True)
    lane.close()
"""


def test_field_report_52_a_fork_of_any_kind_is_told_so_and_ends_by_itself_and_the_parent_goes_on() -> None:
    """One that leaves as a process does, one in a thread, which is alone there, and multiprocessing's."""
    with terminal(FORKS) as server:
        assert said(server.process) == "0 0 0 0"
        errors = server.ends(LEAVES_WITHIN)
        assert (server.process.returncode, errors) == (0, "")


OUTLIVED = """
    import os
    lane = lane_of()
    lane.wait_ready()
    kept = endless(lane)
    if os.fork() == 0:
        os.close(0), os.close(1), os.close(2)
        time.sleep(5)
        os._exit(0)
    time.sleep(100)
"""


def test_the_engine_leaves_with_its_parent_though_a_fork_of_that_has_its_pipes_and_lives_on() -> None:
    with terminal(OUTLIVED) as server:
        time.sleep(0.2)
        server.process.kill()
        try:
            server.ends(LEAVES_WITHIN)
        finally:
            os.killpg(server.process.pid, signal.SIGKILL)  # the fork
