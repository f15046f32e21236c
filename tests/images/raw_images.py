"""Experiments with images on the raw engine. Each returns plain data; the tests judge it."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from genai import raw
from images.vision_lanes import picture, raw_add, raw_answer, raw_pipeline

from boundedgen._vision import vision_of

_made: dict[str, Any] = {}
_number = 0


def _pipe(model: str) -> Any:
    if model not in _made:
        _made[model] = raw_pipeline(model)
    return _made[model]


def _next() -> int:
    global _number
    _number += 1
    return _number


def add_shape(model: str, shape: list[int]) -> str:
    """ "taken", or what add_request raised."""
    pipe = _pipe(model)
    try:
        raw_answer(pipe, _next(), "a", [np.zeros(shape, np.uint8)], 1)
    except RuntimeError as error:
        return str(error)
    return "taken"


def tokens_of(model: str, text: str, shapes: list[list[int]]) -> int:
    return raw_answer(_pipe(model), _next(), text, [np.zeros(shape, np.uint8) for shape in shapes], 1)[0]


def answer(model: str, text: str, images: int) -> tuple[int, list[int]]:
    return raw_answer(_pipe(model), _next(), text, [picture(56 + 56 * at, 112, at) for at in range(images)], 8)


def templated(model: str) -> list[int]:
    return [raw_answer(_pipe(model), _next(), "hello", [], 1, templated=on)[0] for on in (False, True)]


def refusal(model: str, text: str, images: int) -> str:
    try:
        raw_add(_pipe(model), _next(), text, [picture(56, 56)] * images, 1)
    except RuntimeError as error:
        return str(error)
    return ""


def foretold_wrong(model: str, sizes: list[list[int]]) -> list[Any]:
    """Sizes of which the engine counts other tokens than `Vision` foretells."""
    vision, wrong = vision_of(Path(model)), []
    assert vision is not None
    assert vision.family is not None
    counted = {"qwen2_vl": 3, "llava": 2}[vision.family.name]  # tokens of `text_to_count` of a tag
    for height, width in sizes:
        tokens = tokens_of(model, "a", [[height, width, 3]])
        if tokens != vision.tokens(1 + counted, [(height, width)]):
            wrong.append([height, width, tokens])
    return wrong


def mixed(model: str, seed: int, blocks: int) -> str:
    """Text and images with stops at a small cache, nothing reserved: what a step raised, else how many were IGNORED."""
    rng = random.Random(seed)
    pipe = raw_pipeline(model, num_kv_blocks=blocks)
    live: list[Any] = []
    all_handles: list[Any] = []
    raised = ""
    for _ in range(600):
        if rng.random() < 0.15 and len(all_handles) < 14:
            images = [picture(rng.randrange(1, 150), rng.randrange(1, 150)) for _ in range(rng.choice((0, 0, 1, 2)))]
            text = "".join(rng.choices("abc def", k=rng.randrange(1, 60)))
            fields = rng.choice(({}, {}, {"num_beams": 2}, {"do_sample": True, "num_return_sequences": 2}))
            config = raw.config(rng.randrange(1, 90), apply_chat_template=False, **fields)
            tensors = [ov.Tensor(image) for image in images]
            live.append(
                pipe.add_request(_next(), text, tensors, generation_config=config)
                if images
                else pipe.add_request(_next(), text, config)
            )
            all_handles.append(live[-1])
        if raised := raw.step_error(pipe):
            break
        for handle in live:
            while handle.can_read():
                handle.read()
        if live and rng.random() < 0.05:
            live.pop(rng.randrange(len(live))).stop()
    unfinished = pipe.has_non_finished_requests() and not raised
    ignored = sum(raw.status(handle) == "IGNORED" for handle in all_handles)
    return f"raised: {raised[:80]}" if raised else f"unfinished {unfinished}, ignored {ignored}"
