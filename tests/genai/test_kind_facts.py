"""The facts about the raw engine that prompt lookup and draft models rest on (docs/request-kinds.md), each watched."""

from collections.abc import Iterator

import pytest
from genai import kind_experiments as engine
from genai.kind_experiments import OTHER, SAME, K
from genai.raw import Lab, laboratory
from genai.releases import needs

from boundedgen._engine._releases import CANDIDATE_STATES

BOTH = [pytest.param(None, id="prompt_lookup"), pytest.param(SAME, id="draft")]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with laboratory() as made:
        yield made


@pytest.mark.parametrize(("prompt", "new"), [(32, 28), (60, 32), (20, 72)])
def test_prompt_lookup_needs_room_for_its_candidates_to_the_token(lab: Lab, prompt: int, new: int) -> None:
    """P + n - 1 + K: in so many blocks it ends, and with one token more it would be IGNORED there."""
    blocks = (prompt + new - 1 + K) // 32
    assert (prompt + new - 1 + K) % 32 == 0
    assert lab.run(engine.fits, None, prompt, new, blocks) == ["FINISHED", new, False]
    state, shown, unverified = lab.run(engine.fits, None, prompt, new + 1, blocks)
    assert state == "IGNORED"
    assert unverified, "its tail holds -1"
    assert shown <= new + K


@pytest.mark.parametrize(("prompt", "new"), [(32, 33), (60, 37), (5, 28)])
def test_a_draft_model_needs_no_room_beyond_that_of_plain_text(lab: Lab, prompt: int, new: int) -> None:
    blocks = (prompt + new - 1) // 32
    assert (prompt + new - 1) % 32 == 0
    assert lab.run(engine.fits, SAME, prompt, new, blocks) == ["FINISHED", new, False]
    assert lab.run(engine.fits, SAME, prompt, new + 1, blocks, blocks + 1)[0] == "IGNORED"


def test_a_draft_pool_that_is_full_only_slows_it_down(lab: Lab) -> None:
    assert lab.run(engine.fits, SAME, 32, 40, 3, 1) == ["FINISHED", 40, False]


@needs(CANDIDATE_STATES)
@pytest.mark.parametrize("drafted", [1, 3])
def test_a_hybrid_needs_two_states_more_than_candidates(lab: Lab, drafted: int) -> None:
    assert lab.run(engine.states, drafted + 2, drafted) == ""
    assert "recurrent-state rows" in lab.run(engine.states, drafted + 1, drafted)


def test_without_a_number_of_candidates_every_step_raises(lab: Lab) -> None:
    first, again = lab.run(engine.without_candidates, SAME)
    assert first
    assert again


@pytest.mark.parametrize("draft", BOTH)
def test_several_sequences_are_refused(lab: Lab, draft: str | None) -> None:
    assert lab.run(engine.several, draft).startswith("add_request: ")


@pytest.mark.parametrize("draft", BOTH)
def test_an_end_comes_before_min_new_tokens(lab: Lab, draft: str | None) -> None:
    assert lab.run(engine.ends_too_early, draft and OTHER) > 0


def test_more_that_decode_than_a_step_has_room_for_make_it_raise_with_prompt_lookup(lab: Lab) -> None:
    assert lab.run(engine.others, None, 24, 4, 12, 100, 6) == 0
    assert lab.run(engine.beside_each_other, 24) == ""
    assert lab.run(engine.beside_each_other, 12) != ""


def test_a_draft_model_gives_other_tokens_where_a_step_has_no_room_for_all(lab: Lab) -> None:
    """Prompts that are cut, in a step of 256 tokens: so a step has room for all that the cache has."""
    wrong = lab.run(engine.others, SAME, 256, 16, 16, 200)
    assert isinstance(wrong, int)
    assert wrong > 0
    assert lab.run(engine.others, SAME, 1 << 16, 16, 16, 200) == 0
    assert lab.run(engine.others, OTHER, 1 << 16, 16, 16, 200) == 0


def test_a_draft_model_samples_other_tokens_of_the_same_seed(lab: Lab) -> None:
    once, again, without = lab.run(engine.sampled_twice, SAME)
    assert once == again
    assert once != without


def test_the_metrics_of_a_pipeline_with_a_draft_model_count_no_requests(lab: Lab) -> None:
    assert lab.run(engine.counted, SAME) == [0, 0, 0, 0]


@pytest.mark.parametrize("draft", BOTH)
def test_a_request_of_one_token_holds_one_block_as_without_drafts(lab: Lab, draft: str | None) -> None:
    """By such requests the pools are learned; the draft's own is in no figure."""
    assert round(lab.run(engine.seen_inside, draft, 1), 3) == 1
