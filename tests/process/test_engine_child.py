"""The engine process, without a model: its loop, its faults, its end. All processes are real."""

from __future__ import annotations

import errno
import math
import os
import random
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
from process.engine_life import Life, alive, gone, simulated

from boundedgen._bounds import Limits
from boundedgen._core._events import BootFailed, Exited, Progress, Ready, StepRaised, WireBroken, WireEnded
from boundedgen._engine import _host, _process
from boundedgen.abc import Request

pytestmark = pytest.mark.timeout(60)


def sim_tokens(prompt: list[int], count: int) -> tuple[int, ...]:
    return tuple((7 * prompt[0] + len(prompt) + i) % 259 for i in range(count))


# --- the loop ----------------------------------------------------------------------------------------------------


def test_a_stay_is_taken_streamed_finished_and_released_and_then_the_engine_is_at_rest() -> None:
    with alive(simulated()) as life:
        stay = life.admit([5, 6, 7], max_new_tokens=8)
        rest = life.at_rest()
        assert life.tokens(stay) == sim_tokens([5, 6, 7], 8)
        (last,) = [report for report in life.all(Progress) if report.finished]
        assert [finish.why for finish in last.finished] == ["length"]
        assert [(r.stay, r.steps, r.late_tokens) for r in last.released] == [(stay, 0, 0)]
        assert (rest.usage, rest.held, rest.steps) == (0.0, (), 9)
        assert sum((report.taken for report in life.all(Progress)), ()) == (stay,)


def test_at_most_one_report_a_step_is_sent() -> None:
    with alive(simulated()) as life:
        for _ in range(16):
            life.admit([1, 2, 3], max_new_tokens=50)
        life.at_rest()
        steps = [report.steps for report in life.all(Progress)]
        assert steps == sorted(set(steps))


def test_a_stop_drains_first_is_proved_within_two_steps_and_nothing_is_emitted_after_it() -> None:
    with alive(simulated({"step_s": 0.002})) as life:
        stay = life.admit([5], max_new_tokens=100_000)
        while len(life.tokens(stay)) < 10:
            life.turn()
        life.link.stop(stay)
        life.released(stay)
        release = life.releases()[stay]
        assert 1 <= release.steps <= 2
        assert 0.0 < release.seconds < 1.0
        stopped = next(i for i, report in enumerate(life.all(Progress)) if stay in report.stopping)
        assert not any(
            output.stay == stay for report in life.all(Progress)[stopped + 1 :] for output in report.all_outputs
        )
        got = life.tokens(stay)
        assert got == sim_tokens([5], len(got))
        assert life.finish(stay) is None


def test_the_engine_stops_a_stay_at_its_deadline_by_itself_while_the_parent_is_away() -> None:
    with alive(simulated({"step_s": 0.002})) as life:
        stay = life.admit([5], max_new_tokens=100_000, deadline_in=0.3)
        other = life.admit([6], max_new_tokens=100_000)
        time.sleep(1.0)
        life.released(stay)
        assert life.finish(stay) is None
        assert len(life.tokens(stay)) < 200
        assert other not in life.releases()


def test_a_stay_whose_deadline_has_passed_never_enters_the_engine() -> None:
    with alive(simulated()) as life:
        stay = life.admit([5], deadline_in=-1.0)
        life.released(stay)
        assert life.releases()[stay].steps == 0
        assert life.link.pulse().steps_begun == 0


def test_an_admission_that_arrives_with_its_own_stop_never_enters_the_engine() -> None:
    with alive(simulated({"slow_at": 1, "slow_s": 0.5})) as life:
        first = life.admit([5], max_new_tokens=3)
        while not life.link.pulse().in_step:
            time.sleep(0.001)
        second = life.admit([6])
        life.link.stop(second)
        life.released(first, second)
        report = next(report for report in life.all(Progress) if second in report.stopping)
        assert second in report.taken
        assert second in [release.stay for release in report.released]
        assert life.tokens(second) == ()


