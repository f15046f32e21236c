"""Images through a whole pipeline on the GPU plugin, on an emulated device."""

import pytest
from genai.lanes import lane
from images.vision_lanes import FULL, LLAVA, QWEN, picture

from boundedgen import GenerationError, Rejected


@pytest.mark.slow
def test_text_and_images_are_generated_counted_and_given_back(emulated_gpu: dict[str, str]) -> None:
    images = [picture(56, 84, seed) for seed in range(2)]
    with lane(LLAVA, device="GPU", properties=emulated_gpu) as pipeline:
        going = [pipeline.submit("hello", images=seen, max_new_tokens=6, **FULL) for seen in (None, images[:1], images)]
        done = [generation.result(120) for generation in going]
        assert [one.completion_tokens for one in done] == [6, 6, 6]
        assert [one.prompt_tokens for one in done] == [5, 5 + 17, 5 + 34]
        again = pipeline.generate("hello", images=images[:1], max_new_tokens=6, **FULL)
        assert again.token_ids == done[1].token_ids
        assert pipeline.health().findings == ()


@pytest.mark.slow
def test_images_that_the_plugin_cannot_scale_are_refused_and_text_goes_on(emulated_gpu: dict[str, str]) -> None:
    """Qwen2-VL's scaling raises there, in add_request (2026.4.1)."""
    with lane(QWEN, device="GPU", properties=emulated_gpu) as pipeline:
        text = pipeline.submit("hello", max_new_tokens=40, **FULL)
        with pytest.raises((Rejected, GenerationError), match="RuntimeError"):
            pipeline.generate("hello", images=[picture(56, 84)], max_new_tokens=6, **FULL)
        assert text.result(120).completion_tokens == 40
