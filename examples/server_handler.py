"""What a server does with a request, whatever its framework. python examples/server_handler.py MODEL [DEVICE]"""

import asyncio
import math
import sys
from typing import Any

import boundedgen as b


async def handle(pipeline: b.BoundedPipeline, request: dict[str, Any]) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Status, headers and body. Cancel it when the client disconnects: that ends the generation."""
    try:
        answer = await pipeline.agenerate(
            request["messages"],
            max_new_tokens=request.get("max_tokens", 512),
            bounds=b.Bounds(total=request.get("timeout", 60), queued=45),  # longer than a restart, a model load
            owner=request["user"],
        )
    except b.BoundedGenError as error:
        wait = getattr(error, "retry_after_s", None) or pipeline.health().retry_after_s  # the latter: of a lost engine
        headers = {"Retry-After": str(math.ceil(wait))} if error.retryable and wait else {}
        partial = getattr(error, "partial", None)
        return error.http_status_hint, headers, {"error": str(error), "text": partial.text if partial else ""}
    return 200, {}, {"text": answer.text, "finish_reason": str(answer.finish_reason)}


# --- try it ----------------------------------------------------------------------------------------------------------


async def main(model: str, device: str = "CPU") -> None:
    hello: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello!"}], "user": "me", "max_tokens": 20}
    async with b.BoundedPipeline(model, {"num_kv_blocks": 64}, device) as pipeline:
        for changes in ({}, {"timeout": 0}, {"max_tokens": -1}, {"max_tokens": 30_000}):
            print(changes, *await handle(pipeline, {**hello, **changes}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
