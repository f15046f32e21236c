"""The engine process with real models on CPU: pools to the block, what ids hold, refusals, proofs of release."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from process.engine_life import Life, alive, real

from boundedgen._core._events import BootFailed, PoolFacts, Progress, StepRaised
from boundedgen._engine._releases import installed_release

pytestmark = pytest.mark.timeout(100)
BLOCK = 32  # tokens, on CPU


@pytest.fixture(scope="module")
def plain() -> Iterator[Life]:
    with alive(real(num_kv_blocks=256, max_num_seqs=16)) as life:
        yield life


def finished(life: Life, prompt: list[int], **config: Any) -> int:
    stay = life.admit(prompt, **config)
    life.released(stay)
    return stay


def why(life: Life, stay: int) -> str | None:
    finish = life.finish(stay)
    return None if finish is None else finish.why


# --- pools -------------------------------------------------------------------------------------------------------


def test_a_pool_given_in_blocks_grows_by_the_probes_block(plain: Life) -> None:
    facts = plain.facts
    assert facts.pools == (PoolFacts("kv", 257, BLOCK),)
    assert facts.probe_blocks == {"kv": 1}
    assert (facts.block_size, facts.running_max, facts.hybrid, facts.max_prompt_tokens) == (BLOCK, 16, False, None)
    assert (facts.vocab_size, facts.proof, facts.device) == (259, installed_release().proof, "CPU")
    assert facts.findings == installed_release().told(hybrid=False)
    assert (len(facts.canary), facts.exact) == (4, True)
    assert facts.cache_bytes == 257 * (1 << 14)
    assert facts.versions.keys() == {"openvino", "openvino-genai"}


def test_a_pool_given_in_bytes_is_learned_to_the_block_and_the_probe_takes_its_block_out_of_it() -> None:
    with alive(real(cache_size=1)) as life:
        (pool,) = life.facts.pools
        assert life.facts.cache_bytes == 1 << 30
        assert pool == PoolFacts("kv", 65_536, BLOCK)
        assert pool.blocks * (1 << 14) == life.facts.cache_bytes  # 16 KiB a block of this model in f32
        assert life.facts.probe_blocks == {"kv": 1}


@pytest.mark.parametrize("blocks", [1, 2, 7])
def test_a_request_that_fills_the_pool_finishes_and_one_token_more_is_ignored(blocks: int) -> None:
    with alive(real(num_kv_blocks=blocks)) as life:
        (pool,) = life.facts.pools
        assert pool == PoolFacts("kv", blocks + 1, BLOCK)
        room = pool.blocks * BLOCK
        fits = finished(life, [5] * (room - 9), max_new_tokens=10)  # prompt + new - 1 == room
        assert (why(life, fits), len(life.tokens(fits))) == ("length", 10)
        too_long = finished(life, [5] * (room - 9), max_new_tokens=11)
        assert (why(life, too_long), len(life.tokens(too_long))) == ("ignored", 10)


def test_a_prompt_that_one_step_must_take_whole_has_its_limit_told() -> None:
    with alive(real(dynamic_split_fuse=False, max_num_batched_tokens=100, max_num_seqs=100)) as life:
        assert life.facts.max_prompt_tokens == 100
        assert life.facts.running_max == 99  # the engine wants max_num_seqs <= max_num_batched_tokens: no room on top
        assert life.facts.pools == (PoolFacts("kv", 65, BLOCK),)
        assert why(life, finished(life, [5] * 100)) == "length"
        life.admit([5] * 101)
        life.until(lambda report: isinstance(report, StepRaised))


def test_the_pools_of_a_hybrid_are_exact_and_its_linear_attention_pool_bounds_what_runs() -> None:
    with alive(real("hybrid", num_kv_blocks=64, max_num_seqs=3)) as life:
        facts = life.facts
        assert facts.hybrid
        assert facts.pools == (PoolFacts("kv", 65, BLOCK), PoolFacts("linear_attention", 4, None))
        assert facts.probe_blocks == {"kv": 1, "linear_attention": 1}
        assert facts.running_max == 3
        stays = [life.admit([5, 6], max_new_tokens=300) for _ in range(5)]
        life.until(lambda report: isinstance(report, Progress) and report.scheduled == 4)
        life.until(lambda report: isinstance(report, Progress) and report.steps > 50)
        assert {report.scheduled for report in life.all(Progress) if 5 < report.steps < 50} == {4}
        assert [bool(life.tokens(stay)) for stay in stays] == [True] * 4 + [False]


def test_a_hybrid_with_few_kv_blocks_is_bounded_by_them_to_the_token() -> None:
    with alive(real("hybrid", num_kv_blocks=3, max_num_seqs=16)) as life:
        assert [pool.blocks for pool in life.facts.pools] == [4, 17]
        fits = finished(life, [5] * (4 * BLOCK - 9), max_new_tokens=10)
        too_long = finished(life, [5] * (4 * BLOCK - 9), max_new_tokens=11)
        assert (why(life, fits), why(life, too_long)) == ("length", "ignored")


def test_linear_attention_blocks_given_by_the_user_bound_running_max() -> None:
    with alive(real("hybrid", num_kv_blocks=64, max_num_seqs=16, num_linear_attention_blocks=5)) as life:
        assert life.facts.pools[1] == PoolFacts("linear_attention", 6, None)
        assert life.facts.running_max == 5


def test_unlimited_batched_tokens_leave_a_hybrid_its_linear_attention_pool() -> None:
    with alive(real("hybrid", num_kv_blocks=64, max_num_seqs=4, max_num_batched_tokens=2**64 - 1)) as life:
        assert life.facts.pools[1] == PoolFacts("linear_attention", 5, None)


@pytest.mark.slow
def test_the_kv_pool_of_a_hybrid_given_in_bytes_is_learned_or_bounded_from_below() -> None:
    with alive(real("hybrid", cache_size=1, max_num_seqs=256)) as life:
        kv, linear = life.facts.pools
        assert linear == PoolFacts("linear_attention", 257, None)
        real_blocks = ((1 << 30) - 257 * 18_432) // 8192  # bytes a block of each pool of this model in f32
        if life.facts.findings[: -len(installed_release().told(hybrid=True)) or None]:
            assert real_blocks // 4 <= kv.blocks <= real_blocks
        else:
            assert kv.blocks == real_blocks


def test_prefix_caching_is_off_on_a_hybrid_and_the_facts_say_so() -> None:
    with alive(real("hybrid", num_kv_blocks=64, max_num_seqs=4, enable_prefix_caching=True)) as life:
        assert [pool.tokens_per_block for pool in life.facts.pools] == [BLOCK, None]
        finding, *others = life.facts.findings
        assert tuple(others) == installed_release().told(hybrid=True)
        assert finding.startswith("enable_prefix_caching was turned off")


def test_who_insists_on_prefix_caching_on_a_hybrid_gets_it_with_its_own_pool_rule() -> None:
    settings: dict[str, Any] = {
        "num_kv_blocks": 64,
        "max_num_seqs": 4,
        "enable_prefix_caching": True,
        "cache_interval_multiplier": 4,
        "unsafe_prefix_caching": True,
    }
    with alive(real("hybrid", **settings)) as life:
        assert life.facts.pools == (PoolFacts("kv", 65, BLOCK), PoolFacts("linear_attention", 17, 4 * BLOCK))
        finding, *others = life.facts.findings
        assert tuple(others) == installed_release().told(hybrid=True)
        assert finding.startswith("enable_prefix_caching was kept on")
        assert life.facts.running_max == 4


def test_prefix_caching_on_a_plain_model_stays_on_without_a_finding() -> None:
    with alive(real(num_kv_blocks=64, enable_prefix_caching=True)) as life:
        assert life.facts.findings == installed_release().told(hybrid=False)
        assert life.facts.pools == (PoolFacts("kv", 65, BLOCK),)


# --- what a stay shows -------------------------------------------------------------------------------------------

PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def greedy(plain: Life) -> tuple[int, ...]:
    return plain.tokens(finished(plain, PROMPT, max_new_tokens=20))


def test_a_single_sequence_streams_one_token_a_step(plain: Life, greedy: tuple[int, ...]) -> None:
    stay = finished(plain, PROMPT, max_new_tokens=20)
    pieces = [o.token_ids for report in plain.all(Progress) for o in report.all_outputs if o.stay == stay]
    assert tuple(token for piece in pieces for token in piece) == greedy
    assert len(greedy) == 20
    finish = plain.finish(stay)
    assert finish is not None
    assert (finish.why, finish.results) == ("length", ())


@pytest.mark.parametrize("include", [False, True])
def test_the_stop_token_is_the_last_of_the_ids(plain: Life, greedy: tuple[int, ...], include: bool) -> None:
    stop = greedy[10]
    stay = finished(
        plain,
        PROMPT,
        max_new_tokens=20,
        stop_token_ids=[stop],
        include_stop_str_in_output=include,
        ignore_eos=False,
    )
    assert plain.tokens(stay) == greedy[:11]
    assert why(plain, stay) == "stop"


def test_the_eos_token_is_the_last_of_the_ids(plain: Life, greedy: tuple[int, ...]) -> None:
    stay = finished(plain, PROMPT, max_new_tokens=20, eos_token_id=greedy[10], ignore_eos=False)
    assert plain.tokens(stay) == greedy[:11]
    assert why(plain, stay) == "stop"


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_is_withheld_unless_it_is_to_be_included(
    plain: Life, greedy: tuple[int, ...], include: bool
) -> None:
    assert greedy[1] == 59  # "Y"
    stay = finished(plain, PROMPT, max_new_tokens=20, stop_strings=["Y"], include_stop_str_in_output=include)
    assert plain.tokens(stay) == greedy[: 2 if include else 1]
    assert why(plain, stay) == "stop"


def test_a_stop_string_at_the_very_first_token_leaves_nothing(plain: Life, greedy: tuple[int, ...]) -> None:
    stay = finished(plain, [*PROMPT, greedy[0]], max_new_tokens=20, stop_strings=["Y"])
    assert (plain.tokens(stay), why(plain, stay)) == ((), "stop")


def test_logprobs_come_one_a_token_and_only_when_asked_for(plain: Life, greedy: tuple[int, ...]) -> None:
    stay = finished(plain, PROMPT, max_new_tokens=5, logprobs=1)
    outputs = [o for report in plain.all(Progress) for o in report.all_outputs if o.stay == stay]
    probs = [p for output in outputs for p in output.logprobs]
    assert len(probs) == 5
    assert all(p < 0.0 for p in probs)
    assert all(o.logprobs == () for report in plain.all(Progress) for o in report.all_outputs if o.stay != stay)


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"num_beams": 3, "num_return_sequences": 2}, 2),
        ({"num_beams": 4, "num_return_sequences": 1, "stop_criteria": "EARLY"}, 1),
        ({"num_beams": 4, "num_beam_groups": 2, "num_return_sequences": 3, "diversity_penalty": 1.0}, 3),
        ({"do_sample": True, "num_return_sequences": 3, "rng_seed": 7}, 3),
    ],
)
def test_several_sequences_come_at_the_end_best_first_and_exactly_as_many_as_asked(
    plain: Life, config: dict[str, Any], wanted: int
) -> None:
    stay = finished(plain, PROMPT, max_new_tokens=6, logprobs=1, **config)
    assert plain.tokens(stay) == ()
    finish = plain.finish(stay)
    assert finish is not None
    assert finish.why == "length"
    scores = [result.score for result in finish.results]
    assert len(scores) == wanted
    assert scores == sorted(scores, key=lambda score: -(score or 0.0))
    assert all(len(r.token_ids) == len(r.logprobs) == 6 for r in finish.results)


def test_a_regex_holds_the_output_to_itself(plain: Life) -> None:
    stay = finished(plain, PROMPT, max_new_tokens=6, structured_output_config={"regex": "[ab]+"}, ignore_eos=False)
    assert set(plain.tokens(stay)) <= {67, 68, 2}  # "a", "b", end of sequence
    assert plain.tokens(stay)


# --- refusals, faults, releases ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "config", "words"),
    [
        (PROMPT, {"max_new_tokens": 0}, "max_new_tokens"),
        (PROMPT, {"do_sample": True, "temperature": 0.0}, "temperature"),
        (PROMPT, {"nonsense": 1}, "nonsense"),
        (PROMPT, {"stop_criteria": "SOMETIMES"}, "SOMETIMES"),
        (PROMPT, {"structured_output_config": {"nonsense": "x"}}, "StructuredOutputConfig"),
        ([], {}, ""),
    ],
)
def test_what_the_engine_does_not_accept_is_refused_in_its_own_words_and_nothing_is_held(
    plain: Life, prompt: list[int], config: dict[str, Any], words: str
) -> None:
    stay = plain.admit(prompt, **config)
    report = plain.until(lambda report: isinstance(report, Progress) and bool(report.refused))
    assert isinstance(report, Progress)
    (refusal,) = report.refused
    assert (refusal.stay, refusal.code) == (stay, "invalid")
    assert words in refusal.text
    finished(plain, PROMPT, max_new_tokens=2)
    assert plain.at_rest().held == ()


def test_a_grammar_that_does_not_compile_poisons_and_is_told_as_such() -> None:
    with alive(real()) as life:
        bystander = life.admit(PROMPT, max_new_tokens=500)
        while not life.tokens(bystander):
            life.turn()
        life.admit(PROMPT, structured_output_config={"json_schema": '{"type": "nonsense"'})
        life.until(lambda report: isinstance(report, StepRaised))
        begun = life.link.pulse().steps_begun
        life.link.stop(bystander)
        time.sleep(0.1)
        assert life.turn() == []
        assert life.link.pulse().steps_begun == begun


@pytest.mark.parametrize(
    "config",
    [{}, {"num_beams": 3, "num_return_sequences": 2}, {"do_sample": True, "num_return_sequences": 3}],
    ids=["one", "beams", "samples"],
)
@pytest.mark.parametrize("model", ["plain", "hybrid"])
def test_a_stopped_stay_is_proved_gone_within_two_steps_and_the_cache_is_empty_at_rest(
    model: str, config: dict[str, Any]
) -> None:
    with alive(real(model, num_kv_blocks=256, max_num_seqs=16)) as life:
        stays = [life.admit([n, 6, 7], max_new_tokens=400, **config) for n in range(1, 5)]
        life.until(lambda report: isinstance(report, Progress) and report.steps >= 12)
        for stay in stays:
            life.link.stop(stay)
        rest = life.at_rest()
        releases = life.releases()
        assert [1 <= releases[stay].steps <= 2 for stay in stays] == [True] * 4
        assert [life.finish(stay) for stay in stays] == [None] * 4
        assert rest.usage == 0.0
        assert life.finish(finished(life, PROMPT)) is not None


def test_a_stay_stopped_in_the_middle_keeps_every_token_it_had_shown(plain: Life, greedy: tuple[int, ...]) -> None:
    stay = plain.admit(PROMPT, max_new_tokens=2000)
    while len(plain.tokens(stay)) < 10:
        plain.turn()
    plain.link.stop(stay)
    plain.released(stay)
    assert plain.tokens(stay)[:20] == greedy[: len(plain.tokens(stay))]


def test_stops_at_random_in_a_full_but_never_overflowing_cache_are_all_proved() -> None:
    with alive(real(num_kv_blocks=64, max_num_seqs=16)) as life:
        for turn in range(6):
            stays = [life.admit([turn + n, 9], max_new_tokens=60 + 5 * n) for n in range(16)]
            while max(len(life.tokens(stay)) for stay in stays) < 20:
                life.turn()
            for stay in stays[turn % 3 :: 3]:
                life.link.stop(stay)
            life.released(*stays)
            for stay in stays:
                assert (life.finish(stay) is None) or len(life.tokens(stay)) == 60 + 5 * stays.index(stay)
        assert max(release.steps for release in life.releases().values()) <= 2
        assert life.at_rest().usage == 0.0


# --- boots that fail ---------------------------------------------------------------------------------------------


def _boot_failure(life: Life) -> BootFailed:
    report = life.until(lambda report: isinstance(report, BootFailed))
    assert isinstance(report, BootFailed)
    return report


def test_a_model_that_is_not_there_is_a_typed_boot_failure() -> None:
    with alive(real("no-such-model"), ready=False) as life:
        failure = _boot_failure(life)
        assert (failure.kind, failure.permanent) == ("model", True)
        assert life.exited().status == 1


def test_a_device_without_its_driver_is_a_typed_boot_failure() -> None:
    with alive(real(device="GPU"), ready=False) as life:
        report = life.until(lambda report: not isinstance(report, Progress))
        if not isinstance(report, BootFailed):
            pytest.skip("this machine has a GPU driver")
        assert (report.kind, report.permanent) == ("device", True)


def test_a_step_with_room_for_less_than_the_canary_gets_a_shorter_one() -> None:
    """Without dynamic_split_fuse a prompt is taken whole or not at all."""
    with alive(real(num_kv_blocks=8, dynamic_split_fuse=False, max_num_batched_tokens=3, max_num_seqs=2)) as life:
        assert (len(life.facts.canary), life.facts.max_prompt_tokens) == (4, 3)
        assert why(life, finished(life, [5, 6], max_new_tokens=2, ignore_eos=True)) == "length"
