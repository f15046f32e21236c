"""OpenVINO GenAI's ContinuousBatchingPipeline as an `Engine`. The only file that imports the pipeline.

What its token ids hold, measured on 2026.4.1: the eos token or stop token that ended a sequence is the last of its
ids. With `stop_strings` the ids of the match are withheld, whole tokens of them, and the ids before come in one piece;
with `include_stop_str_in_output` they end with the match; a match at the very first token may leave no ids at all. A
request of several sequences (beams, num_return_sequences) shows nothing until it has finished.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import openvino as ov  # type: ignore[import-untyped,unused-ignore]
import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]

from boundedgen._core._events import EngineFacts, SequenceResult
from boundedgen._engine import _pools
from boundedgen._engine._cut_stops import CutStops
from boundedgen._engine._devices import diagnose, preflight
from boundedgen._engine._findings import untested
from boundedgen._engine._seam import BootRefusedError, EngineStay, Metrics
from boundedgen._text import decoded
from boundedgen.abc import Request

_RUNNING = genai.GenerationStatus.RUNNING
_FINISHED = genai.GenerationStatus.FINISHED
_IGNORED = genai.GenerationStatus.IGNORED
_NONE = genai.GenerationFinishReason.NONE
_LENGTH = genai.GenerationFinishReason.LENGTH
_LINEAR_INPUT = re.compile(rb"cache_params\.past\.(?!key\b|value\b)\w+\.\d+")
_LEARNING_IDS = (1 << 63) + 1  #: request ids of the requests before Ready; stays count from 1
_COUNTED = 2  #: steps
CANARY = (1, 2, 3, 4)  #: token ids that every vocabulary has; prompt and answer fit into one block of every pool
_EXACT = ("INFERENCE_PRECISION_HINT", "f32")  #: measured on the CPU alone; a GPU may add up in another order each time
_SETS = ("stop_strings", "stop_token_ids")


# --- one request -------------------------------------------------------------------------------------------------


def generation_config(fields: Mapping[str, Any]) -> genai.GenerationConfig:
    """From plain data. Raises what the engine's setters raise."""
    config = genai.GenerationConfig()
    for name, value in fields.items():
        if name != "eos_token_id":
            setattr(config, name, _native(name, value))
    if fields.get("eos_token_id") is not None:
        config.set_eos_token_id(fields["eos_token_id"])
    return config


def _ends_of(config: Mapping[str, Any]) -> frozenset[int] | None:
    """The token ids that end it. None: something else may, or they are the engine's own."""
    if config.get("stop_strings") or config.get("structured_output_config") is not None:
        return None
    eos, ignored = config.get("eos_token_id"), config.get("ignore_eos")
    if eos is None and not ignored:
        return None
    return frozenset(config.get("stop_token_ids", ())) | (set() if eos is None else {eos})


def _native(name: str, value: Any) -> Any:
    if name in _SETS:
        return set(value)
    if name == "stop_criteria":
        return genai.StopCriteria.__members__[value]
    if name == "structured_output_config" and value is not None:
        return genai.StructuredOutputConfig(**value)
    return value


@final
class Stay(EngineStay):
    """A GenerationHandle. `read` is called after `can_read` only: on an empty queue it would never return."""

    def __init__(self, handle: genai.GenerationHandle, config: Mapping[str, Any], census: Census | None) -> None:
        self._handle = handle
        self.cut_stops: CutStops | None = None  #: of one that is continued
        self._census = census
        if census is not None:
            census.inside.add(self)
        self._wanted = int(config.get("num_return_sequences", 1))
        self._single = self._wanted == 1 and int(config.get("num_beams", 1)) == 1
        self._probs = bool(config.get("logprobs", 0))
        self._left = int(config["max_new_tokens"])
        self._ends = _ends_of(config)
        self._last: Any = None  # output that was read
        self._results: tuple[SequenceResult, ...] = ()
        self.steps_since_end = -1  #: steps begun since it was stopped or seen ended; -1: neither

    def collect(self) -> tuple[list[int], list[float], str]:
        ids, probs = self._read() if self._single else ([], [])
        if self.cut_stops is not None and (end := self.cut_stops.end_in(ids)) is not None:
            self.stop()
            return ids[:end], probs[:end], "stop"
        if ids and self._goes_on(ids):
            return ids, probs, ""
        return ids, probs, self._why()

    def _read(self) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        probs: list[float] = []
        handle = self._handle
        while handle.can_read():
            for output in handle.read().values():
                ids += output.generated_ids
                self._last = output
                if self._probs:
                    probs += output.generated_log_probs
        return ids, probs

    def _goes_on(self, ids: list[int]) -> bool:
        """After these. By the ids where that is sure, since asking for the reason costs as much as reading them. One
        that has ended all the same has nothing to read after the next step, and is asked then."""
        self._left -= len(ids)
        if self._ends is not None:
            return self._left > 0 and self._ends.isdisjoint(ids)
        return bool(self._last.finish_reason == _NONE)

    def _why(self) -> str:
        status = self._handle.get_status()
        if status == _RUNNING:
            return ""
        self.steps_since_end = max(self.steps_since_end, 0)
        if status == _IGNORED:
            return "ignored"
        if status != _FINISHED:
            return "stopped"
        if not self._single:
            self._read_all()
        return "length" if self._last is not None and self._last.finish_reason == _LENGTH else "stop"

    def _read_all(self) -> None:
        """Best first, and no more than were asked for: the engine may return more beams."""
        outputs = sorted(self._handle.read_all(), key=lambda output: -output.score)[: self._wanted]
        self._last = outputs[0] if outputs else None
        self._results = tuple(
            SequenceResult(
                tuple(output.generated_ids),
                tuple(output.generated_log_probs) if self._probs else (),
                output.score,
            )
            for output in outputs
        )

    def results(self) -> tuple[SequenceResult, ...]:
        return self._results

    def stop(self) -> None:
        self.steps_since_end = 0
        self._handle.stop()

    def released(self) -> bool:
        """The scheduler has removed it: until then `get_perf_metrics` raises."""
        if self._census is not None:
            return self._census.gone(self)
        try:
            self._handle.get_perf_metrics()
        except RuntimeError:
            return False
        return True

    def late_tokens(self) -> int:
        """Only of one sequence: what several show comes at once, and was computed before the stop."""
        return len(self._read()[0]) if self._single else 0