def test_a_duplicate_is_refused_and_an_unknown_stop_is_ignored() -> None:
    with alive(simulated({"step_s": 0.005})) as life:
        stay = life.admit([5], max_new_tokens=20)
        life.admit([5], max_new_tokens=20, stay=stay)
        life.link.stop(4711)
        life.at_rest()
        refused = [refusal for report in life.all(Progress) for refusal in report.refused]
        assert [(refusal.stay, refusal.code) for refusal in refused] == [(stay, "invalid")]
        assert life.tokens(stay) == sim_tokens([5], 20)


def test_commands_that_arrive_during_the_boot_are_served_after_it() -> None:
    with alive(simulated({"boot_s": 0.3}), ready=False) as life:
        stay = life.admit([5])
        other = life.admit([6])
        life.link.stop(other)
        life.released(stay, other)
        assert life.tokens(stay) == sim_tokens([5], 8)
        assert life.releases()[other].steps == 0


def test_a_refused_admission_is_reported_though_no_step_runs() -> None:
    with alive(simulated()) as life:
        stay = life.admit([], max_new_tokens=5)
        report = life.until(lambda report: isinstance(report, Progress))
        assert isinstance(report, Progress)
        assert [refusal.stay for refusal in report.refused] == [stay]
        assert life.link.pulse().steps_begun == 0


def test_commands_of_one_wake_are_there_together() -> None:
    with alive(simulated()) as life:
        for stay in range(1, 17):
            life.link.admit(Request(stay, [5, 6, 7], {"max_new_tokens": 2, "ignore_eos": True}, math.inf))
        assert not select.select(life.link.filenos(), [], [], 0.1)[0], "nothing is sent until the wake is over"
        life.released(*range(1, 17))
        assert life.all(Progress)[0].scheduled == 16


def test_the_table_of_what_is_held_comes_every_64_steps() -> None:
    with alive(simulated()) as life:
        stay = life.admit([5], max_new_tokens=200)
        life.at_rest()
        assert [r.steps for r in life.all(Progress) if r.held == (stay,)] == [64, 128, 192]


def test_a_request_of_several_sequences_shows_its_results_at_the_end_only() -> None:
    with alive(simulated()) as life:
        stay = life.admit([5], max_new_tokens=6, num_return_sequences=3)
        life.at_rest()
        finish = life.finish(stay)
        assert finish is not None
        assert [result.token_ids for result in finish.results] == [sim_tokens([5], 6)] * 3
        assert life.tokens(stay) == ()


def test_the_stamps_estimate_what_the_step_in_flight_schedules() -> None:
    with alive(simulated({"slow_at": 2, "slow_s": 0.3})) as life:
        life.admit([5] * 300, max_new_tokens=3)
        while life.link.pulse().steps_begun < 2:
            time.sleep(0.001)
        pulse = life.link.pulse()
        assert (pulse.scheduled, pulse.attention) == (44, 44 * 300)  # 256 of 300 went with the first step
        life.at_rest()


def test_an_idle_engine_uses_no_processor() -> None:
    with alive(simulated()) as life:
        life.admit([5])
        life.at_rest()
        process = psutil.Process(life.pid)
        before = process.cpu_times()
        time.sleep(1.0)
        after = process.cpu_times()
        assert (after.user - before.user) + (after.system - before.system) <= 0.02


# --- neither side waits for the other ----------------------------------------------------------------------------


def test_reports_that_nobody_reads_never_block_the_engine_and_no_token_is_lost() -> None:
    with alive(simulated({"step_s": 0.001})) as life:
        stays = [life.admit([n], max_new_tokens=1_000_000) for n in range(1, 9)]
        time.sleep(2.0)
        before = life.link.pulse().steps_ended
        time.sleep(3.0)
        after = life.link.pulse().steps_ended
        assert after - before > 1000
        for stay in stays:
            life.link.stop(stay)
        life.released(*stays)
        for n, stay in enumerate(stays, 1):
            assert len(life.tokens(stay)) >= after
            assert life.tokens(stay) == sim_tokens([n], len(life.tokens(stay)))
        merged = [b.steps - a.steps for a, b in zip(life.all(Progress), life.all(Progress)[1:], strict=False)]
        assert max(merged) > 1000


