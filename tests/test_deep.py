"""The long runs of deep/, a little of each: they are to work on the day that somebody needs them."""

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from boundedgen import Completion, FinishReason
from deep import belongings, crashes, soak
from deep.belongings import Belongings, left_behind, temporary_files
from deep.faults import KINDS, dealt
from deep.lane_figures import Figures, how, table
from deep.lanes import bounded, raw
from deep.lateness import Lateness
from deep.soak import Sample
from deep.streams import Streams
from deep.traffic import BLOCKS, Asked, requests

LESS_USUAL = (
    "a step blocks on its pipe",
    "no progress",
    "no submission is acknowledged",
    "SIGKILL, with a grandchild",
    "SIGKILL after a flood of output",
)


@pytest.mark.slow
def test_a_few_faults_break_no_promise_and_each_leaves_an_incident(tmp_path: Path) -> None:
    kinds = [kind for kind in KINDS if kind.name in LESS_USUAL]
    findings = crashes.run(kinds, seed=3, resume="continue", black_box=tmp_path)
    assert [what for what in findings.broken if "late" not in what] == []
    assert [recovery.kind for recovery in findings.recoveries] == [kind.name for kind in kinds]
    assert all(recovery.detection > 0 and recovery.boot > 0 for recovery in findings.recoveries)
    assert len(findings.incidents) == len(kinds)
    assert findings.stats["resumed_total"] > 0
    assert findings.streams.compared > 0
    assert max(findings.late) < 0.5, "a promise of 0.1 s on a machine that does nothing else"


def test_in_200_faults_each_kind_occurs_ten_times_at_least() -> None:
    counts = Counter(kind.name for kind in dealt(200, random.Random(3)))
    assert len(counts) == len(KINDS) == len({kind.name for kind in KINDS})
    assert 10 <= min(counts.values()) <= max(counts.values()) <= 11


def completion(*ids: int, why: FinishReason = FinishReason.LENGTH) -> Completion:
    return Completion(
        text="",
        token_ids=ids,
        finish_reason=why,
        prompt_tokens=1,
        completion_tokens=len(ids),
        queued_s=None,
        first_token_s=None,
        total_s=0.0,
    )


def test_a_stream_that_takes_back_repeats_or_loses_a_token_is_found() -> None:
    cut = completion(1, 2, why=FinishReason.ENGINE_LOST)
    for found, shown, wanted, streamed in (
        (completion(1, 2, 3), (1, 2, 2, 3), 3, True),  # repeated
        (completion(1, 2, 3), (1, 2), 3, True),  # lost
        (completion(1, 2), (), 3, False),  # too short
        (completion(1, 2, 9), (), 3, False),  # another stream than before
        (cut, (2,), 3, True),
    ):
        streams = Streams()
        streams.look(completion(1, 2, 3), (5,), (1, 2, 3), 3, streamed=True)
        streams.look(cut, (5,), (1,), 3, streamed=True)
        assert streams.broken == []
        streams.look(found, (5,), shown, wanted, streamed=streamed)
        assert len(streams.broken) == 1


def test_what_a_run_leaves_behind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(belongings, "SETTLING_S", 0.1)
    with temporary_files() as folder:
        before, over = Belongings.now(), threading.Event()
        assert left_behind(before) == []
        (folder / "a file").touch()
        reads, writes = os.pipe()
        thread = threading.Thread(target=over.wait)
        thread.start()
        process = subprocess.Popen(["sleep", "60"])
        found = left_behind(before)
        process.kill()
        process.wait()
        over.set()
        thread.join()
        os.close(reads)
        os.close(writes)
    assert [what.split()[0] for what in found] == ["descriptors", "threads", "children", "temporary"]