@final
class Census:
    """The weaker proof, for releases whose handles have no `get_perf_metrics`: by the engine's count of requests.

    The count is taken before a step frees anything. So a stay is gone once a step begun after its end has returned,
    and the count of the step after that has room for the others only.
    """

    def __init__(self) -> None:
        self.inside: set[Stay] = set()
        self._requests = 0

    def stepped(self, requests: int) -> None:
        self._requests = requests
        for stay in self.inside:
            if stay.steps_since_end >= 0:
                stay.steps_since_end += 1

    def gone(self, stay: Stay) -> bool:
        others = sum(stay.steps_since_end < _COUNTED for stay in self.inside)
        if stay.steps_since_end < _COUNTED or self._requests > others:
            return False
        self.inside.discard(stay)
        return True


# --- the pipeline ------------------------------------------------------------------------------------------------


@final
class GenAIEngine:
    """A loaded pipeline whose pools are known."""

    def __init__(self, pipeline: genai.ContinuousBatchingPipeline, step_tokens: int, proof: str) -> None:
        self._pipeline = pipeline
        self.proof = proof
        self._census = Census() if proof == "request_count" else None
        self._step_tokens = step_tokens
        self._learned = 0
        self._facts: EngineFacts | None = None

    @property
    def facts(self) -> EngineFacts:
        assert self._facts is not None
        return self._facts

    @property
    def step_tokens(self) -> int:
        return self._step_tokens

    def add(self, request: Request) -> EngineStay:
        stay = self._add(request.stay, request.prompt, request.config)
        if request.shown and request.config.get("stop_strings"):
            stay.cut_stops = self._cut_stops(request.prompt[-request.shown :], request.config["stop_strings"])
        return stay

    def _cut_stops(self, shown: Sequence[int], strings: Sequence[str]) -> CutStops:
        tokenizer = self._pipeline.get_tokenizer()
        window = max(tokenizer.encode(s, add_special_tokens=False).input_ids.shape[1] for s in strings)
        return CutStops(lambda ids: decoded(tokenizer, ids), shown, strings, window)

    def _add(self, stay: int, prompt: Any, config: Mapping[str, Any]) -> Stay:
        ids = ov.Tensor(np.asarray(prompt, dtype=np.int64).reshape(1, -1))
        return Stay(self._pipeline.add_request(stay, ids, generation_config(config)), config, self._census)

    def step(self) -> Metrics:
        self._pipeline.step()
        metrics = self._pipeline.get_metrics()
        if self._census is not None:
            self._census.stepped(metrics.requests)
        size = getattr(metrics, "cache_size_in_bytes", None)
        return Metrics(metrics.scheduled_requests, metrics.cache_usage / 100.0, size)

    def measure(self, tokens: int) -> float:
        """Usage of the fullest pool, 0..1, while a prompt of `tokens` is inside. Nothing is inside afterwards."""
        self._learned += 1
        prompt = np.full(tokens, self._learned % 8)
        stay = self._add(_LEARNING_IDS + self._learned, prompt, {"max_new_tokens": 1, "ignore_eos": True})
        peak = 0.0
        while self._pipeline.has_non_finished_requests():
            peak = max(peak, self.step().usage)
        stay.collect()
        while not stay.released():
            self.step()
        self.step()
        return peak

    def canary(self) -> tuple[int, ...]:
        """What it makes of a few tokens, greedily and alone. Raises RuntimeError if nothing comes out."""
        self._learned += 1
        prompt = CANARY[: self._step_tokens]  # a step may have room for less, and take whole prompts only
        stay = self._add(_LEARNING_IDS + self._learned, prompt, {"max_new_tokens": len(CANARY), "ignore_eos": True})
        answer: list[int] = []
        while self._pipeline.has_non_finished_requests():
            self.step()
            answer += stay.collect()[0]
        while not stay.released():
            self.step()
        self.step()
        if not answer:
            raise RuntimeError("the canary, a generation of a few tokens before all others, came back empty")
        return tuple(answer)

    def la_pool(self) -> int | None:
        """Linear-attention blocks, 0 on a plain model; None where the release does not tell (before 2026.4)."""
        return getattr(self._pipeline.get_metrics(), "la_peak_pool_blocks", None)

    def cache_bytes(self) -> int | None:
        return getattr(self._pipeline.get_metrics(), "cache_size_in_bytes", None)

    def tokens(self) -> int:
        """That the tokenizer knows."""
        return len(self._pipeline.get_tokenizer().get_vocab())

    def become(self, facts: EngineFacts) -> None:
        self._facts = facts