def test_a_long_prompt_never_blocks_the_parent_while_the_engine_is_in_a_step() -> None:
    with alive(simulated({"slow_at": 1, "slow_s": 1.5, "gil": True}, num_kv_blocks=40_000)) as life:
        life.admit([5], max_new_tokens=2)
        while not life.link.pulse().in_step:
            time.sleep(0.001)
        began = time.monotonic()
        stay = life.admit([200] * 400_000, max_new_tokens=2)
        life.link.receive()
        assert time.monotonic() - began < 0.5
        assert life.link.fileno_to_write() is not None
        life.released(stay)
        assert life.tokens(stay) == sim_tokens([200] * 400_000, 2)
        assert life.link.fileno_to_write() is None


def test_commands_beyond_the_outbox_wait_in_their_order_while_the_engine_is_in_a_step() -> None:
    limits = Limits(outbox_bytes=1 << 16, frame_bytes=1 << 20)
    with alive(simulated({"slow_at": 1, "slow_s": 0.5}, limits, num_kv_blocks=40_000)) as life:
        first = life.admit([5], max_new_tokens=3)
        while not life.link.pulse().in_step:
            time.sleep(0.001)
        os.kill(life.pid, signal.SIGSTOP)
        long = [life.admit([200] * 150_000, max_new_tokens=1) for _ in range(5)]
        life.link.stop(long[-1])
        life.link.stop(first)
        assert not life.link._waiting._outbox.room
        assert len(life.link._waiting._words) > 1
        os.kill(life.pid, signal.SIGCONT)
        life.released(first, *long)
        taken = [stay for report in life.all(Progress) for stay in report.taken]
        assert [stay for stay in taken if stay != long[-1]] == [first, *long[:-1]]
        assert long[-1] in taken, "with its stop right behind it, it may never have entered the engine"
        assert life.tokens(long[-1]) == ()


def test_what_is_said_while_nobody_listens_comes_in_reports_of_bounded_size() -> None:
    with alive(simulated(limits=Limits(frame_bytes=1 << 20), num_kv_blocks=40_000)) as life:
        stays = [life.admit([5, n], max_new_tokens=12_000, logprobs=1) for n in range(16)]
        large = life.admit([6], max_new_tokens=14_000, num_return_sequences=16, do_sample=True)
        until = time.monotonic() + 20
        while life.link.pulse().steps_ended < 14_000 and time.monotonic() < until:
            time.sleep(0.05)
        life.at_rest()
        assert all(len(life.tokens(stay)) == 12_000 for stay in stays)
        assert [refusal.stay for report in life.all(Progress) for refusal in report.refused] == [large]


def test_an_engine_whose_reports_end_says_so_once_and_one_that_dies_says_only_that() -> None:
    with alive(simulated({"hush_at": 5})) as life:
        life.admit([5], max_new_tokens=100_000)
        life.until(lambda report: isinstance(report, WireEnded))
        time.sleep(0.1)
        assert life.turn() == [], "and it keeps nobody awake"
        life.link.kill()
        assert life.exited().status == -9
        assert len(life.all(WireEnded)) == 1


def test_a_prompt_longer_than_a_report_may_be_reaches_the_engine() -> None:
    with alive(simulated(limits=Limits(frame_bytes=1 << 20), num_kv_blocks=10_000)) as life:
        stay = life.admit([200] * 300_000, max_new_tokens=1)
        life.released(stay)
        assert len(life.tokens(stay)) == 1


def test_a_flood_of_output_starves_no_report_and_only_its_end_is_kept() -> None:
    limits = Limits(stderr_bytes=1000)
    with alive(simulated({"flood_at": 3, "flood_bytes": 64 << 20}, limits)) as life:
        before = psutil.Process().memory_info().rss
        stay = life.admit([5], max_new_tokens=10)
        life.released(stay)
        life.link.kill()
        text = life.exited().text
        assert len(text) <= 1000
        assert text.endswith("end of the flood\n")
        assert psutil.Process().memory_info().rss - before < 32 << 20


def test_output_that_nobody_reads_does_not_block_the_engine() -> None:
    with alive(simulated({"flood_at": 3, "flood_bytes": 4 << 20})) as life:
        life.admit([5], max_new_tokens=10)
        end = time.monotonic() + 5.0
        while life.link.pulse().steps_ended < 10 and time.monotonic() < end:
            time.sleep(0.01)
        assert life.link.pulse().steps_ended >= 10


