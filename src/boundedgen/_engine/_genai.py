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
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import openvino as ov  # type: ignore[import-untyped,unused-ignore]
import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]

from boundedgen._core._events import EngineFacts
from boundedgen._engine import _pools
from boundedgen._engine._cut_stops import CutStops
from boundedgen._engine._devices import diagnose, preflight
from boundedgen._engine._drafting import Drafted, Drafts, StopStrings, engine_properties, other_vocabulary
from boundedgen._engine._findings import untested
from boundedgen._engine._lora import adapter_properties
from boundedgen._engine._releases import release_of
from boundedgen._engine._seam import BootRefusedError, EngineStay, Metrics
from boundedgen._engine._stay import Census, Stay, generation_config
from boundedgen._kinds import Chosen
from boundedgen._text import decoded
from boundedgen._vision import sees
from boundedgen.abc import Image, Request

_LINEAR_INPUT = re.compile(rb"cache_params\.past\.(?!key\b|value\b)\w+\.\d+")
_LEARNING_IDS = (1 << 63) + 1  #: request ids of the requests before Ready; stays count from 1
CANARY = (1, 2, 3, 4)  #: token ids that every vocabulary has; prompt and answer fit into one block of every pool
_EXACT = ("INFERENCE_PRECISION_HINT", "f32")  #: measured on the CPU alone; a GPU may add up in another order each time


# --- for models that see ---------------------------------------------------------------------------------------------

#: Of which text is made that has as many tokens as there are of them, whatever joins tokens.
_UNITS = (" a", " the", " x", "0", "\n", "a", " 1")


def _tensor(image: Image) -> Any:
    pixels = np.frombuffer(image.data, dtype=np.uint8).reshape(image.height, image.width, 3)
    return ov.Tensor(np.ascontiguousarray(pixels))


def text_of(tokenizer: Any, tokens: int, kind: int = 0) -> str:
    """A text of so many tokens, as the engine counts them; of at least one. Others for other `kind`s, where it can."""
    for unit in (*_UNITS[kind % len(_UNITS) :], *_UNITS):
        base = _count(tokenizer, unit) - 1
        count = max(1, tokens - base)
        if _count(tokenizer, unit * count) == max(tokens, base + 1):
            return unit * count
    raise ValueError(f"no text of {tokens} tokens could be made with this tokenizer")


def _count(tokenizer: Any, text: str) -> int:
    return int(tokenizer.encode(text).input_ids.shape[1])


# --- the pipeline ------------------------------------------------------------------------------------------------


@final
class GenAIEngine:
    """A loaded pipeline whose pools are known."""

    def __init__(
        self,
        pipeline: genai.ContinuousBatchingPipeline,
        step_tokens: int,
        proof: str,
        chosen: Chosen | None = None,
        sees: bool = False,
    ) -> None:
        self._pipeline = pipeline
        self._chosen, self._drafts = chosen, Drafts()
        self._sees = sees
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
        prompt = request.prompt if request.text is None else request.text
        stay = self._add(request.stay, prompt, request.config, request.shown, request.images)
        if stay.drafted is None and request.shown and request.config.get("stop_strings"):
            stay.cut_stops = self._cut_stops(request.prompt[-request.shown :], request.config["stop_strings"])
        return stay

    def _cut_stops(self, shown: Sequence[int], strings: Sequence[str]) -> CutStops:
        tokenizer = self._pipeline.get_tokenizer()
        window = max(tokenizer.encode(s, add_special_tokens=False).input_ids.shape[1] for s in strings)
        return CutStops(lambda ids: decoded(tokenizer, ids), shown, strings, window)

    def _add(
        self,
        stay: int,
        prompt: str | Sequence[int],
        config: Mapping[str, Any],
        shown: int = 0,
        images: Sequence[Image] = (),
    ) -> Stay:
        """`prompt`: text for a model that sees, which takes nothing else: token ids may end its process."""
        chosen, strings = self._chosen, ()
        if chosen is not None:
            config = chosen.completed(config)
            if chosen.kind.cuts_stop_strings:
                strings = config.pop("stop_strings", ())
                config.pop("include_stop_str_in_output", None)
        made = Stay(self._hand_over(stay, prompt, images, config), config, self._census)
        if chosen is not None and chosen.drafted:
            stops = self._stops(strings, prompt[-shown:] if shown else ()) if strings else None
            made.drafted = Drafted(
                self._drafts, config["num_assistant_tokens"], config["max_new_tokens"], made.ends(), stops
            )
        return made

    def _hand_over(self, stay: int, prompt: Any, images: Sequence[Image], config: Mapping[str, Any]) -> Any:
        if not isinstance(prompt, str):
            ids = ov.Tensor(np.asarray(prompt, dtype=np.int64).reshape(1, -1))
            return self._pipeline.add_request(stay, ids, generation_config(config))
        fields = generation_config({**config, "apply_chat_template": False})
        if not images:
            return self._pipeline.add_request(stay, prompt, fields)
        return self._pipeline.add_request(stay, prompt, [_tensor(i) for i in images], generation_config=fields)

    def _stops(self, strings: Sequence[str], shown: Sequence[int]) -> StopStrings:
        tokenizer = self._pipeline.get_tokenizer()
        return StopStrings(lambda ids: decoded(tokenizer, ids), strings, shown)

    def step(self) -> Metrics:
        self._pipeline.step()
        metrics = self._pipeline.get_metrics()
        if self._census is not None:
            self._census.stepped(metrics.requests)
        size = getattr(metrics, "cache_size_in_bytes", None)
        return Metrics(metrics.scheduled_requests, metrics.cache_usage / 100.0, size, *self._drafts.take())

    def measure(self, tokens: int) -> float:
        """Usage of the fullest pool, 0..1, while a prompt of `tokens` is inside. Nothing is inside afterwards."""
        self._learned += 1
        stay = self._add_own(tokens, [self._learned % 8] * tokens, 1)
        peak = 0.0
        while self._pipeline.has_non_finished_requests():
            peak = max(peak, self.step().usage)
        stay.collect()
        while not stay.released():
            self.step()
        self.step()
        return peak

    def _add_own(self, tokens: int, prompt: Sequence[int], new: int) -> Stay:
        """A request before Ready: `prompt`, or, for a model that sees, any text of as many tokens."""
        number, config = _LEARNING_IDS + self._learned, {"max_new_tokens": new, "ignore_eos": True}
        if not self._sees:
            return self._add(number, prompt, config)
        return self._add(number, text_of(self._pipeline.get_tokenizer(), tokens, self._learned), config)

    def canary(self) -> tuple[int, ...]:
        """What it makes of a few tokens, greedily and alone. Raises RuntimeError if nothing comes out."""
        self._learned += 1
        prompt = CANARY[: self._step_tokens]  # a step may have room for less, and take whole prompts only
        stay = self._add_own(len(prompt), prompt, len(CANARY))
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
    except BootRefusedError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise BootRefusedError(*diagnose(spec["device"], text, served=bool(spec.get("served")))) from error


