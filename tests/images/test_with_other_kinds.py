"""Images together with what a pipeline may be made for."""

from genai.lanes import lane
from images.vision_lanes import FULL, QWEN, picture, raw_answer, raw_pipeline


def test_prompt_lookup_gives_the_same_greedy_tokens_to_prompts_with_images() -> None:
    raw, images = raw_pipeline(QWEN), [picture(112, 84), picture(56, 56, 1)]
    with lane(QWEN, {"num_kv_blocks": 200}, prompt_lookup=True) as pipeline:
        for number, seen in enumerate(([], images[:1], images)):
            expected = raw_answer(raw, number + 1, "hello hello", seen, 40)
            done = pipeline.generate("hello hello", images=seen or None, max_new_tokens=40, **FULL)
            assert (done.prompt_tokens, list(done.token_ids)) == expected
        stopped = pipeline.generate("hello hello", images=images, max_new_tokens=40, stop_strings=["\n"], **FULL)
        assert stopped.completion_tokens