# --- faults ------------------------------------------------------------------------------------------------------


def test_a_hung_step_is_seen_in_the_stamps_and_ended_by_a_kill() -> None:
    with alive(simulated({"hang_at": 3})) as life:
        life.admit([5], max_new_tokens=100)
        while life.link.pulse().steps_begun < 3:
            life.turn()
        time.sleep(0.3)
        pulse = life.link.pulse()
        assert pulse.in_step
        assert time.monotonic() - pulse.begun_at >= 0.3
        life.link.kill()
        assert life.exited(2.0).status == -signal.SIGKILL


def test_the_stamps_of_a_suspended_engine_can_be_read() -> None:
    with alive(simulated({"step_s": 0.001})) as life:
        life.admit([5], max_new_tokens=100_000)
        while life.link.pulse().steps_ended < 5:
            life.turn()
        os.kill(life.pid, signal.SIGSTOP)
        time.sleep(0.1)
        first = life.link.pulse()
        time.sleep(0.1)
        assert life.link.pulse() == first
        life.link.kill()
        assert life.exited(2.0).status == -signal.SIGKILL


def test_an_exception_out_of_a_step_is_reported_and_no_step_is_tried_again() -> None:
    with alive(simulated({"raise_at": 4})) as life:
        stay = life.admit([5], max_new_tokens=100)
        report = life.until(lambda report: isinstance(report, StepRaised))
        assert isinstance(report, StepRaised)
        assert report.steps == 3
        assert "Check 'simulated' failed" in report.text
        assert life.tokens(stay) == sim_tokens([5], 3)  # what came before is not lost
        life.link.stop(stay)
        life.admit([6])
        time.sleep(0.2)
        assert life.turn() == []
        assert life.link.pulse().steps_begun == 4
        assert not life.link.pulse().in_step


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [("exit_at", 3, "the last words"), ("crash_at", -signal.SIGSEGV, "Segmentation fault")],
)
def test_a_death_tells_its_status_and_its_last_words_after_all_reports(fault: str, status: int, words: str) -> None:
    with alive(simulated({fault: 5})) as life:
        stay = life.admit([5], max_new_tokens=100)
        report = life.exited()
        assert (report.status, report.incarnation) == (status, 1)
        assert words in report.text
        assert life.tokens(stay) == sim_tokens([5], 4)
        assert life.reports[-1] is report


def test_what_an_engine_said_before_it_died_is_heard_though_nobody_listened_until_then() -> None:
    with alive(simulated({"exit_at": 5})) as life:
        stay = life.admit([5], max_new_tokens=100)
        assert select.select([life.link._life.pidfd], [], [], 10)[0], "it has ended"
        *earlier, last = life.turn()
        assert isinstance(last, Exited)
        assert len(earlier) == 4
        assert life.tokens(stay) == sim_tokens([5], 4)


def test_an_engine_that_closes_its_output_is_heard_as_before_and_keeps_nobody_awake() -> None:
    with alive(simulated({"mute_at": 2})) as life:
        stay = life.admit([5], max_new_tokens=5)
        life.released(stay)
        life.at_rest()
        assert select.select(life.link.filenos(), [], [], 0.3)[0] == []
        life.released(life.admit([6]))
        life.link.kill()
        assert life.exited().status == -signal.SIGKILL
        assert life.link.receive() == []
        assert life.link.filenos() == ()


@pytest.mark.parametrize("fault", ["garbage_at", "stale_at"])
def test_bytes_that_are_no_frame_of_this_life_break_the_wire_once(fault: str) -> None:
    with alive(simulated({fault: 3, "step_s": 0.001})) as life:
        life.admit([5], max_new_tokens=500)
        life.until(lambda report: isinstance(report, WireBroken))
        time.sleep(0.1)
        assert life.turn() == []  # nothing after it is believed
        assert len(life.all(WireBroken)) == 1


def test_a_frame_cut_off_by_death_is_death_and_no_broken_wire() -> None:
    with alive(simulated({"cut_at": 3})) as life:
        life.admit([5], max_new_tokens=50)
        assert life.exited().status == 4
        assert life.all(WireBroken) == []


