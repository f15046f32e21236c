"""The raw contestant: a bare `step()` loop; tokens are read, nothing else is done."""

from __future__ import annotations

import time
from typing import Any


def load(model: str, scheduler: dict[str, Any]) -> Any:
    import openvino_genai as genai

    config = genai.SchedulerConfig()
    config.cache_size = 0
    for name, value in scheduler.items():
        setattr(config, name, value)
    return genai.ContinuousBatchingPipeline(model, config, "CPU", {})


class RawLoop:
    """Runs rounds on one pipeline."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self._id = 1 << 40  #: above every stay's

    def add(self, prompts: list[list[int]], new: int) -> list[Any]:
        import numpy
        import openvino
        import openvino_genai as genai

        handles = []
        for prompt in prompts:
            config = genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos = new, True
            self._id += 1
            ids = openvino.Tensor(numpy.array([prompt], dtype=numpy.int64))
            handles.append(self.pipeline.add_request(self._id, ids, config))
        return handles

    def round(self, prompts: list[list[int]], new: int) -> dict[str, float]:
        """Seconds and tokens of one round."""
        began = time.monotonic()
        handles = self.add(prompts, new)
        tokens = 0
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            for handle in handles:
                while handle.can_read():
                    tokens += sum(len(output.generated_ids) for output in handle.read().values())
        return {"seconds": time.monotonic() - began, "tokens": tokens}
