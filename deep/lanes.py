"""The lanes of deep/crashing_traffic.py: a bare loop that is started again when it dies, and boundedgen."""

from __future__ import annotations

import contextlib
import json
import logging
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import final

import tenacity

import boundedgen as b
from deep.belongings import Belongings, left_behind, temporary_files
from deep.lane_figures import Figures, how
from deep.lateness import Lateness
from deep.traffic import AT_ONCE, SCHEDULER, Asked, requests

MODEL = str(Path(__file__).parent.parent / "tests" / "models" / "plain")
SILENCE_S = 30.0  #: a bare loop that says nothing for so long hangs
LATE_S = 0.1  #: an answer may come so much later than its deadline, on top of what the machine itself is late by
PATIENCE_S = 60.0
#: More than there are callers: a newcomer does not wait for one that was stopped, unless blocks are reserved.
LIMITS = b.Limits(running_max=4 * AT_ONCE, step=2.0, first_step=10.0, ack=2.0, reclaim=2.0, progress=5.0)


# --- the bare loop ---------------------------------------------------------------------------------------------------


def raw(seconds: float, seed: int) -> Figures:
    figures, until = Figures(lane="raw", seconds=seconds), time.monotonic() + seconds
    while time.monotonic() < until:
        counts, died = _life(seed, figures.asked, until)
        tokens, taken = counts.pop("tokens", 0), counts.pop("taken", 0)
        counts.pop("steps", None)
        figures.tokens += tokens
        figures.asked += taken
        figures.ends.update(counts)
        if died:
            figures.died[died] += 1
            figures.ends["lost with the engine"] += taken - sum(counts.values())
    return figures


def _life(seed: int, first: int, until: float) -> tuple[dict[str, int], str]:
    """What one process did, and what it died of; empty: its time was over."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "deep.raw_lane", MODEL, str(seed), str(first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        counts, hung = _counts(process, until)
        over = not hung and process.poll() is None and time.monotonic() >= until
        if over or hung:
            process.kill()
        process.communicate()
        errors.seek(0)
        text = errors.read().decode("utf-8", "replace")
    return counts, "" if over else "a hang" if hung else how(text, process.returncode)


def _counts(process: subprocess.Popen[bytes], until: float) -> tuple[dict[str, int], bool]:
    """The last that it said; True: it hangs."""
    assert process.stdout is not None
    counts: dict[str, int] = {}
    heard = time.monotonic()
    poller = select.poll()
    poller.register(process.stdout, select.POLLIN)
    while (now := time.monotonic()) < until:
        if now - heard > SILENCE_S:
            return counts, True
        if poller.poll(100):
            heard, line = now, process.stdout.readline()
            if not line:
                process.wait(PATIENCE_S)
                break
            if line.endswith(b"\n"):
                counts = json.loads(line)
    return counts, False


# --- boundedgen ------------------------------------------------------------------------------------------------------


def bounded(policy: str, seconds: float, seed: int) -> Figures:
    """As many callers as the bare loop has requests inside, each with one at a time."""
    figures = Figures(lane=policy, seconds=seconds)
    callers = Callers(figures, requests(seed), time.monotonic() + seconds)
    with temporary_files(), Lateness() as machine, Losses(figures.died):
        before = Belongings.now()
        with b.BoundedPipeline(
            MODEL,
            dict(SCHEDULER),
            "CPU",
            limits=LIMITS,
            admission=b.Admission(policy=policy, margin=None),
            restart=b.RestartPolicy(wait=tenacity.wait_none(), stop=tenacity.stop_never),
        ) as lane:
            callers.serve(lane)
            lane.close()
            stats = lane.stats()
        figures.broken += left_behind(before)
    callers.judge(machine)
    told = {reason: count for reason, count in stats.finished_total.items() if count}
    if told != dict(figures.ends):
        figures.broken.append(f"ended {told}; their callers saw {dict(figures.ends)}")
    if sum(figures.died.values()) != stats.restarts_total:
        figures.broken.append(f"{stats.restarts_total} restarts, {sum(figures.died.values())} losses in the log")
    if policy == "reserve" and stats.restarts_total:
        figures.broken.append(f"{stats.restarts_total} engines lost")
    figures.ends.update({f"refused: {name}": count for name, count in callers.refused.items()})
    return figures


def _wait(generation: b.Generation, seconds: float | None) -> None:
    with contextlib.suppress(b.GenerationError, TimeoutError):
        generation.result(seconds)


@final
class Callers:
    """Threads that take one request after the other from the same traffic."""

    def __init__(self, figures: Figures, traffic: Iterator[Asked], until: float) -> None:
        self._figures, self._traffic, self._until = figures, traffic, until
        self._lock = threading.Lock()
        self._answers: list[tuple[float, float, float]] = []  # when, seconds after the deadline, settled so long after
        self.refused: Counter[str] = Counter()

    def serve(self, lane: b.BoundedPipeline) -> None:
        threads = [threading.Thread(target=self._call, args=(lane,), daemon=True) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self._until - time.monotonic()) + PATIENCE_S)
            if thread.is_alive():
                self._figures.broken.append("a caller was not answered at all")

    def judge(self, machine: Lateness) -> None:
        self._figures.late_most = max((late for _, late, _ in self._answers), default=None)
        self._figures.machine_late = machine.whole
        for at, late, settled in self._answers:
            if late > LATE_S and late > LATE_S + (waited := machine.of(at - late, at)):
                self._figures.broken.append(
                    f"an answer {late:.3f} s late, settled {settled:.3f} s late; the machine {waited:.3f} s"
                )

    def _call(self, lane: b.BoundedPipeline) -> None:
        while time.monotonic() < self._until:
            with self._lock:
                asked = next(self._traffic)
                self._figures.asked += 1
            self._ask(lane, asked)

    def _ask(self, lane: b.BoundedPipeline, asked: Asked) -> None:
        deadline = time.monotonic() + asked.total
        try:
            generation = lane.submit(asked.prompt, bounds=b.Bounds(total=asked.total), **asked.config)
        except b.Rejected as error:
            with self._lock:
                self.refused[type(error).__name__] += 1
            return
        if asked.stop_after is not None:
            _wait(generation, asked.stop_after)
            generation.cancel()
        _wait(generation, None)
        now = time.monotonic()
        with self._lock:
            self._answers.append((now, now - deadline, generation.partial.total_s - asked.total))
            self._count(generation)

    def _count(self, generation: b.Generation) -> None:
        reason, completion = generation.finish_reason, generation.partial
        self._figures.ends[str(reason)] += 1
        if reason in (b.FinishReason.STOP, b.FinishReason.LENGTH):
            self._figures.tokens += len(completion.token_ids) + sum(len(a.token_ids) for a in completion.alternatives)


class Losses(logging.Handler):
    """Counts what the log says engines died of."""

    def __init__(self, died: Counter[str]) -> None:
        super().__init__(logging.ERROR)
        self._died = died

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("engine %d") and isinstance(record.args, tuple):
            self._died[how(str(record.args[2]))] += 1

    def __enter__(self) -> None:
        logger = logging.getLogger("boundedgen")
        self._kept = logger.propagate
        logger.propagate = False
        logger.addHandler(self)

    def __exit__(self, *exc: object) -> None:
        logger = logging.getLogger("boundedgen")
        logger.propagate = self._kept
        logger.removeHandler(self)
