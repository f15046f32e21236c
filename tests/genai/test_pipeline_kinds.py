"""Prompt lookup and draft models through a whole pipeline: the same tokens, the same promises, several a step."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from genai import kind_experiments as engine
from genai.kind_experiments import OTHER, SAME, K, repeating
from genai.lanes import FULL, HYBRID, PLAIN, at_rest, ids, lane, until
from genai.raw import TESTS, Died, Hung, Lab, laboratory
from genai.releases import needs

import boundedgen as bg
from boundedgen._engine._drafting import other_vocabulary
from boundedgen._engine._releases import CANDIDATE_STATES, PERF_METRICS, installed_release

LOOKUP: dict[str, Any] = {"prompt_lookup": {"num_assistant_tokens": K, "max_ngram_size": 1}}
DRAFT: dict[str, Any] = {"draft": {"models_path": SAME, "num_assistant_tokens": K}}
OTHER_DRAFT: dict[str, Any] = {"draft": OTHER}
KINDS = {"lookup": LOOKUP, "draft": DRAFT, "other draft": OTHER_DRAFT}
RUNS = int(os.environ.get("BOUNDEDGEN_KIND_RUNS", 6))
SEED = int(os.environ.get("BOUNDEDGEN_KIND_SEED", 1))


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with laboratory() as made:
        made.run(engine.repeating, 1)  # its process is there before any pipeline looks at what it leaves behind
        yield made


@pytest.fixture(scope="module")
def checked() -> Iterator[bg.BoundedPipeline]:
    """Whose grammars have been checked once: the process for that stays until the end."""
    with lane() as plain:
        plain.generate([5, 6], max_new_tokens=3, structured_output_config={"regex": "[a-f]{1,2}"})
        yield plain


def by_release(kinds: Iterable[str]) -> list[Any]:
    """Those that the release does not serve are skipped: a draft model without a proof for each request, a hybrid."""
    lacking = {"draft": PERF_METRICS, "other draft": PERF_METRICS, "hybrid lookup": CANDIDATE_STATES}
    return [pytest.param(kind, marks=needs(lacking[kind]) if kind in lacking else ()) for kind in kinds]


@pytest.fixture(scope="module", params=by_release(KINDS))
def pipeline(request: pytest.FixtureRequest, lab: Lab, checked: bg.BoundedPipeline) -> Iterator[bg.BoundedPipeline]:
    with lane(scheduler={"num_kv_blocks": 64}, **KINDS[request.param]) as opened:
        yield opened


def prompts() -> list[list[int]]:
    return [repeating(5 + 7 * seed, seed) for seed in range(8)] + [ids(11 * seed + 1, seed) for seed in range(4)]


# --- the same answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        {**FULL},
        {"ignore_eos": False, "stop_token_ids": [*range(40, 60), 130]},
        {"ignore_eos": True, "repetition_penalty": 1.3, "presence_penalty": 0.4},
        {"ignore_eos": True, "no_repeat_ngram_size": 2},
    ],
    ids=["full", "ends", "penalties", "ngrams"],
)
def test_greedy_tokens_are_those_of_the_plain_engine(
    pipeline: bg.BoundedPipeline, lab: Lab, config: dict[str, Any]
) -> None:
    right = lab.run(engine.answers, PLAIN, prompts(), 40, **config)
    found = [pipeline.submit(prompt, max_new_tokens=40, **config) for prompt in prompts()]
    answers = [generation.result(30) for generation in found]
    assert [list(answer.token_ids) for answer in answers] == right
    for answer in answers:
        ended = len(answer.token_ids) < 40 or answer.token_ids[-1] in config.get("stop_token_ids", ())
        assert answer.finish_reason is (bg.FinishReason.STOP if ended else bg.FinishReason.LENGTH)
    assert config["ignore_eos"] or any(len(answer.token_ids) < 40 for answer in answers)


@needs(CANDIDATE_STATES)
def test_a_hybrid_with_prompt_lookup_gives_the_tokens_of_the_plain_engine(lab: Lab) -> None:
    right = lab.run(engine.answers, HYBRID, prompts(), 30)
    with lane(HYBRID, {"num_kv_blocks": 64, "max_num_seqs": 3}, **LOOKUP) as pipeline:
        linear = pipeline.stats().pools[1]
        assert (linear.name, linear.blocks_total) == ("linear_attention", 3 * (K + 2))
        found = [pipeline.submit(prompt, max_new_tokens=30, **FULL) for prompt in prompts()]
        assert [list(generation.result(30).token_ids) for generation in found] == right
        assert pipeline.stats().running_max == 3


def test_a_grammar_and_log_probabilities_go_with_drafts(
    pipeline: bg.BoundedPipeline, checked: bg.BoundedPipeline
) -> None:
    grammar: dict[str, Any] = {"structured_output_config": {"regex": "[a-f]{4,20}x"}}
    for prompt in prompts()[:6]:
        asked = {"max_new_tokens": 30, "logprobs": 1}
        right, found = (lane_.generate(prompt, asked, **grammar) for lane_ in (checked, pipeline))
        assert found.token_ids == right.token_ids
        assert found.text == right.text
        assert len(found.logprobs) == len(found.token_ids)
        assert found.logprobs == pytest.approx(right.logprobs, abs=1e-3)


def test_stop_strings_are_found_by_us_and_cut_the_same_text(pipeline: bg.BoundedPipeline) -> None:
    """Also one that spans the tokens of two steps, and one that the model begins and never completes."""
    for seed, prompt in enumerate(prompts()):
        whole = pipeline.generate(prompt, max_new_tokens=40, **FULL)
        if len(whole.text) < 12:
            continue
        for at, length in ((3, 1), (5, 3), (9, 2)):
            string = whole.text[at : at + length]
            if "\ufffd" in string:
                continue
            for include in (False, True):
                found = pipeline.generate(
                    prompt,
                    max_new_tokens=40,
                    stop_strings=[string, "never" * 3],
                    include_stop_str_in_output=include,
                    **FULL,
                )
                cut = whole.text.index(string)
                assert found.text == whole.text[: cut + len(string) * include], (seed, string)
                assert found.finish_reason is bg.FinishReason.STOP
                assert list(found.token_ids) == list(whole.token_ids[: len(found.token_ids)])


def test_the_same_seed_gives_the_same_sample(pipeline: bg.BoundedPipeline) -> None:
    asked: dict[str, Any] = {"do_sample": True, "rng_seed": 5, "max_new_tokens": 30, **FULL}
    once, again = (pipeline.generate(repeating(30), **asked) for _ in range(2))
    assert once.token_ids == again.token_ids


# --- what fits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "ahead"), [("lookup", K), pytest.param("draft", 0, marks=needs(PERF_METRICS))])
def test_what_just_fits_ends_and_one_token_more_is_refused(kind: str, ahead: int) -> None:
    """The rule to the token, with all there is taken at once by several of them."""
    rnd = random.Random(SEED)
    with lane(scheduler={"num_kv_blocks": 12}, **KINDS[kind]) as pipeline:
        for _ in range(6):
            blocks = rnd.choice([2, 3, 4, 6])
            prompt = rnd.randrange(1, 32 * blocks - ahead - 8)
            new = 32 * blocks - prompt - ahead + 1
            full = [pipeline.submit(repeating(prompt, n), max_new_tokens=new, **FULL) for n in range(12 // blocks)]
            assert [g.result(30).completion_tokens for g in full] == [new] * len(full)
        new = 12 * 32 - 40 - ahead + 1
        assert pipeline.generate(repeating(40), max_new_tokens=new, **FULL).completion_tokens == new
        with pytest.raises(bg.NeverFits) as caught:
            pipeline.submit(repeating(40), max_new_tokens=new + 1, **FULL)
        assert caught.value.needed["kv"] == 13
        assert set(caught.value.needed) == ({"kv"} if kind == "lookup" else {"kv", "draft"})
        assert caught.value.prompt_tokens_max == 39


@needs(PERF_METRICS)
def test_a_small_draft_pool_is_a_pool_of_its_own() -> None:
    with lane(scheduler={"num_kv_blocks": 12}, draft={"models_path": OTHER, "num_kv_blocks": 3}) as pipeline:
        names = [(pool.name, pool.blocks_total, pool.tokens_per_block) for pool in pipeline.stats().pools]
        assert names == [("kv", 12, 32), ("draft", 3, 32)]
        two = [pipeline.submit(repeating(40, n), max_new_tokens=57, **FULL) for n in range(2)]
        assert until(pipeline, lambda stats: stats.running == 1 and stats.waiting == 1).waiting == 1
        assert [g.result(30).completion_tokens for g in two] == [57, 57]
        with pytest.raises(bg.NeverFits) as caught:
            pipeline.submit(repeating(40), max_new_tokens=58, **FULL)
        assert caught.value.needed == {"draft": 4}


def test_a_probe_answers_beside_a_full_cache(pipeline: bg.BoundedPipeline) -> None:
    full = pipeline.submit(repeating(40), max_new_tokens=1500, **FULL)
    stream = iter(full)
    next(stream)
    assert pipeline.probe().verdict is bg.ProbeVerdict.OK
    full.cancel()
    assert full.wait_reclaimed(5).steps <= 2


# --- refused, and a neighbour's stream untouched ---------------------------------------------------------------------


def test_what_would_break_the_engine_is_refused_while_a_neighbour_streams(pipeline: bg.BoundedPipeline) -> None:
    alone = pipeline.generate(repeating(30), max_new_tokens=300, **FULL).token_ids
    neighbour = pipeline.submit(repeating(30), max_new_tokens=300, **FULL)
    stream = iter(neighbour)
    next(stream)
    for poison in (
        {"num_assistant_tokens": K + 1},
        {"num_beams": 2},
        {"num_return_sequences": 2, "do_sample": True},
        {"min_new_tokens": 3},
        {"assistant_confidence_threshold": 0.4},
        {"branching_factor": 2},
        {"max_ngram_size": 65},
    ):
        with pytest.raises(bg.InvalidRequest, match=next(iter(poison))):
            pipeline.submit([5, 6, 7], max_new_tokens=5, **poison)
    for least in ({"num_assistant_tokens": 0}, {"num_assistant_tokens": 1}, {"num_assistant_tokens": None}, {}):
        assert pipeline.generate([5, 6, 7], max_new_tokens=5, **least, **FULL).completion_tokens == 5
    assert neighbour.result(30).token_ids == alone


def test_a_draft_model_of_another_vocabulary_is_told_from_the_two_tokenizers() -> None:
    assert other_vocabulary(PLAIN, OTHER) is None
    defect = other_vocabulary(PLAIN, str(TESTS / "models" / "qwen2vl"))
    assert defect is not None
    assert "another vocabulary" in str(defect)


@pytest.mark.skipif(CANDIDATE_STATES not in installed_release().lacks, reason="this release has what it takes")
def test_a_hybrid_with_prompt_lookup_does_not_start_on_a_release_that_answers_it_wrongly() -> None:
    with pytest.raises(bg.ModelLoadFailed, match="would answer otherwise; upgrade it"), lane(HYBRID, **LOOKUP):
        pass


@needs(PERF_METRICS)
def test_a_hybrid_with_a_draft_model_does_not_start_and_says_why() -> None:
    with pytest.raises(bg.ModelLoadFailed, match="hybrid"), lane(HYBRID, **OTHER_DRAFT):
        pass


# --- ends, figures ---------------------------------------------------------------------------------------------------


@needs(PERF_METRICS)
def test_what_was_drafted_is_counted_and_what_came_late_is_not() -> None:
    with lane(**DRAFT) as pipeline:
        before = pipeline.stats()
        assert (before.accepted_tokens_total, before.proposed_tokens_total) == (0, 0)
        answer = pipeline.generate(repeating(30), max_new_tokens=61, **FULL)
        assert answer.completion_tokens == 61
        stats = at_rest(pipeline)
        assert (stats.accepted_tokens_total, stats.proposed_tokens_total) == (50, 50), "ten steps of six"
        cancelled = pipeline.submit(repeating(30), max_new_tokens=1500, **FULL)
        stream = iter(cancelled)
        next(stream)
        cancelled.cancel()
        cancelled.wait_reclaimed(5)
        assert pipeline.stats().late_tokens_total % (K + 1) == 0, "whole steps that came before the stop was taken"
    with lane(**LOOKUP) as pipeline:
        pipeline.generate(repeating(30), max_new_tokens=61, **FULL)
        stats = at_rest(pipeline)
        assert stats.accepted_tokens_total is not None
        assert stats.proposed_tokens_total is None, "the engine does not tell"
    with lane() as pipeline:
        assert pipeline.stats().accepted_tokens_total is None


@pytest.mark.parametrize("kind", by_release(KINDS))
def test_what_a_lost_engine_had_shown_is_continued_to_the_same_end(kind: str) -> None:
    with lane(restart=bg.RestartPolicy(resume="continue"), restarts=1, **KINDS[kind]) as pipeline:
        right = pipeline.generate(repeating(30), max_new_tokens=1000, **FULL).token_ids
        generation = pipeline.submit(repeating(30), max_new_tokens=1000, **FULL)
        stream = iter(generation)  # which cancels when it is gone
        for _ in range(3):
            next(stream)
        pid = pipeline.stats().engine_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        answer = generation.result(60)
        assert answer.resumed == 1
        assert answer.token_ids == right


# --- seeded mixed runs -----------------------------------------------------------------------------------------------


def mixed(pipeline: bg.BoundedPipeline, rnd: random.Random) -> list[str]:
    """A few requests at once, each of which fits alone in 12 blocks; how they ended."""
    lease = pipeline.lease("run", ttl=rnd.uniform(0.01, 0.2))
    generations = []
    for _ in range(rnd.randint(2, 6)):
        prompt = rnd.randint(1, 200)
        call: dict[str, Any] = {
            "max_new_tokens": rnd.randint(1, 150),
            "ignore_eos": rnd.random() < 0.7,
            "bounds": bg.Bounds(total=rnd.uniform(0.005, 0.2)) if rnd.random() < 0.2 else None,
            "lease": lease if rnd.random() < 0.2 and lease.live else None,
        }
        if rnd.random() < 0.4:
            call |= {"do_sample": True, "rng_seed": rnd.randint(1, 999)}
        if rnd.random() < 0.3:
            call |= {"stop_strings": [chr(rnd.randint(97, 122)) for _ in range(2)]}
        if rnd.random() < 0.15:
            call |= {"structured_output_config": {"regex": "[a-z]{3,40}!"}, "ignore_eos": False}
        if rnd.random() < 0.3:
            call["num_assistant_tokens"] = rnd.randint(1, K)
        tokens = repeating(prompt, rnd.randint(0, 9)) if rnd.random() < 0.6 else ids(prompt, rnd.randint(0, 99))
        try:
            generations.append(pipeline.submit(tokens, **call))
        except bg.LeaseExpired:
            continue
    for generation in generations:
        if rnd.random() < 0.25:
            time.sleep(rnd.uniform(0, 0.02))
            generation.cancel()
    ends = []
    for generation in generations:
        with contextlib.suppress(bg.GenerationCancelled, bg.DeadlineExceeded, bg.LeaseLost):
            generation.result(30)
        generation.wait_reclaimed(30)
        assert generation.finish_reason is not None
        assert len(generation.partial.token_ids) <= generation.max_new_tokens
        assert all(0 <= token < 259 for token in generation.partial.token_ids), "no candidate, no -1"
        ends.append(generation.finish_reason.value)
    lease.revoke()
    return ends


SMALL: dict[str, tuple[str, dict[str, int], dict[str, Any]]] = {
    "lookup": (PLAIN, {"num_kv_blocks": 14}, LOOKUP),
    "draft": (PLAIN, {"num_kv_blocks": 12}, DRAFT),
    "other draft": (PLAIN, {"num_kv_blocks": 12}, OTHER_DRAFT),
    "hybrid lookup": (HYBRID, {"num_kv_blocks": 14, "max_num_seqs": 3}, LOOKUP),
    "lookup in small steps": (PLAIN, {"num_kv_blocks": 14, "max_num_batched_tokens": 20, "max_num_seqs": 20}, LOOKUP),
}


@pytest.mark.timeout(60 + 20 * RUNS)
@pytest.mark.parametrize("kind", by_release(SMALL))
def test_mixed_runs_at_a_small_cache_leave_nothing_behind(kind: str) -> None:
    """No engine is lost, nothing IGNORED, nothing stuck, all blocks back. More runs: nox -s kinds."""
    model, scheduler, options = SMALL[kind]
    counts: dict[str, int] = {}
    with lane(model, scheduler, **options) as pipeline:
        for run in range(RUNS):
            for end in mixed(pipeline, random.Random(1000 * SEED + run)):
                counts[end] = counts.get(end, 0) + 1
            stats = at_rest(pipeline)
            assert stats.requeued_total == 0, f"run {run} of seed {SEED}"
    print(f"\n{kind}: {RUNS} runs of seed {SEED}: {dict(sorted(counts.items()))}")
    assert set(counts) <= {"stop", "length", "cancelled", "deadline", "lease"}
    assert counts["length"] > 0


@pytest.mark.skipif("BOUNDEDGEN_KIND_RUNS" not in os.environ, reason="figures of the raw engine: nox -s kinds")
@pytest.mark.timeout(60 + 20 * RUNS)
@pytest.mark.parametrize("kind", ["lookup", "draft", "other draft", "hybrid lookup"])
def test_mixed_runs_of_the_raw_engine_for_comparison(lab: Lab, kind: str) -> None:
    """A figure beside ours: how often the engine alone raises, gives up or dies under such traffic."""
    counts: dict[str, int] = {}
    for run in range(RUNS):
        try:
            end = lab.run(engine.unreserved, kind, 1000 * SEED + run, SMALL[kind][1]["num_kv_blocks"])
        except (Died, Hung) as error:
            end = type(error).__name__.lower()
        counts[end] = counts.get(end, 0) + 1
    print(f"\nraw, {kind}: {RUNS} runs of seed {SEED}: {dict(sorted(counts.items()))}")
    assert sum(counts.values()) == RUNS
