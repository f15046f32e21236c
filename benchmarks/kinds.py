"""Every kind of request: seeded mixed runs on a small cache, on the raw engine and through boundedgen; greedy tokens of
both; throughput of both. Small models on the CPU, in f32.

    python benchmarks/kinds.py [--runs 100] [--seed 1] [--rounds 10] [--kinds text ...] [--short] [--json FILE]

A run is a few requests of a cache that has room for each of them and not for all: some are stopped, some have a
deadline, some are orphans. Raw is a bare loop that stops what it no longer wants, in a process of its own; how a run
ended there: clean, ignored (the engine gave one up for want of memory), raised, stuck, or the signal that killed it.
Through boundedgen it is clean if each got its end and all blocks came back; that no engine was lost is a figure too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import figures
import numpy as np
from attrs import field, frozen
from figures import Figure

PART = "kinds"
MODELS = Path(__file__).resolve().parent.parent / "tests" / "models"
PLAIN, HYBRID, DRAFT = (str(MODELS / name) for name in ("plain", "hybrid", "draft"))
LORA = str(MODELS / "lora" / "lora_a.safetensors")
F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
K, BLOCK, WIDTH = 5, 32, 12  #: assistant tokens; tokens a block; blocks that a request takes at most
STUCK_STEPS, RUN_S = 3000, 60.0
RAW = "--raw"


@frozen
class Kind:
    """One kind: how the raw pipeline and ours are told of it, and what its requests carry."""

    model: str
    raw: Callable[[Any], Mapping[str, Any]] = lambda genai: {}  #: properties of ContinuousBatchingPipeline
    options: Mapping[str, Any] = field(factory=dict)  #: of BoundedPipeline
    fields: Mapping[str, Any] = field(factory=dict)  #: of each raw request
    tag: str = ""  #: of an image in the text; empty: prompts are token ids
    settings: Mapping[str, Any] = field(factory=dict)  #: of the scheduler, for both
    linear_each: int = 0  #: linear-attention blocks that a sequence takes; 0: the engine decides how many there are

    def scheduler(self, blocks: int, sequences: int) -> dict[str, Any]:
        """A cache of so many blocks, with linear attention for so many sequences."""
        linear = {"num_linear_attention_blocks": sequences * self.linear_each} if self.linear_each else {}
        return {"num_kv_blocks": blocks, "max_num_seqs": 8, **self.settings, **linear}

    samples: bool = False  #: several sequences are served too


def _drafted(genai: Any) -> Mapping[str, Any]:
    config = genai.SchedulerConfig()
    config.num_kv_blocks = 2 * WIDTH
    return {"draft_model": genai.draft_model(DRAFT, "CPU", scheduler_config=config, **F32)}


def _adapted(genai: Any) -> Mapping[str, Any]:
    return {"adapters": genai.AdapterConfig([(genai.Adapter(LORA), 0.8)], mode=genai.AdapterConfig.Mode.MODE_FUSE)}


_LOOKUP = {"num_assistant_tokens": K, "max_ngram_size": 3}
KINDS: Mapping[str, Kind] = {
    "text": Kind(PLAIN, samples=True),
    "hybrid": Kind(HYBRID, samples=True),
    "prompt lookup": Kind(
        PLAIN, raw=lambda _: {"prompt_lookup": True}, options={"prompt_lookup": _LOOKUP}, fields=_LOOKUP
    ),
    "prompt lookup, hybrid": Kind(
        HYBRID,
        raw=lambda _: {"prompt_lookup": True},
        options={"prompt_lookup": _LOOKUP},
        fields=_LOOKUP,
        linear_each=K + 2,
    ),
    "draft": Kind(
        PLAIN,
        raw=_drafted,
        options={"draft": {"models_path": DRAFT, "device": "CPU", "properties": F32, "num_assistant_tokens": K}},
        fields={"num_assistant_tokens": K},
        settings={"dynamic_split_fuse": False, "max_num_batched_tokens": 4096},  # else raw answers are wrong
    ),
    "adapters": Kind(PLAIN, raw=_adapted, options={"adapters": {LORA: 0.8}}, samples=True),
    "images, Qwen2-VL": Kind(str(MODELS / "qwen2vl"), tag="<|vision_start|><|image_pad|><|vision_end|>"),
    "images, LLaVA": Kind(str(MODELS / "llava"), tag="<image>"),
}


@frozen
class Asked:
    """One request of a run, in plain data."""

    tokens: tuple[int, ...]
    text: str
    images: tuple[tuple[int, int, int], ...]  #: seed, height, width
    new: int
    fields: Mapping[str, Any]
    stop_after_s: float | None
    total_s: float | None


def requests_of(kind: Kind, rnd: random.Random) -> list[Asked]:
    """The same for both contestants. Each takes at most WIDTH blocks, K tokens more than its own included."""
    return [_request(kind, rnd) for _ in range(rnd.randint(3, 12))]


def _request(kind: Kind, rnd: random.Random) -> Asked:
    sequences = rnd.choice([1, 1, 2, 3]) if kind.samples else 1
    room = WIDTH // sequences * BLOCK - K
    images = tuple(
        (rnd.randrange(999), 28 * rnd.randint(1, 4), 28 * rnd.randint(1, 4)) for _ in range(rnd.randrange(3))
    )
    images = images if kind.tag else ()
    prompt = rnd.randint(1, room - 120 if images else room // 2)
    row = [rnd.randint(3, 258) for _ in range(max(1, prompt // rnd.randint(1, 4)))]
    ids = tuple((row * prompt)[:prompt])  # repeats itself, for whoever looks up
    text = kind.tag * len(images) + "".join(chr(97 + i % 26) for i in ids)
    fields: dict[str, Any] = {"ignore_eos": rnd.random() < 0.8}
    if sequences > 1:
        fields |= {"do_sample": True, "num_return_sequences": sequences, "rng_seed": rnd.randint(1, 999)}
    stop = rnd.uniform(0.0, 0.01) if rnd.random() < 0.3 else None
    total = rnd.uniform(0.005, 0.2) if rnd.random() < 0.2 else None
    return Asked(ids, text, images, rnd.randint(1, 100), fields, stop, total)


def picture(seed: int, height: int, width: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


# --- raw, in a process of its own --------------------------------------------------------------------------------


class Raw:
    """A bare loop over ContinuousBatchingPipeline."""

    def __init__(self, kind: Kind, blocks: int, sequences: int = 2) -> None:
        import openvino as ov  # type: ignore[import-untyped,unused-ignore]
        import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]

        self._ov, self._genai, self._kind, self._ids = ov, genai, kind, 0
        config = genai.SchedulerConfig()
        for name, value in kind.scheduler(blocks, sequences).items():
            setattr(config, name, value)
        self._pipeline = genai.ContinuousBatchingPipeline(kind.model, config, "CPU", {**F32, **kind.raw(genai)})

    def add(self, asked: Asked) -> Any:
        config = self._genai.GenerationConfig()
        for name, value in {"max_new_tokens": asked.new, **self._kind.fields, **asked.fields}.items():
            setattr(config, name, value)
        self._ids += 1
        if self._kind.tag:
            config.apply_chat_template = False
            images = [self._ov.Tensor(picture(*image)) for image in asked.images]
            return self._pipeline.add_request(self._ids, asked.text, images, generation_config=config)
        ids = self._ov.Tensor(np.array([asked.tokens], dtype=np.int64))
        return self._pipeline.add_request(self._ids, ids, config)

    def run(self, requests: Sequence[Asked]) -> str:
        began = time.monotonic()
        handles = [(self.add(asked), asked) for asked in requests]
        for _ in range(STUCK_STEPS):
            if not self._pipeline.has_non_finished_requests():
                break
            passed = time.monotonic() - began
            for handle, asked in handles:
                if min(asked.stop_after_s or 1e9, asked.total_s or 1e9) <= passed:
                    handle.stop()
            self._pipeline.step()
        else:
            return "stuck"
        self._pipeline.step()
        names = {str(handle.get_status().name) for handle, _ in handles}
        return "ignored" if "IGNORED" in names else "clean"

    def greedy(self, requests: Sequence[Asked]) -> tuple[list[list[int]], float]:
        """Their tokens, all at once, and the seconds that took."""
        began = time.perf_counter()
        handles = [self.add(asked) for asked in requests]
        found: list[list[int]] = [[] for _ in handles]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for ids, handle in zip(found, handles, strict=True):
                while handle.can_read():
                    for output in handle.read().values():
                        ids += output.generated_ids
        return found, time.perf_counter() - began


def raw_runs(kind: Kind, seeds: Sequence[int]) -> None:
    """A line a seed, before whatever it does to this process."""
    pipeline = Raw(kind, 2 * WIDTH)
    for seed in seeds:
        try:
            how = pipeline.run(requests_of(kind, random.Random(seed)))
        except Exception as error:
            how = f"raised {type(error).__name__}"
        print(json.dumps([seed, how]), flush=True)
        if how != "clean":
            return


def raw_outcomes(name: str, seeds: Sequence[int]) -> Counter[str]:
    """How the runs ended; a process that is lost with one is followed by another."""
    found: Counter[str] = Counter()
    left = list(seeds)
    while left:
        command = [sys.executable, __file__, RAW, name, json.dumps(left)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S + 2 * len(left))
            said, how = done.stdout, "clean" if done.returncode == 0 else f"died ({done.returncode})"
        except subprocess.TimeoutExpired as late:
            said, how = (late.stdout or b"").decode(), "hung"
        rows = [json.loads(line) for line in said.splitlines() if line.startswith("[")]
        found.update(end for _, end in rows)
        left = left[len(rows) :]
        if how != "clean" and left:
            found[how] += 1
            left = left[1:]
    return found


# --- boundedgen --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def lane(kind: Kind, blocks: int, sequences: int = 2) -> Iterator[Any]:
    import boundedgen

    scheduler = kind.scheduler(blocks, sequences)
    limits = boundedgen.Limits(max_new_tokens=4096)
    with boundedgen.BoundedPipeline(kind.model, scheduler, "CPU", F32, limits=limits, **kind.options) as pipeline:
        yield pipeline


def submitted(pipeline: Any, kind: Kind, asked: Asked, **more: Any) -> Any:
    fields = {"max_new_tokens": asked.new, **asked.fields, **more}
    if not kind.tag:
        return pipeline.submit(list(asked.tokens), **fields)
    images = [picture(*image) for image in asked.images]
    return (
        pipeline.submit(asked.text.replace(kind.tag, ""), images=images, **fields)
        if images
        else pipeline.submit(asked.text, **fields)
    )


def bounded_run(pipeline: Any, kind: Kind, requests: Sequence[Asked], rnd: random.Random) -> Counter[str]:
    """How each ended. One that does not end, or does not leave, is a TimeoutError."""
    import boundedgen

    lease = pipeline.lease("orphan", ttl=rnd.uniform(0.01, 0.2))
    ends: Counter[str] = Counter()
    held = []
    for asked in requests:
        bounds = None if asked.total_s is None else boundedgen.Bounds(total=asked.total_s)
        under = lease if rnd.random() < 0.2 else None
        with contextlib.suppress(boundedgen.LeaseExpired):
            held.append((submitted(pipeline, kind, asked, bounds=bounds, lease=under), asked))
    for generation, asked in held:
        if asked.stop_after_s is not None:
            time.sleep(asked.stop_after_s)
            generation.cancel()
    for generation, _ in held:
        with contextlib.suppress(boundedgen.GenerationError):
            generation.result(RUN_S)
        generation.wait_reclaimed(RUN_S)
        ends[str(generation.finish_reason.value)] += 1
    lease.revoke()
    return ends


def bounded_outcomes(name: str, seeds: Sequence[int]) -> tuple[Counter[str], Counter[str], int]:
    """How the runs ended, how the generations did, and engines lost."""
    kind = KINDS[name]
    runs: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    with lane(kind, 2 * WIDTH) as pipeline:
        for seed in seeds:
            requests = requests_of(kind, random.Random(seed))
            try:
                ended = bounded_run(pipeline, kind, requests, random.Random(-seed))
            except TimeoutError:
                runs["stuck"] += 1
                continue
            ends += ended
            stats = pipeline.stats()
            lost = ended.keys() & {"engine_lost", "rejected", "cache_exhausted"}
            runs["clean" if stats.blocks_free == stats.blocks_total and not lost else "not clean"] += 1
        stats = pipeline.stats()
        return runs, ends, sum(stats.kills_total.values())


# --- the same tokens, and how fast -------------------------------------------------------------------------------


def corpus(kind: Kind, seed: int, many: int = 8, new: int = 100) -> list[Asked]:
    """Greedy, with room for all."""
    rnd = random.Random(seed)
    rows = [_request(kind, rnd) for _ in range(many)]
    return [Asked(r.tokens, r.text, r.images, new, {"ignore_eos": True}, None, None) for r in rows]


def compare(name: str, rounds: int) -> list[Figure]:
    """Both in this process, one after the other in turn; only one of them has anything to do at a time."""
    kind, blocks = KINDS[name], 8 * WIDTH + 8
    raw, ours, same, count = [], [], 0, 0
    contestant = Raw(kind, blocks, 8)
    with lane(kind, blocks, 8) as pipeline:
        for round_ in range(rounds + 1):
            requests = corpus(kind, round_)
            theirs, took = contestant.greedy(requests)
            began = time.perf_counter()
            generations = [submitted(pipeline, kind, asked) for asked in requests]
            answers = [list(generation.result(RUN_S).token_ids) for generation in generations]
            lasted = time.perf_counter() - began
            same += sum(a == b for a, b in zip(answers, theirs, strict=True))
            count += len(requests)
            if round_:  # the first warms up
                tokens = sum(map(len, theirs))
                raw.append(tokens / took)
                ours.append(tokens / lasted)
    return [
        Figure(PART, f"{name}: greedy answers that are the raw engine's", same / count, "share", target=">= 1"),
        figures.ratios(PART, f"{name}: tokens a second / raw", ours, raw),
    ]


# --- all of it ---------------------------------------------------------------------------------------------------


def told(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} {how}" for how, count in outcomes.most_common())


def outcomes(name: str, seeds: Sequence[int]) -> list[Figure]:
    raw = raw_outcomes(name, seeds)
    runs, ends, lost = bounded_outcomes(name, seeds)
    share = runs["clean"] / len(seeds)
    return [
        Figure(PART, f"{name}: raw runs that end clean", raw["clean"] / len(seeds), "share", note=told(raw)),
        Figure(PART, f"{name}: runs through boundedgen that do", share, "share", target=">= 1", note=told(ends)),
        Figure(PART, f"{name}: engines lost", lost, "engines", target="<= 0", note=f"seeds {seeds[0]} to {seeds[-1]}"),
    ]


def measure(given: argparse.Namespace) -> list[Figure]:
    found: list[Figure] = []
    runs, rounds = (5, 1) if given.short else (given.runs, given.rounds)
    for name in given.kinds:
        found += outcomes(name, range(given.seed, given.seed + runs)) + compare(name, rounds)
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=figures.count, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--rounds", type=figures.count, default=10, help="of the comparison")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))


if __name__ == "__main__":
    if sys.argv[1:2] == [RAW]:
        raw_runs(KINDS[sys.argv[2]], json.loads(sys.argv[3]))
    else:
        figures.alone(__doc__, measure, options)
