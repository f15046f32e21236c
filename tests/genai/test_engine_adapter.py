"""The adapter around ContinuousBatchingPipeline, in this process: how pools are learned, and the weaker proof."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]
import pytest
from attrs import evolve
from genai.releases import needs

from boundedgen._core._events import PoolFacts
from boundedgen._engine import _findings, _genai, _pools
from boundedgen._engine._releases import (
    CANDIDATE_STATES,
    LA_POOL,
    RELEASES,
    installed_release,
    release_of,
    tokenizer_defect,
)
from boundedgen._engine._seam import BootRefusedError, EngineStay
from boundedgen._kinds import PROMPT_LOOKUP, Chosen
from boundedgen.abc import Request

MODELS = Path(__file__).parents[1] / "models"
FOREVER = float("inf")


def spec(model: str, **scheduler: Any) -> dict[str, Any]:
    return {
        "models_path": str(MODELS / model),
        "scheduler": scheduler,
        "device": "CPU",
        "properties": {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"},
        "tokenizer_properties": {},
        "insist_prefix_caching": False,
        "fault": None,
    }


def release(engine: _genai.GenAIEngine, stay: EngineStay) -> None:
    """In the one step that its proof takes, or, by count, two."""
    for _ in range(1 if engine.proof == "perf_metrics" else 2):
        engine.step()
    assert stay.released()


def request(stay: int, prompt: list[int], **config: Any) -> Request:
    return Request(stay, prompt, {"max_new_tokens": 5, "ignore_eos": True, **config}, FOREVER)


# --- the proof by count ------------------------------------------------------------------------------------------


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> _genai.GenAIEngine:
    """As on a release whose handles have no `get_perf_metrics`; that they do not is not relied on."""
    monkeypatch.setattr(_genai, "proof_in_use", lambda: "request_count")
    return _genai.load(spec("plain", num_kv_blocks=64))


def test_the_proof_in_use_is_told(counting: _genai.GenAIEngine) -> None:
    assert counting.facts.proof == "request_count"
    assert counting.facts.pools == (PoolFacts("kv", 65, 32),)


def test_by_count_a_stopped_stay_is_gone_with_the_second_step_and_a_running_one_never(
    counting: _genai.GenAIEngine,
) -> None:
    stopped = counting.add(request(1, [5, 6], max_new_tokens=100))
    running = counting.add(request(2, [5, 7], max_new_tokens=100))
    counting.step()
    stopped.stop()
    assert not stopped.released()
    counting.step()
    assert not stopped.released()
    counting.step()
    assert stopped.released()
    assert not running.released()


def test_by_count_a_finished_stay_is_gone_a_step_later_and_newcomers_do_not_hide_that(
    counting: _genai.GenAIEngine,
) -> None:
    first = counting.add(request(1, [5, 6], max_new_tokens=2))
    counting.step()
    assert first.collect()[2] == ""
    counting.step()
    assert first.collect()[2] == "length"
    assert not first.released()
    newcomers = [counting.add(request(n, [n])) for n in range(2, 6)]
    counting.step()
    counting.step()
    assert first.released()
    assert [stay.released() for stay in newcomers] == [False] * 4


# --- ends --------------------------------------------------------------------------------------------------------


def test_an_end_is_seen_in_the_step_that_brings_it_whichever_way_it_is_found_out() -> None:
    engine, prompt = _genai.load(spec("plain", num_kv_blocks=64)), [5, 6, 7]
    stays = itertools.count(1)
    whole, _ = answer(engine, request(0, prompt, max_new_tokens=30))
    last = next(n for n in range(5, 30) if whole[n] not in whole[:n])

    def steps(**config: Any) -> tuple[int, str]:
        stay, count, why = engine.add(request(next(stays), prompt, **config)), 0, ""
        while not why:
            engine.step()
            count += 1
            why = stay.collect()[2]
        release(engine, stay)
        return count, why

    assert steps(max_new_tokens=last + 1) == (last + 1, "length")
    ends = {"max_new_tokens": 30, "ignore_eos": False}
    assert steps(**ends, eos_token_id=whole[last]) == (last + 1, "stop")
    assert steps(**ends, eos_token_id=258, stop_token_ids=[whole[last]]) == (last + 1, "stop")
    assert steps(**ends, stop_token_ids=[whole[last]]) == (last + 1, "stop")
    assert steps(**ends, stop_strings=["~"], eos_token_id=whole[last]) == (last + 1, "stop")
    assert steps(max_new_tokens=1) == (1, "length")


# --- continued generations ---------------------------------------------------------------------------------------


def answer(engine: _genai.GenAIEngine, asked: Request) -> tuple[list[int], str]:
    """The tokens that it shows, and why it ended; until the engine proves that it let go of it."""
    stay, ids, why = engine.add(asked), list[int](), ""
    while not why:
        engine.step()
        fresh, _, why = stay.collect()
        ids += fresh
    release(engine, stay)
    return ids, why


def test_a_stop_string_that_begins_before_the_cut_of_a_generation_ends_it_where_it_ends() -> None:
    """No engine can have shown so much of it; but what it withheld may come otherwise now, and so may complete it."""
    engine = _genai.load(spec("plain", num_kv_blocks=64))
    prompt, stays = [5, 6, 7], itertools.count(2)
    whole, _ = answer(engine, request(1, prompt, max_new_tokens=120))
    decode = engine._pipeline.get_tokenizer().decode
    cuts = [cut for cut in range(8, 100) if decode(whole[cut - 2 : cut + 1]).isascii()]
    assert len(cuts) > 3
    assert "~" not in decode(whole)
    for cut in cuts:
        fields = {"stop_strings": [decode(whole[cut - 2 : cut + 1]), "~"], "max_new_tokens": 120 - cut}
        asked = request(next(stays), prompt + whole[:cut], include_stop_str_in_output=True, **fields)
        missed, _ = answer(engine, asked)
        assert len(missed) > 1
        again = evolve(asked, stay=next(stays), shown=cut)
        assert answer(engine, again) == (whole[cut : cut + 1], "stop")


# --- boots that cannot succeed -----------------------------------------------------------------------------------


def test_a_model_file_that_is_cut_off_is_refused_before_the_engine_sees_it(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(BootRefusedError) as refused:
        _genai.load({**spec("plain", num_kv_blocks=8), "models_path": str(path)})
    assert (refused.value.kind, refused.value.permanent) == ("model", True)


@pytest.mark.parametrize("served", [False, True])
def test_a_device_that_is_missing_heals_only_if_it_was_there_once(served: bool) -> None:
    with pytest.raises(BootRefusedError) as refused:
        _genai.load({**spec("plain", num_kv_blocks=8), "device": "GPU.77", "served": served})
    assert (refused.value.kind, refused.value.permanent) == ("device", not served)


# --- hybrids -----------------------------------------------------------------------------------------------------


def test_a_model_is_known_as_hybrid_by_its_inputs() -> None:
    assert _genai._looks_hybrid(MODELS / "hybrid")
    assert not _genai._looks_hybrid(MODELS / "plain")
    assert not _genai._looks_hybrid(MODELS / "no-such-model.gguf")


@pytest.mark.parametrize("model", ["plain", pytest.param("hybrid", marks=needs(LA_POOL))])
def test_the_engines_own_word_about_linear_attention_overrides_the_look_at_the_files(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_genai, "_looks_hybrid", lambda path: model == "plain")
    if model == "plain":
        with pytest.raises(BootRefusedError, match="linear attention"):  # the engine refuses such a setting itself
            _genai.load(spec(model, num_kv_blocks=64, max_num_seqs=4))
        return
    engine = _genai.load(spec(model, num_kv_blocks=64, max_num_seqs=4, enable_prefix_caching=True))
    assert engine.facts.hybrid
    assert engine.facts.pools == (PoolFacts("kv", 65, 32), PoolFacts("linear_attention", 5, None))
    assert engine.facts.findings[0].startswith("enable_prefix_caching was turned off")


# --- learning, from an engine that is all arithmetic -------------------------------------------------------------


def usage(kv: int, size: int, linear: int = 0, span: int | None = None) -> Callable[[int], float]:
    """Of the fullest pool with one prompt inside, as the engine reports it (float32)."""

    def measure(tokens: int) -> float:
        shares = [-(-tokens // size) / kv]
        if linear:
            shares.append((1 if span is None else -(-tokens // span)) / linear)
        return round(max(shares) * 2**24) / 2**24 if max(shares) > 2**-10 else max(shares)

    return measure


def plan(scheduler: dict[str, Any], *, hybrid: bool = False, insist: bool = False) -> _pools.Plan:
    return _pools.plan(scheduler, hybrid=hybrid, insist_prefix_caching=insist, version="2026.4.1")


@pytest.mark.parametrize("device", ["CPU", "GPU", "GPU.1"])
@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("kv", [2, 3, 65, 4097, 65_536, 1_000_003])
def test_a_plain_pool_is_learned_to_the_block_whatever_the_device(kv: int, size: int, device: str) -> None:
    pools = _pools.learn(plan({"cache_size": 1}), usage(kv, size), la_pool=lambda: 0, device=device, longest=None)
    if kv > 4:
        assert pools.facts == (PoolFacts("kv", kv, size),)
    assert pools.facts[0].blocks == kv
    assert pools.probe_blocks == {"kv": 1}


@pytest.mark.parametrize(("kv", "linear"), [(5, 17), (65, 17), (4000, 17), (15_000, 257)])
def test_the_kv_pool_of_a_hybrid_given_in_bytes_is_exact_while_a_prompt_of_16384_tokens_can_fill_its_share(
    kv: int, linear: int
) -> None:
    pools = _pools.learn(
        plan({"cache_size": 1, "max_num_seqs": linear - 1}, hybrid=True),
        usage(kv, 32, linear),
        la_pool=lambda: linear,
        device="CPU",
        longest=None,
    )
    assert pools.facts == (PoolFacts("kv", kv, 32), PoolFacts("linear_attention", linear, None))
    assert pools.findings == ()


def test_a_larger_one_is_bounded_from_below_and_the_facts_say_so() -> None:
    pools = _pools.learn(
        plan({"cache_size": 8, "max_num_seqs": 2}, hybrid=True),
        usage(100_000, 32, 3),
        la_pool=lambda: 3,
        device="CPU",
        longest=None,
    )
    assert pools.facts[0].blocks == 512 * 3
    assert "at least 1536 blocks" in pools.findings[0]


def test_a_pool_that_differs_from_what_was_configured_is_believed_and_told() -> None:
    pools = _pools.learn(plan({"num_kv_blocks": 64}), usage(60, 32), la_pool=lambda: 0, device="CPU", longest=None)
    assert pools.facts == (PoolFacts("kv", 60, 32),)
    assert pools.findings == ("the kv pool has 60 blocks where 65 were configured; the engine's own number is used",)


def test_a_cache_without_a_bound_is_not_configured() -> None:
    with pytest.raises(ValueError, match="bound"):
        plan({})


def test_the_probe_takes_a_place_of_max_num_seqs_only_where_none_can_be_added() -> None:
    split = plan({"num_kv_blocks": 8, "max_num_seqs": 256})
    assert (split.scheduler["max_num_seqs"], split.max_num_seqs) == (257, 256)
    whole = plan({"num_kv_blocks": 8, "dynamic_split_fuse": False})
    assert (whole.scheduler["max_num_seqs"], whole.max_num_seqs) == (256, 255)


def test_an_untested_release_warns_and_keeps_the_known_findings() -> None:
    assert _findings.untested("2026.4.1.0") is _findings.untested("2026.2.1.0") is None
    assert "2027.0" in (_findings.untested("2027.0.0") or "")
    assert _findings.found("hybrid_prefix_caching", "2027.0.0")
    assert _findings.found("no such finding", "2026.4.1") is None


def test_this_release_has_what_the_table_says() -> None:
    handle, metrics = genai.py_openvino_genai.GenerationHandle, genai.py_openvino_genai.PipelineMetrics
    assert hasattr(metrics, "la_peak_pool_blocks") is (LA_POOL not in installed_release().lacks)
    assert hasattr(handle, "get_perf_metrics") is (installed_release().proof == "perf_metrics")
    assert _genai.proof_in_use() == installed_release().proof


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("2026.2.1.0", "2026.2"),
        ("2026.3.0.0", "2026.3"),
        ("2026.4.1.0", "2026.4"),
        ("2026.5.0.0.dev20261101", "2026.4"),
        ("2027.0.0.0", "2026.4"),
        ("2025.4.0.0", "2026.2"),
        ("", "2026.4"),
    ],
)
def test_a_release_that_is_not_in_the_table_is_taken_for_the_nearest_before_it(version: str, name: str) -> None:
    assert release_of(version).name == name


def test_what_an_older_release_does_in_a_weaker_way_is_told() -> None:
    assert RELEASES[0].told(hybrid=True) == ()
    (proof,) = release_of("2026.3.1.0").told(hybrid=False)
    assert "count of requests" in proof
    assert len(release_of("2026.3.1.0").told(hybrid=True)) == 2


@pytest.mark.parametrize(
    ("converted_by", "installed", "crashes"),
    [
        ("2026.4.1.0", "2026.3.1.0", True),
        ("2027.0.0.0", "2026.2.1.0", True),
        ("2026.3.1.0", "2026.2.1.0", False),
        ("2026.2.1.0", "2026.4.1.0", False),
        ("2026.4.1.0", "2026.4.0.0", False),
        ("", "2026.2.1.0", False),
        ("2026.4.1.0", "", False),
    ],
)
def test_a_tokenizer_that_would_crash_this_release_is_known_by_its_converter(
    converted_by: str, installed: str, crashes: bool
) -> None:
    assert bool(tokenizer_defect(converted_by, installed)) is crashes


def test_prompt_lookup_on_a_hybrid_is_refused_where_a_release_answers_it_wrongly() -> None:
    chosen = Chosen(kind=PROMPT_LOOKUP, always={"num_assistant_tokens": 2, "max_ngram_size": 2})
    for version, hybrid in (("2026.4.1.0", True), ("2026.3.1.0", False)):
        assert _planned(version, hybrid, chosen).chosen == chosen
    for version in ("2026.3.1.0", "2026.2.1.0"):
        with pytest.raises(BootRefusedError, match="has not a recurrent state for each drafted candidate"):
            _planned(version, True, chosen)
    assert PROMPT_LOOKUP.hybrid_needs == CANDIDATE_STATES


def _planned(version: str, hybrid: bool, chosen: Chosen) -> _pools.Plan:
    asked = {"num_kv_blocks": 64, "max_num_seqs": 3}
    return _pools.plan(asked, hybrid=hybrid, insist_prefix_caching=False, version=version, chosen=chosen)
