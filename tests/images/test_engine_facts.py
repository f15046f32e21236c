"""What the engine does with images, on which the door and the reservation rest (docs/engine-facts.md, "Images")."""

import signal
from collections.abc import Iterator

import numpy as np
import pytest
from genai.raw import Died, Lab, laboratory
from images import raw_images as seen
from images.vision_lanes import LLAVA, QWEN

MODELS = [pytest.param(QWEN, id="qwen2vl"), pytest.param(LLAVA, id="llava")]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with laboratory() as made:
        yield made


def test_an_image_with_a_side_of_zero_ends_the_process(lab: Lab) -> None:
    with pytest.raises(Died) as caught:
        lab.run(seen.add_shape, QWEN, [0, 8, 3])
    assert caught.value.signal in (signal.SIGFPE, signal.SIGSEGV)


def test_other_numbers_of_channels_are_accepted_and_a_batch_is_two_images(lab: Lab) -> None:
    assert lab.run(seen.add_shape, QWEN, [56, 56, 1]) == "taken"
    assert lab.run(seen.add_shape, QWEN, [56, 56, 4]) == "taken"
    assert lab.run(seen.tokens_of, QWEN, "a", [[2, 56, 56, 3]]) == 1 + 2 * (4 + 2)


def test_an_aspect_of_more_than_two_hundred_raises_for_qwen(lab: Lab) -> None:
    assert "aspect ratio" in lab.run(seen.add_shape, QWEN, [1, 201, 3])
    assert lab.run(seen.add_shape, QWEN, [1, 200, 3]) == "taken"


@pytest.mark.parametrize("model", MODELS)
def test_tags_place_images_in_their_order_and_without_them_they_come_first(lab: Lab, model: str) -> None:
    first = lab.run(seen.answer, model, "hello", 2)
    assert lab.run(seen.answer, model, "<ov_genai_image_0><ov_genai_image_1>hello", 2) == first
    native = {QWEN: "<|vision_start|><|image_pad|><|vision_end|>", LLAVA: "<image>"}[model]
    placed = lab.run(seen.answer, model, "he<ov_genai_image_0>l<ov_genai_image_1>lo", 2)
    assert lab.run(seen.answer, model, f"he{native}l{native}lo", 2) == placed


@pytest.mark.parametrize("model", MODELS)
def test_the_chat_template_is_applied_unless_it_is_switched_off(lab: Lab, model: str) -> None:
    plain, templated = lab.run(seen.templated, model)
    assert templated > plain


@pytest.mark.parametrize("model", MODELS)
def test_a_native_tag_too_many_raises(lab: Lab, model: str) -> None:
    native = {QWEN: "<|vision_start|><|image_pad|><|vision_end|>", LLAVA: "<image>"}[model]
    assert "must match" in lab.run(seen.refusal, model, f"a{native}b", 0)
    assert "Missing image" in lab.run(seen.refusal, model, "a<ov_genai_image_1>b", 1)


@pytest.mark.slow
def test_the_tokens_of_an_image_are_those_that_are_foretold(lab: Lab) -> None:
    """Every small height beside widths of every kind, and random larger ones."""
    rng = np.random.default_rng(9)
    sizes = [[h, w] for h in (1, 13, 14, 27, 28, 41, 42, 43, 56, 70, 71) for w in (1, 14, 42, 69, 70, 99, 126, 199)]
    sizes += [[int(h), int(w)] for h, w in rng.integers(1, 900, (120, 2))]
    sizes += [[int(h), int(w)] for h, w in rng.integers(900, 2200, (12, 2))]
    for model in (QWEN, LLAVA):
        wrong = lab.run_within(100, seen.foretold_wrong, model, [s for s in sizes if max(s) <= 200 * min(s)])
        assert wrong == []