def test_an_engine_that_ignores_stops_reports_them_taken_and_never_released() -> None:
    with alive(simulated({"ignore_stops": True, "step_s": 0.001})) as life:
        stay = life.admit([5], max_new_tokens=100_000)
        while not life.tokens(stay):
            life.turn()
        life.link.stop(stay)
        life.until(lambda report: isinstance(report, Progress) and stay in report.stopping)
        for _ in range(5):
            life.turn()
        assert stay not in life.releases()


def test_a_fault_of_one_incarnation_leaves_the_next_alone() -> None:
    host = simulated({"exit_at": 1, "incarnations": [1]})
    with alive(host, 1) as life:
        life.admit([5])
        assert life.exited().status == 3
    with alive(host, 2) as life:
        stay = life.admit([5])
        life.released(stay)
        assert {report.incarnation for report in life.reports if isinstance(report, Progress | Ready)} == {2}


def test_a_host_tells_each_engine_whether_an_earlier_one_was_ready() -> None:
    host = simulated()
    served = []
    for incarnation in (1, 2, 3):
        with alive(host, incarnation, ready=incarnation == 2):
            served.append(host._served)
    assert served == [False, False, True]


def test_a_boot_that_is_refused_is_told_and_then_the_process_ends() -> None:
    with alive(simulated({"boot_raises": ["memory", "no room", False]}), ready=False) as life:
        assert life.exited().status == 1
        assert life.reports[0] == BootFailed(1, "memory", "no room", permanent=False)


def test_an_engine_with_another_clock_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shifted_clock_child.py").write_text(
        textwrap.dedent("""
            import time
            real = time.monotonic
            time.monotonic = lambda: real() - 1000.0
            from boundedgen.testing import _faulty_child
            _faulty_child.main(_faulty_child.load)
        """),
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    link = _host.start("shifted_clock_child", 1, Limits())
    life = Life(link)
    try:
        report = life.until(lambda report: isinstance(report, BootFailed))
        assert isinstance(report, BootFailed)
        assert (report.kind, report.permanent) == ("other", True)
        assert "clock" in report.text
    finally:
        life.close()


# --- the process -------------------------------------------------------------------------------------------------


def test_the_engine_has_a_group_of_its_own_ignores_ctrl_c_and_offers_itself_to_the_oom_killer() -> None:
    with alive(simulated()) as life:
        assert os.getpgid(life.pid) == life.pid != os.getpgid(0)
        assert os.getsid(life.pid) == os.getsid(0), "a session is a scheduling group of its own (docs/engine-facts.md)"
        os.kill(life.pid, signal.SIGINT)
        stay = life.admit([5])
        life.released(stay)
        assert int(Path(f"/proc/{life.pid}/oom_score_adj").read_text(encoding="ascii")) >= 500


def test_the_engine_holds_no_descriptor_of_its_parent_but_its_own_pipes() -> None:
    with open(os.devnull, encoding="utf-8") as file:
        os.set_inheritable(file.fileno(), True)
        with alive(simulated()) as life:
            targets = [os.readlink(fd) for fd in Path(f"/proc/{life.pid}/fd").iterdir()]
            assert sum("pipe:" in target for target in targets) == 4  # commands, reports, stdout, stderr
            assert sum("memfd:boundedgen" in target for target in targets) == 2  # stamps, stacks
            assert sum(target == os.devnull for target in targets) == 1  # stdin


def test_a_kill_takes_grandchildren_along() -> None:
    with alive(simulated({"grandchild": True})) as life:
        (grandchild,) = psutil.Process(life.pid).children()
        life.link.kill()
        life.exited()
        assert gone(grandchild.pid, 2.0)


def test_a_death_by_itself_takes_grandchildren_along() -> None:
    with alive(simulated({"grandchild": True, "exit_at": 1})) as life:
        (grandchild,) = psutil.Process(life.pid).children()
        life.admit([5])
        life.exited()
        assert gone(grandchild.pid, 2.0)


def test_the_end_of_the_command_pipe_ends_the_engine() -> None:
    with alive(simulated()) as life:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, life.link._commands)
        os.close(null)
        assert life.exited(2.0).status == 0


