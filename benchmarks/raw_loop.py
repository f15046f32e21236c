"""The raw contestant: a bare `step()` loop; tokens are read, nothing else is done."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any


def load(
    model: str, scheduler: Mapping[str, Any], device: str = "CPU", properties: Mapping[str, Any] | None = None
) -> Any:
    import openvino_genai as genai

    config = genai.SchedulerConfig()
    config.cache_size = 0
    for name, value in scheduler.items():
        setattr(config, name, value)
    return genai.ContinuousBatchingPipeline(model, config, device, dict(properties or {}))


class Requests:
    """Adds requests to a pipeline, under ids of its own."""

    def __init__(self, pipeline: Any, first: int = 1 << 40) -> None:
        self.pipeline = pipeline
        self._id = first  #: above every stay's

    def add(
        self, prompts: list[list[int]], new: int, stops: Sequence[int] = (), seeds: Sequence[int] = ()
    ) -> list[Any]:
        """`seeds`: they sample, each with its own."""
        import numpy
        import openvino
        import openvino_genai as genai

        handles = []
        for n, prompt in enumerate(prompts):
            config = genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos = new, not stops
            config.stop_token_ids = set(stops)
            if seeds:
                config.do_sample, config.rng_seed = True, seeds[n]
            self._id += 1
            ids = openvino.Tensor(numpy.array([prompt], dtype=numpy.int64))
            handles.append(self.pipeline.add_request(self._id, ids, config))
        return handles


class RawLoop(Requests):
    """Runs rounds on one pipeline."""

    def round(
        self, prompts: list[list[int]], new: int, stops: Sequence[int] = (), seeds: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Of one round: seconds, tokens, when the last token of each came, and the steps with a full cache."""
        began = time.monotonic()
        handles = self.add(prompts, new, stops, seeds)
        tokens, full, last = 0, 0, [0.0] * len(prompts)
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            full += self.pipeline.get_metrics().cache_usage >= 99.9
            for n, handle in enumerate(handles):
                while handle.can_read():
                    tokens += sum(len(output.generated_ids) for output in handle.read().values())
                    last[n] = time.monotonic() - began
        return {"seconds": time.monotonic() - began, "tokens": tokens, "last": last, "full": full}

    def times(self, prompts: list[list[int]], new: int, pause: float) -> list[list[float]]:
        """When each token of each request was read, in seconds since that request was added; after a pause."""
        time.sleep(pause)
        handles, began = [], []
        for prompt in prompts:
            began.append(time.monotonic())
            handles += self.add([prompt], new)
        at: list[list[float]] = [[] for _ in prompts]
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            for n, handle in enumerate(handles):
                while handle.can_read():
                    handle.read()
                    at[n].append(time.monotonic() - began[n])
        return at