def test_waiting_for_a_processor_is_the_machines_lateness_and_waiting_for_anything_else_is_not() -> None:
    """As many that compute as there are processors, and this one beside them, on one processor."""
    allowed = os.sched_getaffinity(0)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        one = {min(allowed)}
        for process in busy:
            os.sched_setaffinity(process.pid, one)
        with Lateness() as machine:
            asleep = time.monotonic()
            time.sleep(0.3)
            os.sched_setaffinity(0, one)
            crowded = time.monotonic()
            while time.monotonic() < crowded + 0.5:
                pass
            end = time.monotonic()
    finally:
        os.sched_setaffinity(0, allowed)
        for process in busy:
            process.kill()
            process.wait()
    assert machine.of(crowded, end) > 0.15
    assert machine.of(asleep, asleep + 0.25) < machine.of(crowded, end)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["engine", "reserve"])
def test_traffic_that_engines_die_of_leaves_no_caller_unanswered(policy: str) -> None:
    figures = bounded(policy, 5.0, seed=5)
    assert [what for what in figures.broken if "late" not in what] == []  # with "reserve" it may lose no engine
    assert figures.finished > 3
    assert figures.tokens > figures.finished
    assert not [why for why in figures.ends if why.startswith("refused")]
    assert figures.late_most is not None
    assert figures.late_most < 0.5, "a promise of 0.1 s on a machine that does nothing else"


@pytest.mark.slow
def test_the_bare_loop_is_started_again_and_what_it_lost_is_counted() -> None:
    figures = raw(4.0, seed=5)
    assert figures.finished > 0
    assert figures.tokens > figures.finished
    assert sum(figures.ends.values()) <= figures.asked
    assert not [why for why in figures.died if why.startswith("exit")]


def test_the_crashing_traffic_is_mixed_fits_and_is_the_same_for_the_same_seed() -> None:
    def first(seed: int) -> list[Asked]:
        return list(itertools.islice(requests(seed), 500))

    assert first(5) == first(5) != first(6)
    assert max(asked.blocks for asked in first(5)) <= BLOCKS
    assert {asked.sequences for asked in first(5)} == {1, 2, 3, 4}
    assert 100 < sum(asked.stop_after is not None for asked in first(5)) < 400


def test_what_an_engine_died_of_is_said_in_few_words_and_lanes_stand_beside_each_other() -> None:
    assert how("", -11) == how("the process died of signal 11 (SIGSEGV)") == "SIGSEGV"
    raised = "RuntimeError: Check 'can_allocate_blocks(1)' failed at src/cpp/x.cpp:3: no"
    assert how(raised, 1) == how(f"Traceback\n{raised}\n", 1) == "Check 'can_allocate_blocks(1)' failed"
    assert how("", 3) == "exit 3"
    lanes = [
        Figures(lane="raw", seconds=10, tokens=50, ends=Counter(finished=20), died=Counter(SIGSEGV=3)),
        Figures(lane="reserve", seconds=10, tokens=40, ends=Counter(length=10), late_most=0.002),
    ]
    lines = {line[:20].strip(): line[20:].split() for line in table(lanes).splitlines()}
    assert lines[""] == ["raw", "reserve"]
    assert lines["engines lost"] == lines["SIGSEGV"] == ["3", "0"]
    assert lines["goodput, tokens/s"] == ["5", "4"]
    assert lines["goodput, requests/s"] == ["2.00", "1.00"]
    assert lines["latest answer, ms"] == ["-", "2"]


@pytest.mark.slow
def test_a_short_soak_ends_at_rest_and_samples_what_has_to_stay_flat() -> None:
    run = soak.Soak(seed=3)
    run.run(6.0, kill_every=3.0)
    assert run.kills >= 1
    assert len(run.samples) >= 2
    assert {sample.rows for sample in run.samples} == {0}


def test_what_grows_is_told_from_what_does_not() -> None:
    flat = [Sample(n, 100.0, 200.0, 15, 4, 0, 50_000 + n % 7) for n in range(40)]
    assert soak.grown(flat) == {}
    leaking = [Sample(n, 100.0 + n, 200.0, 15 + n // 10, 4, 0, 50_000) for n in range(40)]
    assert set(soak.grown(leaking)) == {"parent_mib", "descriptors"}
