"""Experiments with images on the raw engine. Each returns plain data; the tests judge it."""

from pathlib import Path
from typing import Any

import numpy as np
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
