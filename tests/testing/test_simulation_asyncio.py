"""Coroutines in a simulation: in a loop of its own, where all time is simulated, and in a loop of real time."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.to_thread
import pytest

import boundedgen as b
from boundedgen.testing import Fault, SimModel, Simulation, SimulationStalled
from boundedgen.testing import _loop as loops

SECOND = SimModel(step_s=1, token_s=0)
Runs = Callable[[Simulation, Coroutine[Any, Any, Any]], Any]


def in_its_own_loop(sim: Simulation, main: Coroutine[Any, Any, Any]) -> Any:
    return sim.run(main)


def in_a_real_loop(sim: Simulation, main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(main)


anywhere = pytest.mark.parametrize("run", [in_its_own_loop, in_a_real_loop])


@anywhere
def test_coroutines_wait_to_the_instant(run: Runs) -> None:
    with Simulation(model=SECOND) as sim:
        began = sim.now

        async def main() -> list[float]:
            async with await sim.pipeline.asubmit("hello", max_new_tokens=3) as g:
                return [sim.now - began async for _ in g]

        assert run(sim, main()) == [1, 2, 3]


@anywhere
def test_many_that_wait_are_answered_together(run: Runs) -> None:
    with Simulation(model=SECOND) as sim:

        async def main() -> list[b.Completion]:
            return await asyncio.gather(*(sim.pipeline.agenerate("x", max_new_tokens=n) for n in (5, 2, 9)))

        answers = run(sim, main())
        assert [answer.total_s for answer in answers] == [5, 2, 9]


@anywhere
def test_a_task_that_is_cancelled_cancels_its_generation(run: Runs) -> None:
    with Simulation(model=SECOND) as sim:
        held: list[b.Generation] = []

        async def client() -> None:
            held.append(await sim.pipeline.asubmit("x", max_new_tokens=100))
            await held[0]

        async def main() -> None:
            task = asyncio.create_task(client())
            await sim.aadvance(2.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await held[0].await_reclaimed()).steps == 1

        run(sim, main())
        assert held[0].finish_reason is b.FinishReason.CANCELLED


@anywhere
def test_timeouts_of_waits_are_simulated_too(run: Runs) -> None:
    with Simulation(model=SECOND, faults=[Fault(kind="wedge")]) as sim:

        async def main() -> tuple[bool, b.ProbeVerdict, float]:
            began, g = sim.now, await sim.pipeline.asubmit("x", max_new_tokens=100)
            settled = await g.wait(7)
            return settled, (await sim.pipeline.aprobe(3)).verdict, sim.now - began

        assert run(sim, main()) == (False, b.ProbeVerdict.FAILED, 10)


@anywhere
def test_a_pipeline_is_entered_and_left_by_the_server_itself(run: Runs) -> None:
    sim = Simulation(model=SECOND)

    async def main() -> tuple[float, float]:
        async with sim.pipeline as pipeline:
            ready, g = sim.now, await pipeline.asubmit("x", max_new_tokens=5)
        return sim.now - ready, (await g).total_s

    left, took = run(sim, main())
    assert took == 5, "it was let end"
    assert left == pytest.approx(5 + SECOND.exit_s)
    assert sim.pipeline.health().state is b.HealthState.CLOSED


@anywhere
def test_a_close_that_is_cancelled_ends_the_drain(run: Runs) -> None:
    with Simulation(model=SECOND) as sim:

        async def main() -> None:
            g = await sim.pipeline.asubmit("x", max_new_tokens=100)
            closing = asyncio.create_task(sim.pipeline.aclose(drain=60))
            await sim.aadvance(3)
            assert sim.pipeline.health().state is b.HealthState.DRAINING
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            with pytest.raises(b.GenerationShutDown):
                await g

        run(sim, main())


@anywhere
def test_without_autojump_only_advancing_lets_time_pass(run: Runs) -> None:
    with Simulation(model=SECOND, autojump=False) as sim:
        began = sim.now

        async def main() -> list[tuple[float, bool]]:
            task = asyncio.create_task(sim.pipeline.agenerate("x", max_new_tokens=3))
            seen = []
            for _ in range(4):
                for _ in range(50):
                    await asyncio.sleep(0)
                seen.append((sim.now - began, task.done()))
                sim.advance(1)
            await task
            return seen

        assert run(sim, main()) == [(0, False), (1, False), (2, False), (3, True)]


@anywhere
def test_advancing_in_a_coroutine_lets_the_others_go_on_at_their_time(run: Runs) -> None:
    with Simulation(model=SECOND, autojump=False) as sim:
        began = sim.now

        async def turns() -> list[float]:
            seen = []
            for _ in range(3):  # each is submitted when the one before is there
                await sim.pipeline.agenerate("x", max_new_tokens=2)
                seen.append(sim.now - began)
            return seen

        async def main() -> list[float]:
            task = asyncio.create_task(turns())
            await sim.aadvance(10)
            return await task

        assert run(sim, main()) == [2, 5, 8], "after each, the engine takes a step more to give its cache back"
        assert sim.now == began + 10


# --- a loop of its own -----------------------------------------------------------------------------------------------


def test_sleeps_and_timeouts_of_the_server_are_simulated() -> None:
    with Simulation(model=SECOND) as sim:

        async def main() -> tuple[float, float]:
            began, g = sim.now, await sim.pipeline.asubmit("x", max_new_tokens=900)
            await asyncio.sleep(100.25)
            slept = sim.now - began
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(200):
                    await g
            with anyio.move_on_after(20.5):
                await asyncio.Event().wait()
            return slept, sim.now - began

        assert sim.run(main()) == (100.25, 320.75)


def test_time_stands_still_while_threads_of_the_server_work() -> None:
    with Simulation(model=SECOND) as sim:

        def slowly() -> str:
            time.sleep(0.05)
            return "done"

        async def main() -> tuple[str, float, int]:
            began = sim.now
            answer = asyncio.create_task(sim.pipeline.agenerate("x", max_new_tokens=5))
            word = await asyncio.to_thread(slowly)
            return word, sim.now - began, (await answer).completion_tokens

        assert sim.run(main()) == ("done", 0, 5)


def test_threads_of_the_server_may_wait_for_generations_while_coroutines_do() -> None:
    with Simulation(model=SECOND) as sim:

        async def main() -> list[float]:
            def ask(tokens: int) -> float:
                time.sleep(0.01)
                return sim.pipeline.generate("x", max_new_tokens=tokens).total_s

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(asyncio.to_thread(ask, n)) for n in (3, 9, 4)]
                tasks += [group.create_task(anyio.to_thread.run_sync(ask, n)) for n in (7, 2)]
                tasks += [group.create_task(took(sim.pipeline.agenerate("x", max_new_tokens=n))) for n in (5, 6)]
            return [task.result() for task in tasks]

        assert sim.run(main()) == [3, 9, 4, 7, 2, 5, 6]


async def took(answer: Coroutine[Any, Any, b.Completion]) -> float:
    return (await answer).total_s


@pytest.mark.parametrize("thread", [asyncio.to_thread, anyio.to_thread.run_sync])
def test_a_timeout_of_the_server_comes_first_although_a_thread_waits_longer(thread: Any) -> None:
    with Simulation(model=SECOND) as sim:
        began, ends = sim.now, []

        def ask() -> None:
            try:
                sim.pipeline.generate("x", max_new_tokens=100, timeout=30)
            except TimeoutError:
                ends.append(sim.now - began)

        async def main() -> None:
            task = asyncio.create_task(thread(ask))
            await asyncio.sleep(12)
            ends.append(sim.now - began)
            await task

        sim.run(main())
        assert ends == [12, 30]


def test_a_thread_that_waits_in_vain_is_told_so() -> None:
    with Simulation(model=SECOND, faults=[Fault(kind="wedge"), Fault(kind="unkillable")]) as sim:

        async def main() -> None:
            g = await sim.pipeline.asubmit("x", max_new_tokens=3)
            await asyncio.to_thread(g.wait_reclaimed)

        with pytest.raises(SimulationStalled):
            sim.run(main())


def test_a_task_that_waits_for_ever_is_an_error_at_once() -> None:
    with Simulation() as sim:
        left: list[str] = []

        async def main() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                left.append("cleaned up")

        with pytest.raises(SimulationStalled, match="every task waits, and nothing that is waited for will ever"):
            sim.run(main())
        assert left == ["cleaned up"]


def test_waiting_without_autojump_and_without_anybody_to_advance_is_an_error_at_once() -> None:
    off = "autojump is off: the next event is 1 s ahead"
    with Simulation(model=SECOND, autojump=False) as sim, pytest.raises(SimulationStalled, match=off):
        sim.run(sim.pipeline.agenerate("x", max_new_tokens=3))


def test_real_sockets_work_in_it() -> None:
    with Simulation(model=SECOND) as sim:

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            length = int(await reader.readline())
            completion = await sim.pipeline.agenerate("x", max_new_tokens=length)
            writer.write(b"%d\n" % completion.completion_tokens)
            writer.close()

        async def main() -> bytes:
            async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                writer.write(b"7\n")
                line = await reader.readline()
                writer.close()
                return line

        assert sim.run(main()) == b"7\n"


# --- a loop of real time ---------------------------------------------------------------------------------------------


def test_in_a_real_loop_a_stall_is_an_error_after_some_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "PATIENCE", 0.05)
    with Simulation(faults=[Fault(kind="wedge"), Fault(kind="unkillable")]) as sim:

        async def main() -> None:
            g = await sim.pipeline.asubmit("x", max_new_tokens=3)
            with pytest.raises(SimulationStalled, match="coroutines wait, and nothing that is waited for"):
                await g.await_reclaimed()
            with pytest.raises(SimulationStalled):
                await asyncio.gather(g.await_reclaimed(), g.await_reclaimed())

        asyncio.run(main())


def test_in_a_real_loop_waiting_without_autojump_is_an_error_after_some_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "PATIENCE", 0.05)
    with Simulation(model=SECOND, autojump=False) as sim, pytest.raises(SimulationStalled, match="autojump is off"):
        asyncio.run(sim.pipeline.agenerate("x", max_new_tokens=3))


def test_in_a_real_loop_somebody_may_still_act_within_that_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "PATIENCE", 5)
    with Simulation(model=SECOND, autojump=False) as sim:

        async def main() -> int:
            task = asyncio.create_task(sim.pipeline.agenerate("x", max_new_tokens=3))
            await asyncio.sleep(0.05)
            sim.advance(10)
            return (await task).completion_tokens

        assert asyncio.run(main()) == 3


def test_a_thread_may_advance_while_a_real_loop_waits() -> None:
    with Simulation(model=SECOND, autojump=False) as sim:

        async def main() -> int:
            task = asyncio.create_task(sim.pipeline.agenerate("x", max_new_tokens=3))
            await asyncio.sleep(0.02)
            thread = threading.Thread(target=sim.advance, args=(5,))
            thread.start()
            answer = await task
            thread.join()
            return answer.completion_tokens

        assert asyncio.run(main()) == 3


@anywhere
def test_what_a_watcher_raises_comes_out_of_whoever_waits(run: Runs) -> None:
    with Simulation(model=SECOND) as sim:

        def watch() -> None:
            assert len(g.partial.token_ids) < 3, "seen"

        g = sim.pipeline.submit("x", max_new_tokens=5)
        unwatch = sim.watch(watch)

        async def main() -> None:
            await g

        with pytest.raises(AssertionError, match="seen"):
            run(sim, main())
        unwatch()
        assert len(g.partial.token_ids) >= 3


def test_a_thread_that_waits_for_the_loop_or_for_something_of_its_own_does_not_stop_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "PATIENCE", 0.3)
    with Simulation() as sim:

        async def ask() -> b.Completion:
            return await sim.pipeline.agenerate("hello", max_new_tokens=3)

        async def main() -> tuple[b.Completion, b.Completion]:
            loop, messages = asyncio.get_running_loop(), queue.Queue[int]()
            reader = asyncio.create_task(asyncio.to_thread(messages.get))
            from_a_thread = await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(ask(), loop).result(20))
            from_here = await ask()
            messages.put(1)
            await reader
            return from_a_thread, from_here

        answers = sim.run(main())
        assert [answer.completion_tokens for answer in answers] == [3, 3]
