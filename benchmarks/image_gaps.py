"""How long text waits for images: `python -m benchmarks.image_gaps [MODEL]`, as JSON.

Sixteen sequences at once, half of them with images of 12 million pixels, which come for as long as a text stream is
watched by a coroutine. What is told: the largest gap between its tokens with images and without them, how long one
admission of such an image takes, and by how much a timer of the loop was late.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from boundedgen import Admission, BoundedPipeline, Bounds, Limits

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
MODEL = Path(__file__).parents[1] / "tests" / "models" / "qwen2vl"
HEIGHT, WIDTH, SECONDS = 3000, 4000, 15.0


async def loop_lag(late: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.005)
        late.append(time.perf_counter() - began - 0.005)


async def watched(pipeline: BoundedPipeline, seconds: float) -> list[float]:
    """Gaps between tokens of one text stream."""
    gaps: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        last = None
        async with await pipeline.asubmit("text", max_new_tokens=2000, ignore_eos=True) as generation:
            async for _ in generation:
                now = time.perf_counter()
                if last is not None:
                    gaps.append(now - last)
                last = now
                if now > until:
                    break
    return gaps


async def keep_busy(pipeline: BoundedPipeline, images: list[Any] | None, done: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await pipeline.agenerate("a", images=images, max_new_tokens=64, ignore_eos=True)
        done.append(time.perf_counter() - began)


async def scene(pipeline: BoundedPipeline, with_images: int) -> dict[str, Any]:
    late: list[float] = []
    texts: list[float] = []
    pictures: list[float] = []
    image = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    others = [keep_busy(pipeline, None, texts) for _ in range(15 - with_images)]
    others += [keep_busy(pipeline, [image], pictures) for _ in range(with_images)]
    tasks = [asyncio.create_task(one) for one in (loop_lag(late), *others)]
    gaps = await watched(pipeline, SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "tokens": len(gaps),
        "gap_p50_s": round(float(np.percentile(gaps, 50)), 4),
        "gap_p99_s": round(float(np.percentile(gaps, 99)), 4),
        "gap_max_s": round(max(gaps), 3),
        "loop_late_p99_s": round(float(np.percentile(late, 99)), 4),
        "loop_late_max_s": round(max(late), 3),
        "images": len(pictures),
        "texts": len(texts),
        "restarts": pipeline.stats().restarts_total,
    }


def encoding(pipeline: BoundedPipeline) -> dict[str, float]:
    """Seconds of an admission, by megapixels, alone: from submit to the first token."""
    took = {}
    for height, width in ((448, 448), (1120, 1120), (2000, 2000), (HEIGHT, WIDTH), (4000, 4000)):
        image = np.zeros((height, width, 3), np.uint8)
        times = [pipeline.generate("a", images=[image], max_new_tokens=1).first_token_s or 0.0 for _ in range(5)]
        took[f"{height * width / 1e6:.1f}"] = round(sorted(times)[2], 3)
    return took


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else str(MODEL)
    limits = Limits(running_max=16, image_bytes=1 << 30)
    with BoundedPipeline(
        model,
        {"num_kv_blocks": 1200},
        "CPU",
        F32,
        limits=limits,
        bounds=Bounds(total=300),
        admission=Admission(margin=None),
    ) as pipeline:
        told: dict[str, Any] = {"model": Path(model).name, "first_token_s_by_megapixels": encoding(pipeline)}
        told["text_alone"] = asyncio.run(scene(pipeline, 0))
        told["with_images"] = asyncio.run(scene(pipeline, 8))
        told["findings"] = list(pipeline.health().findings)
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
