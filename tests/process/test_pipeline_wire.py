"""What a lane makes of a wire that is slow, or that ends."""

import contextlib
import os
import signal

from process.lanes import engine_pid, simulated_lane, until

from boundedgen import Bounds, Limits


def test_prompts_that_take_many_steps_to_reach_the_engine_kill_nobody_and_a_stop_passes_them() -> None:
    limits = Limits(ack=0.6)
    lane = simulated_lane({"step_s": 0.15}, limits=limits, num_kv_blocks=200_000, bounds=Bounds(total=120))
    with contextlib.closing(lane):
        lane.wait_ready(20)
        stream = lane.submit([5], max_new_tokens=20_000, ignore_eos=True)
        until(lambda: len(stream.partial.token_ids) > 1)
        long = [lane.submit([250] * 700_000, max_new_tokens=1, ignore_eos=True) for _ in range(3)]
        until(lambda: len(lane._driver.governor.stays) == 4)
        stream.cancel()
        stream.wait_reclaimed(20)
        stays = lane._driver.governor.stays
        assert not all(stay.taken for stay in stays.values()), "they were still on their way"
        until(lambda: all(stay.taken for stay in stays.values()))
        for generation in long:
            generation.cancel()
            generation.wait_reclaimed(20)
        assert lane.stats().incarnation == 1


def test_an_engine_that_lives_without_a_word_is_replaced_and_one_that_is_killed_died() -> None:
    lane = simulated_lane({"hush_at": 5, "step_s": 0.005, "incarnations": [1]}, bounds=Bounds(total=60))
    with contextlib.closing(lane):
        lane.wait_ready(20)
        lost = lane.submit([5], max_new_tokens=30_000, ignore_eos=True)
        seconds = until(lambda: lost.finish_reason == "engine_lost")
        assert seconds < 10
        until(lambda: lane.stats().incarnation == 2 and lane.health().state == "ready")
        os.kill(engine_pid(lane), signal.SIGKILL)
        until(lambda: lane.stats().incarnation == 3)
        kills = lane.stats().kills_total
        assert (kills["wire"], kills["died"], sum(kills.values())) == (1, 1, 2)
