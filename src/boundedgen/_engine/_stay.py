"""One request inside OpenVINO GenAI as an `EngineStay`, and the two proofs that the engine let go of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]

from boundedgen._core._events import SequenceResult
from boundedgen._engine._cut_stops import CutStops
from boundedgen._engine._drafting import Drafted
from boundedgen._engine._seam import EngineStay

_RUNNING = genai.GenerationStatus.RUNNING
_FINISHED = genai.GenerationStatus.FINISHED
_IGNORED = genai.GenerationStatus.IGNORED
_NONE = genai.GenerationFinishReason.NONE
_LENGTH = genai.GenerationFinishReason.LENGTH
_COUNTED = 2  #: steps
_SETS = ("stop_strings", "stop_token_ids")


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
        self.drafted: Drafted | None = None  #: of one whose steps can give several tokens
        self.cut_stops: CutStops | None = None  #: of one that is continued
        self._census = census
        if census is not None:
            census.inside.add(self)
        self._wanted = int(config.get("num_return_sequences", 1))
        self._single = self._wanted == 1 and int(config.get("num_beams", 1)) == 1
        self._probs = bool(config.get("logprobs", 0))
        self._left = int(config["max_new_tokens"])
        self._ends, self._ignored = _ends_of(config), bool(config.get("ignore_eos"))
        self._last: Any = None  # output that was read
        self._results: tuple[SequenceResult, ...] = ()
        self.steps_since_end = -1  #: steps begun since it was stopped or seen ended; -1: neither

    def collect(self) -> tuple[list[int], list[float], str]:
        ids, probs = self._read() if self._single else ([], [])
        if ids and self.drafted is not None:
            kept, why = self.drafted.cut(ids, lost=self._handle.get_status() == _IGNORED)
            ids, probs = ids[:kept], probs[:kept]
            if why:
                self.stop()
                return ids, probs, why
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

    def prompt_tokens(self) -> int | None:
        if self._census is not None:
            return None
        return int(self._handle.get_perf_metrics().get_num_input_tokens())

    def late_tokens(self) -> int:
        """Only of one sequence: what several show comes at once, and was computed before the stop. Nor of one with
        drafts: what comes late may be candidates."""
        return len(self._read()[0]) if self._single and self.drafted is None else 0

    def ends(self) -> frozenset[int]:
        """Token ids that surely end it; while ends are ignored, the engine ignores stop_token_ids too."""
        return frozenset() if self._ignored or self._ends is None else self._ends


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