_PARENT = """
import sys, time
sys.path.insert(0, {tests!r})
from process.engine_life import alive, simulated
with alive(simulated({fault!r}), ready={ready!r}) as life:
    if {ready!r}:
        life.admit([5], max_new_tokens=1000)
        while not life.link.pulse().in_step:
            life.turn()
    print(life.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("fault", "ready"),
    [
        pytest.param({"boot_s": 30}, False, id="while it loads"),
        pytest.param({"slow_at": 1, "slow_s": 30, "gil": True}, True, id="in a long step"),
        pytest.param({"hang_at": 1}, True, id="while it hangs"),
        pytest.param({"step_s": 0.01}, True, id="between steps"),
    ],
)
def test_an_engine_does_not_outlive_its_parent(fault: dict[str, object], ready: bool) -> None:
    script = _PARENT.format(tests=str(Path(__file__).parents[1]), fault=fault, ready=ready)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.0 if ready else 0.5)
        assert psutil.pid_exists(pid)
        parent.kill()
        assert gone(pid, 10.0)


def test_a_parent_that_is_gone_before_the_engine_asks_for_the_signal_is_noticed() -> None:
    out = subprocess.run(
        [sys.executable, "-m", "boundedgen.testing._faulty_child", "1", "1", "0", "1", "1", "65536", "2"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert (out.returncode, out.stdout, out.stderr) == (0, b"", b"")


def _descriptors() -> list[str]:
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(fd).split(":")[0])
        except FileNotFoundError:
            continue
    return sorted(found)


def _children() -> list[tuple[int, str]]:
    return [(child.pid, child.status()) for child in psutil.Process().children(recursive=True)]


def _fifty_lives(end: Callable[[Life, random.Random], None], count: int = 50) -> None:
    dice = random.Random(4711)
    host = simulated()
    before = _descriptors(), _children(), threading.active_count(), sorted(os.listdir("/dev/shm"))
    for incarnation in range(1, count + 1):
        life = Life(host.spawn(incarnation))
        end(life, dice)
    assert (_descriptors(), _children(), threading.active_count(), sorted(os.listdir("/dev/shm"))) == before


@pytest.mark.slow
@pytest.mark.timeout(110)
def test_fifty_lives_ended_at_random_moments_leave_nothing_behind() -> None:
    def end(life: Life, dice: random.Random) -> None:
        until = time.monotonic() + dice.random() * 0.8
        while time.monotonic() < until:
            if life.all(Ready) and not life.all(Progress):
                life.admit([5], max_new_tokens=100_000)
            life.turn(0.005)
        life.close()
        assert isinstance(life.reports[-1], Exited)
        assert life.reports[-1].status == -signal.SIGKILL

    _fifty_lives(end)


def test_an_engine_that_is_disposed_of_before_it_has_left_leaves_no_zombie() -> None:
    life = Life(simulated().spawn(1))
    pid = life.pid
    life.link.dispose()
    life.link.dispose()
    assert gone(pid, 2.0)
    _process.reap_lost()
    assert not psutil.pid_exists(pid)
    assert life.link.receive() == []
    assert life.link.pulse().steps_begun == 0
    life.link.kill()
    life.link.flush()
    life.link.stop(3)


def test_an_engine_ends_with_a_report_though_somebody_else_reaps_children() -> None:
    with alive(simulated()) as life:
        os.kill(life.pid, signal.SIGKILL)
        os.waitpid(life.pid, 0)
        assert life.exited(2.0).incarnation == 1


def test_a_start_that_fails_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    host = simulated()
    before = _descriptors()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(OSError, match="nowhere"):
        host.spawn(1)
    assert _descriptors() == before


@pytest.mark.parametrize(("what", "name"), [(os, "pidfd_open"), (_process.Ears, "listen")])
def test_a_start_that_fails_with_its_process_there_leaves_neither(
    what: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "no space left on device")

    host, before = simulated(), _descriptors()
    monkeypatch.setattr(what, name, full)
    with pytest.raises(OSError, match="no space"):
        host.spawn(1)
    end = time.monotonic() + 10
    while (left := psutil.Process().children()) and time.monotonic() < end:
        _process.reap_lost()
        time.sleep(0.01)
    assert left == []
    assert _descriptors() == before
