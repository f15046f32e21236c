"""Field reports on processes, signals, pipes and grammars. Numbers are those of the reports."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import textwrap
import threading
import time
from typing import Any

import psutil
import pytest
from process.lanes import engine_pid, gone, kill, plain_lane, said, script, simulated_host, simulated_lane, until

from boundedgen import (
    BoundedGenError,
    BoundedPipeline,
    EngineLost,
    HealthState,
    InvalidRequest,
    Limits,
    NeverFits,
    RestartPolicy,
)

pytestmark = pytest.mark.timeout(90)

FULL: dict[str, Any] = {"ignore_eos": True}
FOR_EVER = RestartPolicy(wait=lambda state: 0.0, stop=lambda state: False)


@pytest.mark.slow
def test_field_report_36_a_grammar_that_does_not_compile_is_its_own_callers_error_and_nobody_elses() -> None:
    bad = ({"json_schema": '{"type": "nonsense"'}, {"regex": "(["}, {"grammar": "root ::= ("})
    with contextlib.closing(plain_lane()) as lane:
        lane.wait_ready()
        bystander = lane.submit([10], max_new_tokens=1500, **FULL)
        until(lambda: len(bystander.partial.token_ids) > 20)
        for grammar in bad:
            with pytest.raises(InvalidRequest):
                lane.submit([10], max_new_tokens=20, structured_output_config=grammar).result(30)
        good = lane.submit([10], max_new_tokens=20, structured_output_config={"regex": "[ab]{3}"})
        assert set(good.result(30).text) <= set("ab")
        assert bystander.result(30).completion_tokens == 1500
        assert lane.generate([10], max_new_tokens=3, **FULL).completion_tokens == 3
        stats = lane.stats()
        assert stats.restarts_total == 0
        assert stats.finished_total["rejected"] + sum(stats.rejected_total.values()) == len(bad)


BAD: dict[str, tuple[Any, dict[str, Any]]] = {
    "an empty prompt": ("", {}),
    "no tokens": ([], {}),
    "a token that is not there": ([10**7], {}),
    "a negative token": ([-1], {}),
    "no new tokens": ([5], {"max_new_tokens": 0}),
    "fewer than none": ([5], {"max_new_tokens": -1}),
    "a temperature of 0": ([5], {"do_sample": True, "temperature": 0.0}),
    "a temperature that is no number": ([5], {"do_sample": True, "temperature": float("nan")}),
    "no sequences": ([5], {"num_return_sequences": 0}),
    "more results than beams": ([5], {"num_beams": 2, "num_return_sequences": 3}),
    "a stop token that is not there": ([5], {"stop_token_ids": [10**7]}),
    "stop tokens without end": ([5], {"stop_token_ids": list(range(100_000))}),
    "half a character": ("\ud800", {}),
    "10 MB": ("a" * (10 << 20), {}),
    "a field that is not there": ([5], {"max_tokns": 5}),
}


def test_field_report_37_bad_numbers_of_one_caller_are_its_own_error_at_once_and_nobody_elses() -> None:
    with contextlib.closing(plain_lane(num_kv_blocks=256)) as lane:
        lane.wait_ready()
        bystander = lane.submit([10], max_new_tokens=3000, **FULL)
        for what, (prompt, config) in BAD.items():
            began = time.monotonic()
            with pytest.raises((InvalidRequest, NeverFits, ValueError, TypeError)):
                lane.submit(prompt, **config).result(30)
            assert time.monotonic() - began < 1.0, what
        assert lane.submit([10], max_new_tokens=None).max_new_tokens == Limits().max_new_tokens_default
        assert lane.submit("a\0b", max_new_tokens=3).result(30).completion_tokens > 0
        assert bystander.result(30).completion_tokens == 3000
        assert lane.stats().restarts_total == 0


def test_field_report_47_grandchildren_of_an_engine_go_with_it_on_recovery_and_on_close() -> None:
    with contextlib.closing(simulated_lane({"grandchild": True})) as lane:
        lane.wait_ready()
        first = psutil.Process(engine_pid(lane)).children()
        kill(engine_pid(lane))
        until(lambda: lane.stats().incarnation == 2 and lane.health().ready)
        second = psutil.Process(engine_pid(lane)).children()
    assert len(first) == len(second) == 1
    for process in (*first, *second):
        gone(process.pid, 2.0)


@pytest.mark.slow
def test_field_report_48_an_engine_killed_at_any_instant_of_its_writing_blocks_nobody() -> None:
    """Sixteen streams of thousands of small messages a second; no word of one life is heard in the next."""
    draw = random.Random(48)
    with contextlib.closing(simulated_lane(restart=FOR_EVER, num_kv_blocks=16_384)) as lane:
        lane.wait_ready()
        longest = 0.0
        for cycle in range(20):
            streams = [lane.submit([number], max_new_tokens=30_000, **FULL) for number in range(16)]
            until(lambda streams=streams: any(s.partial.token_ids for s in streams))  # type: ignore[misc]
            time.sleep(draw.uniform(0, 0.02))
            kill(engine_pid(lane))
            for number, stream in enumerate(streams):
                with pytest.raises(EngineLost):
                    stream.result(10)
                ids = stream.partial.token_ids
                assert ids == tuple((7 * number + 1 + i) % 259 for i in range(len(ids))), f"cycle {cycle}"
            began = time.monotonic()
            lane.stats()
            last = lane.submit([9], max_new_tokens=5, **FULL)
            longest = max(longest, time.monotonic() - began)
            assert last.result(20).token_ids == tuple((63 + 1 + i) % 259 for i in range(5))
        print(f"\nlongest call {longest * 1e3:.1f} ms")
        assert longest < 0.2
        assert lane.stats().restarts_total == 20


INTERRUPTED = textwrap.dedent(
    """
    import os, sys, time
    from process.lanes import simulated_lane, until, until_in_step
    lane = simulated_lane({"step_s": 0.02} if sys.argv[1] == "drain" else {"hang_at": 1})
    lane.wait_ready()
    streams = [lane.submit([5], max_new_tokens=60, ignore_eos=True) for _ in range(3)]
    if sys.argv[1] == "wait":
        until_in_step(lane)
    else:
        until(lambda: all(s.partial.token_ids for s in streams))
    try:
        print("running", flush=True)
        streams[0].result(60)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    if sys.argv[1] == "drain":
        lane.close(drain=10)
        print(*(s.finish_reason for s in streams), lane.stats().restarts_total, flush=True)
    lane.close()
    print("closed", flush=True)
    """
)


def test_field_report_51_an_interrupt_reaches_a_caller_that_waits_while_the_engine_is_inside_a_step() -> None:
    with script(INTERRUPTED, "wait") as process:
        said(process, "running")
        began = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        said(process, "interrupted")
        assert time.monotonic() - began < 0.5
        said(process, "closed")
        assert process.wait(10) == 0


def test_field_report_50_an_interrupt_of_the_whole_group_cuts_no_stream_before_the_drain() -> None:
    with script(INTERRUPTED, "drain") as process:
        said(process, "running")
        engine = psutil.Process(process.pid).children()[0]
        os.killpg(process.pid, signal.SIGINT)
        engine.send_signal(signal.SIGINT)  # and one for the engine itself, which is in a group of its own
        said(process, "interrupted")
        assert said(process) == "length length length 0"
        said(process, "closed")
        assert process.wait(10) == 0


def test_field_report_50_a_second_interrupt_ends_the_drain() -> None:
    with script(INTERRUPTED, "drain") as process:
        said(process, "running")
        os.killpg(process.pid, signal.SIGINT)
        said(process, "interrupted")
        time.sleep(0.1)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(10) != 0
        assert time.monotonic() - began < 1.0


FORKY = textwrap.dedent(
    """
    import multiprocessing, threading, time
    multiprocessing.set_start_method("fork")
    import openvino_genai
    from process.lanes import MODELS, plain_lane
    own = openvino_genai.ContinuousBatchingPipeline(str(MODELS / "plain"), openvino_genai.SchedulerConfig(), "CPU")
    for _ in range(8):
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
    lane = plain_lane()
    lane.wait_ready(25)
    print(lane.generate([10], max_new_tokens=3, ignore_eos=True).completion_tokens, flush=True)
    lane.close()
    """
)


@pytest.mark.slow
def test_field_report_52_it_starts_beside_a_pipeline_of_the_parents_own_whatever_the_start_method() -> None:
    with script(FORKY) as process:
        assert said(process) == "3"
        assert process.wait(10) == 0


def test_field_report_52_importing_the_library_starts_no_thread_and_loads_no_openvino() -> None:
    source = "import boundedgen, sys, threading; print(threading.active_count(), 'openvino' in sys.modules, flush=True)"
    with script(source) as process:
        assert said(process) == "1 False"


class Slot:
    """A pipeline that is replaced by a new one once it is closed."""

    def __init__(self) -> None:
        self._host = simulated_host()
        self._changing = threading.Lock()
        self._lane: BoundedPipeline | None = None
        self.built = 0

    def lane(self) -> BoundedPipeline:
        with self._changing:
            if self._lane is None or self._lane.health().state is HealthState.CLOSED:
                self._lane = BoundedPipeline(None, engine=self._host, restart=FOR_EVER)
                self.built += 1
            return self._lane


def operate(slot: Slot, seed: int, unexpected: list[BaseException]) -> None:
    draw = random.Random(seed)
    for _ in range(12):
        lane = slot.lane()
        try:
            one_operation(lane, draw)
        except (BoundedGenError, TimeoutError):
            pass
        except BaseException as error:
            unexpected.append(error)


def one_operation(lane: BoundedPipeline, draw: random.Random) -> None:
    what = draw.choice(("wait", "submit", "submit", "submit", "kill", "close"))
    if what == "submit":
        lane.wait_ready(draw.uniform(0.2, 2))
        lane.submit([5], max_new_tokens=2000, **FULL).result(draw.uniform(0, 1))
    elif what == "wait":
        lane.wait_ready(draw.uniform(0, 1))
    elif what == "kill" and (link := lane._driver.link) is not None and link.pid is not None:
        kill(link.pid)
    elif what == "close":
        lane.close(draw.uniform(0, 0.2))


@pytest.mark.slow
def test_field_report_82_random_opening_closing_submitting_and_killing_ends_in_a_legal_state() -> None:
    """From four threads; there is never more than one engine."""
    slot, unexpected, most = Slot(), [], 0  # type: tuple[Slot, list[BaseException], int]
    threads = [threading.Thread(target=operate, args=(slot, seed, unexpected)) for seed in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most = max(most, len(psutil.Process().children()))
        time.sleep(0.003)
    for thread in threads:
        thread.join()
    last = slot.lane()
    incarnations = last.stats().incarnation
    last.close()
    print(f"\n{slot.built} pipelines, the last one with {incarnations} engines")
    assert last.health().state is HealthState.CLOSED
    assert not unexpected
    assert most == 1
    assert slot.built > 3
    assert not psutil.Process().children()