def _load(spec: Mapping[str, Any]) -> GenAIEngine:
    version = importlib.metadata.version("openvino-genai")
    hybrid = _looks_hybrid(Path(spec["models_path"]))
    insist, chosen = bool(spec["insist_prefix_caching"]), Chosen.of(spec.get("kind"))
    if chosen is not None:
        _check_kind(chosen, spec)
    plan_of = partial(_pools.plan, spec["scheduler"], insist_prefix_caching=insist, version=version, chosen=chosen)
    plan = plan_of(hybrid=hybrid)
    engine = _construct(spec, plan)
    engine.measure(1)
    if (told := engine.la_pool()) is not None and bool(told) != hybrid:
        del engine  # its memory is needed for the second one
        plan = plan_of(hybrid=not hybrid)
        engine = _construct(spec, plan)
    return _with_facts(engine, spec, plan, version)


def _construct(spec: Mapping[str, Any], plan: _pools.Plan) -> GenAIEngine:
    config = genai.SchedulerConfig()
    for name, value in plan.scheduler.items():
        setattr(config, name, value)
    of_kind = engine_properties(plan.chosen, plan.scheduler, plan.extra)
    properties = {**spec["properties"], **of_kind, **adapter_properties(spec.get("adapters", ()))}
    pipeline = genai.ContinuousBatchingPipeline(
        spec["models_path"], config, spec["device"], properties, dict(spec["tokenizer_properties"])
    )
    seeing = sees(Path(spec["models_path"]))
    return GenAIEngine(pipeline, config.max_num_batched_tokens, proof_in_use(), plan.chosen, seeing)


def _check_kind(chosen: Chosen, spec: Mapping[str, Any]) -> None:
    """What only this process can tell of it."""
    kind, path = chosen.kind, spec["models_path"]
    if kind.needs_proof and proof_in_use() != "perf_metrics":
        raise BootRefusedError("model", f"{kind.name}= needs a newer openvino-genai: {kind.needs_proof}", True)
    if kind.extra_pool and (defect := other_vocabulary(path, chosen.settings["models_path"])) is not None:
        raise BootRefusedError("model", f"{kind.name}: {defect}", True)


def proof_in_use() -> str:
    """How this release proves that it let go of a request."""
    return "perf_metrics" if hasattr(genai.py_openvino_genai.GenerationHandle, "get_perf_metrics") else "request_count"


def _with_facts(engine: GenAIEngine, spec: Mapping[str, Any], plan: _pools.Plan, version: str) -> GenAIEngine:
    whole = not plan.scheduler.get("dynamic_split_fuse", True)
    most = engine.step_tokens if whole else None
    pools = _pools.learn(
        plan, engine.measure, la_pool=lambda: _la_pool(engine, plan), device=spec["device"], longest=most
    )
    warning, told = untested(version), release_of(version).told(hybrid=plan.hybrid)
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
            findings=(*plan.findings, *pools.findings, *told, *([warning] if warning else [])),
            canary=engine.canary(),
            exact=spec["device"] == "CPU" and _EXACT in spec["properties"].items(),
            drafted=0 if plan.chosen is None else plan.chosen.drafted,
            counts_proposed=plan.extra is not None,
            adapters=tuple((one["name"], one["weight"]) for one in spec.get("adapters", ())),
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
