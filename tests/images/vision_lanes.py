"""Pipelines on the small models that see, and the engine beside them without boundedgen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from genai.lanes import F32
from numpy.typing import NDArray

from boundedgen import Admission, BoundedPipeline, Limits, RestartPolicy
from boundedgen._engine._host import GenAIHost
from boundedgen._text import GenAITokenizer
from boundedgen.testing._faulty_child import MODULE

MODELS = Path(__file__).resolve().parents[1] / "models"
QWEN, LLAVA = str(MODELS / "qwen2vl"), str(MODELS / "llava")
FULL: Mapping[str, Any] = {"ignore_eos": True}
Pixels = NDArray[np.uint8]


def picture(height: int, width: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def raw_pipeline(model: str, **scheduler: Any) -> Any:
    """The engine itself, f32."""
    config = genai.SchedulerConfig()
    for name, value in {"num_kv_blocks": 200, "enable_prefix_caching": False, **scheduler}.items():
        setattr(config, name, value)
    return genai.ContinuousBatchingPipeline(model, config, "CPU", dict(F32))


def raw_add(pipe: Any, request: int, text: str, images: Sequence[Pixels], new: int, *, templated: bool = False) -> Any:
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.apply_chat_template = new, True, templated
    if images:
        return pipe.add_request(request, text, [ov.Tensor(i) for i in images], generation_config=config)
    return pipe.add_request(request, text, config)


def raw_answer(
    pipe: Any, request: int, text: str, images: Sequence[Pixels], new: int, *, templated: bool = False
) -> tuple[int, list[int]]:
    """Prompt tokens as the engine counts them, and greedy token ids."""
    handle = raw_add(pipe, request, text, images, new, templated=templated)
    ids: list[int] = []
    while pipe.has_non_finished_requests():
        pipe.step()
        while handle.can_read():
            for output in handle.read().values():
                ids += output.generated_ids
    return handle.get_perf_metrics().get_num_input_tokens(), ids


@contextlib.contextmanager
def faulty_lane(model: str, fault: Mapping[str, Any], limits: Limits, **scheduler: Any) -> Iterator[BoundedPipeline]:
    """The real engine in a process that misbehaves as told; restarts at once."""
    host = GenAIHost(
        model,
        {"num_kv_blocks": 100, **scheduler},
        "CPU",
        dict(F32),
        tokenizer_properties={},
        limits=limits,
        tokenizer=lambda: GenAITokenizer(model, {}),
        module=MODULE,
        fault=fault,
    )
    restart = RestartPolicy(wait=lambda state: 0.0, resume="continue")
    with BoundedPipeline(None, engine=host, limits=limits, restart=restart, admission=Admission(margin=None)) as lane:
        yield lane
