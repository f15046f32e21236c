"""Several streams in one event loop. python examples/asyncio_streaming.py MODEL [DEVICE]"""

import asyncio
import sys

import boundedgen as b


async def stream(pipeline: b.BoundedPipeline, question: str) -> int:
    """Print it as it comes; the number of chunks. Leaving the block, also by cancellation, cancels the generation."""
    bounds = b.Bounds(total=30, next_token=5)
    generation = await pipeline.asubmit([{"role": "user", "content": question}], max_new_tokens=40, bounds=bounds)
    chunks = 0
    async with generation:
        async for chunk in generation:
            chunks += 1
            print(chunk.text, end="", flush=True)
    return chunks


async def several(model: str, device: str, questions: list[str]) -> list[int]:
    async with b.BoundedPipeline(model, {"num_kv_blocks": 256}, device) as pipeline:
        return await asyncio.gather(*(stream(pipeline, question) for question in questions))


# --- try it ----------------------------------------------------------------------------------------------------------

if __name__ == "__main__":
    model, device = (*sys.argv[1:], "CPU")[:2]
    questions = ["Why is the sea salty?", "Why is it blue?"]
    print("\nchunks:", asyncio.run(several(model, device, questions)))
