"""The kinds of requests: the table, the options that choose one, and what the door takes of a call."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundedgen import InvalidRequest, Limits
from boundedgen._engine import _pools
from boundedgen._engine._seam import BootRefusedError
from boundedgen._generation_config import generation_fields
from boundedgen._kind_options import Beside, chosen_kind
from boundedgen._kinds import DRAFT, DRAFTED_MOST, KINDS, NGRAM_MOST, PROMPT_LOOKUP, Chosen

MODELS = Path(__file__).parents[1] / "models"
PLAIN, DRAFTER, VISION = (str(MODELS / name) for name in ("plain", "draft", "qwen2vl"))
LOOKUP = Chosen(kind=PROMPT_LOOKUP, always={"num_assistant_tokens": 5, "max_ngram_size": 3})
DRAFTED = Chosen(kind=DRAFT, always={"num_assistant_tokens": 4}, settings={"num_kv_blocks": 20, "device": "CPU"})


def beside(**changes: Any) -> Beside:
    settings: dict[str, Any] = {
        "models_path": PLAIN,
        "device": "CPU",
        "scheduler": {"num_kv_blocks": 16},
        "properties": {"A": "1"},
        "policy": "reserve",
    }
    return Beside(**{**settings, **changes})


def fields(chosen: Chosen | None, defaults: dict[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    return generation_fields(
        None,
        given,
        defaults=defaults or {},
        limits=Limits(),
        prompt_tokens=3,
        vocab_size=259,
        draw_seed=lambda: 1,
        chosen=chosen,
    )


# --- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [LOOKUP, DRAFTED], ids=lambda chosen: chosen.kind.name)
def test_a_choice_survives_the_way_to_the_engine_s_process(chosen: Chosen) -> None:
    assert Chosen.of(chosen.spec()) == chosen
    assert Chosen.of(None) is None


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_sets_what_must_always_be_set(name: str) -> None:
    kind = KINDS[name]
    assert kind.name == name
    assert set(kind.defaults) == set(kind.fields)
    for field, (least, most) in kind.fields.items():
        assert least <= kind.defaults[field] <= most


@given(st.integers(1, DRAFTED_MOST), st.integers(1, 50), st.none() | st.integers(1, DRAFTED_MOST))
def test_no_request_is_without_candidates_and_none_has_more_than_can_be_used(
    pipeline_s: int, new: int, own: int | None
) -> None:
    """Without num_assistant_tokens add_request accepts, and every step raises for ever."""
    chosen = Chosen(kind=DRAFT, always={"num_assistant_tokens": pipeline_s})
    config = {"max_new_tokens": new, **({} if own is None else {"num_assistant_tokens": min(own, pipeline_s)})}
    made = chosen.completed(config)["num_assistant_tokens"]
    assert 1 <= made <= max(1, new - 1)
    assert made <= pipeline_s
    assert made == min(config.get("num_assistant_tokens", pipeline_s), max(1, new - 1))


def test_prompt_lookup_needs_room_for_its_candidates_and_a_draft_model_does_not() -> None:
    assert (LOOKUP.ahead("kv"), LOOKUP.ahead("linear_attention")) == (5, 6)
    assert (DRAFTED.ahead("kv"), DRAFTED.ahead("draft")) == (0, 0)


# --- the options -----------------------------------------------------------------------------------------------------


def test_prompt_lookup_is_chosen_by_true_or_by_its_numbers() -> None:
    assert chosen_kind(None, True, beside()) == LOOKUP
    assert chosen_kind(None, {}, beside()) == LOOKUP
    chosen = chosen_kind(None, {"num_assistant_tokens": 2, "max_ngram_size": 1}, beside())
    assert chosen is not None
    assert chosen.always == {"num_assistant_tokens": 2, "max_ngram_size": 1}
    for nothing in (None, False):
        assert chosen_kind(None, nothing, beside()) is None


def test_a_draft_model_has_what_the_model_has_unless_it_is_said() -> None:
    chosen = chosen_kind(DRAFTER, None, beside())
    assert chosen is not None
    assert chosen.always == {"num_assistant_tokens": 5}
    assert chosen.settings == {
        "models_path": DRAFTER,
        "device": "CPU",
        "properties": {"A": "1"},
        "num_kv_blocks": 16,
    }
    own = {"models_path": Path(DRAFTER), "device": "GPU", "properties": {}, "num_kv_blocks": 9}
    chosen = chosen_kind({**own, "num_assistant_tokens": 3}, None, beside())
    assert chosen is not None
    assert chosen.always == {"num_assistant_tokens": 3}
    assert chosen.settings == {**own, "models_path": DRAFTER}


REFUSED: list[tuple[Any, Any, dict[str, Any], str]] = [
    (DRAFTER, True, {}, "draft and prompt_lookup"),
    (str(MODELS / "nowhere"), None, {}, r"draft\['models_path'\].*does not exist"),
    (str(MODELS / "lora"), None, {}, r"draft\['models_path'\].*holds no OpenVINO model"),
    ("model.gguf", None, {}, r"draft\['models_path'\] is a GGUF file"),
    (VISION, None, {}, "holds a vision model"),
    ({"device": "CPU"}, None, {}, r"draft\['models_path'\] is missing"),
    ({"models_path": DRAFTER, "num_kv_block": 3}, None, {}, "draft has no field 'num_kv_block'.*num_kv_blocks"),
    ({"models_path": DRAFTER, "num_assistant_tokens": 0}, None, {}, "at least 1 and at most 32"),
    (DRAFTER, None, {"scheduler": {}}, "needs scheduler_config.num_kv_blocks"),
    (DRAFTER, None, {"scheduler": {"num_kv_blocks": 9, "cache_size": 1}}, "scheduler_config.cache_size"),
    (DRAFTER, None, {"scheduler": {"num_kv_blocks": 9, "enable_prefix_caching": True}}, "enable_prefix_caching"),
    (DRAFTER, None, {"policy": "adaptive"}, "adaptive"),
    (None, True, {"policy": "adaptive"}, "adaptive"),
    (DRAFTER, None, {"models_path": VISION}, "vision"),
    (DRAFTER, None, {"models_path": "m.gguf"}, "GGUF"),
    (None, True, {"scheduler": {"max_num_batched_tokens": 6}}, "room for at least 7"),
    (None, {"max_ngram_size": NGRAM_MOST + 1}, {}, r"prompt_lookup\['max_ngram_size'\]"),
    (None, {"max_ngram_size": 2.5}, {}, r"prompt_lookup\['max_ngram_size'\] must be a whole number"),
    (None, 1, {}, "prompt_lookup must be True"),
]


@pytest.mark.parametrize(("draft", "lookup", "changes", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_is_refused_before_anything_is_started(
    draft: Any, lookup: Any, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        chosen_kind(draft, lookup, beside(**changes))


def test_prefix_caching_goes_with_prompt_lookup() -> None:
    assert chosen_kind(None, True, beside(scheduler={"num_kv_blocks": 9, "enable_prefix_caching": True})) == LOOKUP


# --- at the door -----------------------------------------------------------------------------------------------------


def test_a_call_may_ask_for_fewer_candidates_and_not_for_more() -> None:
    assert fields(LOOKUP, num_assistant_tokens=5)["num_assistant_tokens"] == 5
    assert fields(LOOKUP, max_ngram_size=NGRAM_MOST)["max_ngram_size"] == NGRAM_MOST
    too_much: list[dict[str, Any]] = [{"num_assistant_tokens": 6}, {"max_ngram_size": NGRAM_MOST + 1}]
    for more in too_much:
        with pytest.raises(InvalidRequest, match="at most"):
            fields(LOOKUP, **more)
    assert "num_assistant_tokens" not in fields(LOOKUP, num_assistant_tokens=0), "the pipeline's own"


@pytest.mark.parametrize(
    ("chosen", "given", "words"),
    [
        (None, {"num_assistant_tokens": 3}, "see the pipeline's draft= and prompt_lookup="),
        (None, {"max_ngram_size": 3}, "see the pipeline's prompt_lookup="),
        (DRAFTED, {"max_ngram_size": 3}, "see the pipeline's prompt_lookup="),
        (DRAFTED, {"assistant_confidence_threshold": 0.5}, "assistant_confidence_threshold is refused"),
        (DRAFTED, {"num_beams": 2}, "sequences on a pipeline with draft"),
        (LOOKUP, {"num_return_sequences": 2, "do_sample": True}, "sequences on a pipeline with prompt_lookup"),
        (LOOKUP, {"min_new_tokens": 1}, "min_new_tokens is 1 on a pipeline with prompt_lookup"),
        (DRAFTED, {"min_new_tokens": 1}, "min_new_tokens is 1 on a pipeline with draft"),
        (DRAFTED, {"tree_depth": 2}, "tree_depth is refused"),
    ],
)
def test_what_a_kind_does_not_go_with_is_refused_by_name(
    chosen: Chosen | None, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        fields(chosen, **given)


def test_the_model_s_own_defaults_refuse_nobody() -> None:
    defaults = {"num_beams": 4, "min_new_tokens": 2, "num_assistant_tokens": 20, "temperature": 0.5}
    assert fields(LOOKUP, defaults, max_new_tokens=9) == {"max_new_tokens": 9, "temperature": 0.5}
    assert fields(None, defaults, max_new_tokens=9)["num_beams"] == 4


# --- what is configured ----------------------------------------------------------------------------------------------


def plan(chosen: Chosen, *, hybrid: bool = False, **scheduler: Any) -> _pools.Plan:
    return _pools.plan(
        {"num_kv_blocks": 16, **scheduler},
        hybrid=hybrid,
        insist_prefix_caching=True,
        version="2026.4.1",
        chosen=chosen,
    )


@given(st.integers(1, 300), st.integers(7, 2000))
def test_no_more_run_at_once_than_a_step_has_room_for_with_their_candidates(seqs: int, room: int) -> None:
    """With more the engine raises in step(), for ever; and the probe has a place beside them."""
    found = plan(LOOKUP, max_num_seqs=seqs, max_num_batched_tokens=room)
    assert found.max_num_seqs == min(seqs, (room - 1) // 6)
    assert found.max_num_seqs * 6 < room
    assert found.scheduler["max_num_batched_tokens"] == room
    assert bool(found.findings) == (found.max_num_seqs < seqs)


@given(st.integers(1, 300), st.integers(1, 100_000), st.integers(1, 4000))
def test_with_a_draft_model_a_step_has_room_for_all_that_the_cache_has(seqs: int, room: int, blocks: int) -> None:
    """Where a prompt is cut, or a sequence left out, the engine gives other tokens."""
    found = plan(DRAFTED, max_num_seqs=seqs, max_num_batched_tokens=room, num_kv_blocks=blocks)
    whole = found.scheduler["max_num_batched_tokens"]
    assert whole >= 32 * (blocks + 1) + 5 * (seqs + 1)
    assert whole >= room
    assert bool(found.findings) == (whole > room)
    assert found.extra == 21, "with the probe's"


def test_a_hybrid_has_a_window_of_states_for_each_sequence_and_for_the_probe() -> None:
    found = plan(LOOKUP, hybrid=True, max_num_seqs=3)
    assert (found.states, found.probe("linear_attention"), found.probe("kv")) == (7, 3, 1)
    assert found.linear == 3 * 7 + 3
    own = plan(LOOKUP, hybrid=True, num_linear_attention_blocks=9)
    assert own.linear == 9 + 3


def test_a_hybrid_of_which_nobody_said_how_many_run_takes_no_more_memory_than_without_prompt_lookup() -> None:
    assert plan(LOOKUP, hybrid=True, max_num_batched_tokens=100_000).linear == 256 + 3


@pytest.mark.parametrize(
    ("chosen", "scheduler", "words"),
    [
        (DRAFTED, {}, "does not go with this hybrid model"),
        (LOOKUP, {"enable_prefix_caching": True}, "prefix caching on a hybrid"),
        (LOOKUP, {"num_linear_attention_blocks": 6}, "each sequence needs 7"),
    ],
)
def test_what_a_hybrid_does_not_go_with_refuses_the_start_for_good(
    chosen: Chosen, scheduler: dict[str, Any], words: str
) -> None:
    with pytest.raises(BootRefusedError, match=words) as caught:
        plan(chosen, hybrid=True, **scheduler)
    assert (caught.value.kind, caught.value.permanent) == ("model", True)
