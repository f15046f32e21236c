"""Requests with images on the real engine: right, refused in time, waited for, survived."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from genai.lanes import lane, nothing_left_behind, until
from images.vision_lanes import FULL, LLAVA, QWEN, faulty_lane, picture, raw_answer, raw_pipeline

from boundedgen import (
    BoundedGenError,
    BoundedPipeline,
    Bounds,
    FinishReason,
    Generation,
    GenerationCancelled,
    GenerationError,
    InvalidRequest,
    Limits,
    NeverFits,
    Saturated,
)
from boundedgen._observing import pulse_of

MODELS = [pytest.param(QWEN, id="qwen2vl"), pytest.param(LLAVA, id="llava")]
CORPUS: list[tuple[str, tuple[tuple[int, int], ...]]] = [
    ("hello", ()),
    ("hello", ((56, 56),)),
    ("what is this?\n", ((112, 84), (57, 200))),
    ("a<ov_genai_image_0>b<ov_genai_image_1>c", ((100, 100), (30, 77))),
    ("Ünïcödé – 文字", ((1, 1),)),
    ("x" * 200, ((300, 500),)),
]


def chat(text: str, *images: Any) -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("caching", [False, True], ids=["no-caching", "caching"])
def test_greedy_tokens_and_counts_equal_the_raw_engine_s(model: str, caching: bool) -> None:
    raw = raw_pipeline(model)
    with lane(model, {"num_kv_blocks": 200, "enable_prefix_caching": caching}) as pipeline:
        for number, (text, sizes) in enumerate(CORPUS):
            images = [picture(h, w, seed) for seed, (h, w) in enumerate(sizes)]
            for turn in range(1 + caching):  # the same again, and other images of the same sizes
                seen = images if not turn else [255 - image for image in images]
                expected = raw_answer(raw, 10 * number + turn + 1, text, seen, 12)
                done = pipeline.generate(text, images=seen or None, max_new_tokens=12, **FULL)
                assert (done.prompt_tokens, list(done.token_ids)) == expected
            expected = raw_answer(raw, 10 * number + 5, "hi", images, 12, templated=True)
            done = pipeline.generate(chat("hi", *images), max_new_tokens=12, **FULL)
            assert (done.prompt_tokens, list(done.token_ids)) == expected
        assert pipeline.health().findings == ()
        assert pipeline.probe().reason == ""


@pytest.mark.parametrize("model", MODELS)
def test_each_of_the_poison_list_is_refused_and_a_neighbour_s_stream_goes_on(model: str, tmp_path: Path) -> None:
    whole, photo = picture(56, 56), tmp_path / "photo.png"
    PIL.Image.fromarray(whole).save(photo)
    poison: list[tuple[object, dict[str, Any]]] = [
        ("a", {"images": [np.zeros((0, 8, 3), np.uint8)]}),
        ("a", {"images": [whole[:, :, :1]]}),
        ("a", {"images": [np.zeros((8, 8, 4), np.uint8)]}),
        ("a", {"images": [np.zeros((2, 56, 56, 3), np.uint8)]}),
        ("a", {"images": [whole.astype(np.float32)]}),
        ("a", {"images": [whole[:, :, 0]]}),
        ("a", {"images": [np.zeros((1, 300, 3), np.uint8)]}),
        ("a", {"images": [np.zeros((5000, 5000, 3), np.uint8)]}),
        ([1, 2, 3], {}),
        ([1, 2, 3], {"images": [whole]}),
        (np.array([1, 2, 3]), {}),
        ("", {}),
        ("<ov_genai_image_0>", {}),
        ("a<ov_genai_image_1>", {"images": [whole]}),
        (chat("<ov_genai_image_0>", whole), {}),
        (chat("<|image_pad|><image>"), {}),
        (chat("a", str(photo)), {}),
        (chat("a", whole), {"images": [whole]}),
        (chat("a", *[np.zeros((3000, 4000, 3), np.uint8)] * 2), {}),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}], {}),
    ]
    with lane(model, {"num_kv_blocks": 100}) as pipeline:
        alone = pipeline.generate("neighbour", max_new_tokens=400, **FULL).token_ids
        neighbour = pipeline.submit("neighbour", max_new_tokens=400, **FULL)
        for prompt, arguments in poison:
            with pytest.raises(InvalidRequest):
                pipeline.submit(prompt, max_new_tokens=4, **arguments)
        with pytest.raises(NeverFits):
            pipeline.submit("a", images=[whole], max_new_tokens=4000)
        assert not neighbour.finish_reason
        assert neighbour.result(30).token_ids == alone


def test_a_model_of_text_refuses_images() -> None:
    with lane() as pipeline:
        with pytest.raises(InvalidRequest, match="text only"):
            pipeline.submit("a", images=[picture(8, 8)])
        with pytest.raises(InvalidRequest, match="not for this model"):
            pipeline.submit(chat("a", picture(8, 8)))


def test_the_images_that_wait_are_bounded_and_their_room_comes_back() -> None:
    limits = Limits(running_max=1, image_bytes=1 << 20, image_pixels=300_000)
    with lane(QWEN, {"num_kv_blocks": 100}, limits=limits) as pipeline:
        first = pipeline.submit("a", images=[picture(300, 300)], max_new_tokens=800, **FULL)
        next(iter(first))  # its images are not kept any more
        waiting = [pipeline.submit("a", images=[picture(300, 300, i)], max_new_tokens=4, **FULL) for i in range(3)]
        with pytest.raises(Saturated, match=r"Limits\.image_bytes") as caught:
            pipeline.submit("a", images=[picture(300, 300)], max_new_tokens=4)
        assert caught.value.retry_after_s
        assert pipeline.submit("text still goes", max_new_tokens=1).cancel()
        waiting[0].cancel()
        with pytest.raises(GenerationCancelled):
            waiting[0].result(30)
        again = pipeline.submit("a", images=[picture(300, 300, 9)], max_new_tokens=4, **FULL)
        first.cancel()
        assert [g.result(30).completion_tokens for g in (*waiting[1:], again)] == [4, 4, 4]


def test_an_unknown_family_is_alone_until_its_images_are_known(tmp_path: Path) -> None:
    model = tmp_path / "unknown"
    shutil.copytree(QWEN, model)
    config = model / "preprocessor_config.json"  # the engine has a usual value for what is taken out here
    config.write_text(config.read_text().replace('"merge_size"', '"merge_size_of_another_make"'))
    with lane(str(model), {"num_kv_blocks": 60}) as pipeline:
        first = pipeline.submit("hello", images=[picture(112, 112)], max_new_tokens=200, **FULL)
        assert until(pipeline, lambda stats: stats.running == 1).blocks_free == 0
        assert pipeline.submit("wait", max_new_tokens=2, **FULL).result(20).first_token_s is not None
        assert first.finish_reason is FinishReason.LENGTH
        second = pipeline.submit("hello", images=[picture(112, 112, 1)], max_new_tokens=200, **FULL)
        assert second.result(20).prompt_tokens == 5 + 18
        assert until(pipeline, lambda stats: stats.running == 0).running == 0
        third = pipeline.submit("hello", images=[picture(112, 112, 1)], max_new_tokens=200, **FULL)
        assert until(pipeline, lambda stats: stats.running == 1).blocks_free not in (None, 0)
        third.cancel()


def test_a_hung_encoder_is_found_and_those_that_had_shown_nothing_go_on() -> None:
    limits = Limits(encode=0.5, encode_per_pixel=0, first_step=1.0, boot=60, evidence=0)
    with (
        nothing_left_behind(model_files=False),
        faulty_lane(QWEN, {"encode_s": 3600, "incarnations": [1]}, limits) as pipeline,
    ):
        image = picture(112, 112)
        began = time.monotonic()
        generation = pipeline.submit("hello", images=[image], max_new_tokens=6, **FULL)
        stats = until(pipeline, lambda stats: stats.encode_current_s > 0.2)
        assert stats.encode_current_s > 0.2
        assert stats.step_current_s == 0
        beside = pipeline.submit("hello", max_new_tokens=6, **FULL)
        done = generation.result(30)
        assert done.resumed == 1
        assert list(done.token_ids) == raw_answer(raw_pipeline(QWEN), 1, "hello", [image], 6)[1]
        assert beside.result(30).completion_tokens == 6
        assert time.monotonic() - began < 20
        stats = pipeline.stats()
        assert stats.kills_total["step"] == 1
        assert stats.encode_current_s == 0


def test_a_slow_encoder_is_not_killed_and_waits_are_told() -> None:
    limits = Limits(encode=0.2, encode_per_pixel=0, first_step=20.0, ack=0.3, progress=0.3, boot=60)
    with faulty_lane(QWEN, {"encode_s": 1.0}, limits) as pipeline:
        images = [pipeline.submit("a", images=[picture(56, 56)], max_new_tokens=2, **FULL) for _ in range(4)]
        text = pipeline.submit("text", max_new_tokens=5, **FULL)
        assert text.result(30).completion_tokens == 5
        assert [g.result(30).completion_tokens for g in images] == [2] * 4
        assert pipeline.stats().restarts_total == 0


def test_text_goes_on_between_the_admissions_of_images() -> None:
    """A text stream gets tokens between any two images that are encoded, however many come at once."""
    limits = Limits(encode=5.0, boot=60)
    with faulty_lane(QWEN, {"encode_s": 0.3}, limits) as pipeline:
        text = pipeline.submit("text", max_new_tokens=2000, **FULL)
        stream = iter(text)
        next(stream)
        images = [pipeline.submit("a", images=[picture(56, 56)], max_new_tokens=1, **FULL) for _ in range(4)]
        ends = 0
        times = [time.monotonic()]
        while ends < len(images):
            next(stream)
            times.append(time.monotonic())
            ends = sum(g.finish_reason is not None for g in images)
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert sum(gap > 0.25 for gap in gaps) >= 3  # one at a time
        assert max(gaps) < 1.1, "all four take 1.2 s"
        text.cancel()


def test_images_that_are_cancelled_or_late_never_reach_the_encoder() -> None:
    with faulty_lane(QWEN, {"encode_s": 0.5}, Limits(boot=60)) as pipeline:
        first = pipeline.submit("a", images=[picture(1000, 1000)], max_new_tokens=1, **FULL)
        others = [pipeline.submit("a", images=[picture(1000, 1000)], max_new_tokens=1, **FULL) for _ in range(6)]
        late = pipeline.submit("a", images=[picture(56, 56)], bounds=Bounds(total=0.3), **FULL)
        for other in others:
            other.cancel()
        with pytest.raises(GenerationError):
            late.result(5)
        assert first.result(20).completion_tokens == 1
        assert all(other.wait_reclaimed(20) for other in (*others, late))
        assert pulse_of(pipeline._driver).encodes_ended <= 2  # the first, and one that was on its way
        assert pipeline.stats().restarts_total == 0


def mixed_run(pipeline: BoundedPipeline, seed: int) -> dict[str, int]:
    """Text and images with stops, deadlines, leases; nothing is left, and every end is one that was asked for."""
    rng = random.Random(seed)
    live: list[Generation] = []
    ends: dict[str, int] = {}
    for number in range(14):
        images = [
            picture(rng.randrange(1, 150), rng.randrange(1, 150), number) for _ in range(rng.choice((0, 0, 1, 2)))
        ]
        text = "".join(rng.choices("abc déf\n", k=rng.randrange(1, 60)))
        bounds = Bounds(total=rng.uniform(0.001, 0.4)) if rng.random() < 0.2 else None
        lease = pipeline.lease("somebody", ttl=rng.uniform(0.02, 5)) if rng.random() < 0.2 else None
        length: dict[str, Any] = {"max_new_tokens": rng.randrange(1, 90), "ignore_eos": rng.random() < 0.7}
        kind: dict[str, Any] = rng.choice(({}, {}, {"do_sample": True}, {"num_beams": 2}, {"stop_strings": ["a"]}))
        prompt: Any = chat(text, *images) if rng.random() < 0.4 else text
        arguments: dict[str, Any] = {"images": images} if images and isinstance(prompt, str) else {}
        try:
            live.append(pipeline.submit(prompt, bounds=bounds, lease=lease, **arguments, **length, **kind))
        except NeverFits:
            ends["never_fits"] = ends.get("never_fits", 0) + 1
        if live and rng.random() < 0.3:
            rng.choice(live).cancel()
    for generation in live:
        with contextlib.suppress(GenerationError):
            generation.result(30)
        assert generation.wait_reclaimed(10).proof
        reason = generation.finish_reason
        assert reason is not None
        ends[reason.value] = ends.get(reason.value, 0) + 1
    allowed = {"never_fits", *(r.value for r in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED)),
               FinishReason.DEADLINE.value, FinishReason.LEASE.value}  # fmt: skip
    assert ends.keys() <= allowed, (seed, ends)
    return ends


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("blocks", [8, 16])
def test_mixed_runs_at_a_small_cache_come_to_rest(model: str, blocks: int) -> None:
    with lane(model, {"num_kv_blocks": blocks, "enable_prefix_caching": blocks == 16}) as pipeline:
        seeds = range(blocks, blocks + 5)
        told = [mixed_run(pipeline, seed) for seed in seeds]
        assert sum(sum(ends.values()) for ends in told) == 14 * len(told)
        assert pipeline.health().findings == ()


def test_a_refusal_of_the_door_is_counted() -> None:
    with lane(QWEN, {"num_kv_blocks": 60}) as pipeline:
        with pytest.raises(BoundedGenError):
            pipeline.submit("a", images=[b"x"])
        assert pipeline.stats().rejected_total["InvalidRequest"] == 1