# --- loading -----------------------------------------------------------------------------------------------------


def load(spec: Mapping[str, Any]) -> GenAIEngine:
    """From the boot spec (`GenAIHost`). Raises BootRefusedError, whatever went wrong."""
    if (defect := preflight(spec["models_path"], str(spec["device"]))) is not None:
        raise BootRefusedError(*defect)
    try:
        return _load(spec)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise BootRefusedError(*diagnose(spec["device"], text, served=bool(spec.get("served")))) from error


def _load(spec: Mapping[str, Any]) -> GenAIEngine:
    version = importlib.metadata.version("openvino-genai")
    hybrid = _looks_hybrid(Path(spec["models_path"]))
    insist = bool(spec["insist_prefix_caching"])
    plan = _pools.plan(spec["scheduler"], hybrid=hybrid, insist_prefix_caching=insist, version=version)
    engine = _construct(spec, plan)
    engine.measure(1)
    if (told := engine.la_pool()) is not None and bool(told) != hybrid:
        del engine  # its memory is needed for the second one
        plan = _pools.plan(spec["scheduler"], hybrid=not hybrid, insist_prefix_caching=insist, version=version)
        engine = _construct(spec, plan)
    return _with_facts(engine, spec, plan, version)


def _construct(spec: Mapping[str, Any], plan: _pools.Plan) -> GenAIEngine:
    config = genai.SchedulerConfig()
    for name, value in plan.scheduler.items():
        setattr(config, name, value)
    pipeline = genai.ContinuousBatchingPipeline(
        spec["models_path"], config, spec["device"], dict(spec["properties"]), dict(spec["tokenizer_properties"])
    )
    return GenAIEngine(pipeline, config.max_num_batched_tokens, proof_in_use())


def proof_in_use() -> str:
    """How this release proves that it let go of a request."""
    return "perf_metrics" if hasattr(genai.py_openvino_genai.GenerationHandle, "get_perf_metrics") else "request_count"


def _with_facts(engine: GenAIEngine, spec: Mapping[str, Any], plan: _pools.Plan, version: str) -> GenAIEngine:
    whole = not plan.scheduler.get("dynamic_split_fuse", True)
    most = engine.step_tokens if whole else None
    pools = _pools.learn(
        plan, engine.measure, la_pool=lambda: _la_pool(engine, plan), device=spec["device"], longest=most
    )
    warning = untested(version)
    engine.become(
        EngineFacts(
            device=spec["device"],
            versions={"openvino-genai": version, "openvino": importlib.metadata.version("openvino")},
            pools=pools.facts,
            block_size=pools.block_size,
            cache_bytes=engine.cache_bytes(),
            vocab_size=_vocab_size(Path(spec["models_path"]), engine),
            running_max=pools.running_max,
            probe_blocks=pools.probe_blocks,
            max_prompt_tokens=most,
            hybrid=plan.hybrid,
            proof=engine.proof,
            findings=(*plan.findings, *pools.findings, *([warning] if warning else [])),
            canary=engine.canary(),
            exact=spec["device"] == "CPU" and _EXACT in spec["properties"].items(),
        )
    )
    return engine


def _la_pool(engine: GenAIEngine, plan: _pools.Plan) -> int:
    """As the engine tells, or else as configured. A hybrid of which neither is known is a ValueError."""
    told = engine.la_pool() if engine.la_pool() is not None else plan.linear
    if plan.hybrid and told is None:
        raise ValueError("this release of openvino-genai does not tell its linear-attention pool: set num_kv_blocks")
    return told or 0


def _looks_hybrid(models_path: Path) -> bool:
    """From the names of the model's inputs; the engine's own word, after its first step, overrides this."""
    model = models_path / "openvino_model.xml"
    if not model.is_file():
        model = models_path / "openvino_language_model.xml"
    return model.is_file() and _LINEAR_INPUT.search(model.read_bytes()) is not None


def _vocab_size(models_path: Path, engine: GenAIEngine) -> int | None:
    """Rows of the embedding, from config.json; the tokenizer's number where there is none."""
    try:
        config = json.loads((models_path / "config.json").read_text(encoding="utf-8"))
        size = config.get("vocab_size") or config["text_config"]["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return engine.tokens() or None
    return int(size)
