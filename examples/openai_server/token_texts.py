"""The text of single tokens, for logprobs: the model's own tokenizer, loaded when somebody first asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, final

_KEPT = 65_536  #: texts of tokens


@final
class TokenTexts:
    def __init__(self, model_path: str) -> None:
        self._path = model_path
        self._decode = lru_cache(_KEPT)(self._decoded)
        self._tokenizer: Any = None
        self._loading = asyncio.Lock()

    async def load(self) -> None:
        """Once: a fifth of a second from a folder, seconds from a GGUF file, in a worker thread."""
        async with self._loading:
            if self._tokenizer is None:
                self._tokenizer = await asyncio.to_thread(_load, self._path)

    def of(self, token_ids: Sequence[int]) -> list[str]:
        """After `load`. What is no whole character by itself has U+FFFD in its place."""
        return [self._decode(i) for i in token_ids]

    def _decoded(self, token_id: int) -> str:
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False))


def _load(path: str) -> Any:
    import openvino_genai

    # One thread, as it is small, and not pinned to the cores that the engine works on.
    return openvino_genai.Tokenizer(path, INFERENCE_NUM_THREADS=1, ENABLE_CPU_PINNING=False)
