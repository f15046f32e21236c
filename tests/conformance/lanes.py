"""Both ways to run a script: on the real engine in a laboratory, and on the simulated one of the same size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field
from conformance import admitted, real_loop
from conformance.scripts import Admit, Script, Settings, dump
from conformance.traces import Loads, Trace, differences, ends, record
from genai import raw
from genai.raw import Lab

from boundedgen._core._events import PoolFacts, Progress, StepRaised
from boundedgen.abc import Request
from boundedgen.testing._sim import SimEngine
from boundedgen.testing._sim_model import SimModel

MODELS = {"plain": raw.PLAIN, "hybrid": raw.HYBRID}
BLOCK = {"CPU": 32, "GPU": 16}
F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
PATIENCE_S = 250.0


@define(eq=False)
class RealLane:
    """The real loop and engine, of any settings, on one device."""

    lab: Lab
    device: str = "CPU"
    properties: Mapping[str, str] = field(factory=lambda: dict(F32))
    _said: dict[tuple[Any, ...], list[int]] = field(factory=dict)
    _numbers: Iterator[int] = field(factory=itertools.count)

    def facts(self, settings: Settings) -> dict[str, Any]:
        return self.lab.run_within(PATIENCE_S, real_loop.facts, self._spec(settings))

    def run(self, settings: Settings, scripts: Sequence[Script]) -> list[Trace]:
        spec = self._spec(settings)
        stops = [
            {str(one.stay): self.end(settings.model, one)[1] for one in s.admissions() if one.stop_at} for s in scripts
        ]
        return self.lab.run_within(PATIENCE_S, real_loop.run, spec, [dump(script) for script in scripts], stops)

    def end(self, model: str, one: Admit) -> tuple[int, int]:
        """Where in its output an admission ends by a stop token, counted from 1, and which token that is."""
        assert one.stop_at is not None
        key = (model, tuple(one.ids()))
        if key not in self._said:  # by an engine of its own, so that the prompt is new to any other
            spec = self._spec(Settings(model))
            self._said[key] = self.lab.run_within(PATIENCE_S, real_loop.greedy, spec, one.ids(), one.stop_at + 40)
        said = self._said[key]
        at = next(n for n in range(one.stop_at - 1, len(said)) if said[n] not in said[:n])
        return at + 1, said[at]

    def fresh(self, script: Script) -> Script:
        """With prompts that no engine here has seen."""
        return script.reworded(next(self._numbers))

    def _spec(self, settings: Settings) -> dict[str, Any]:
        return engine_spec(settings, self.device, self.properties)


def engine_spec(settings: Settings, device: str = "CPU", properties: Mapping[str, str] = F32) -> dict[str, Any]:
    """The boot spec, as plain data."""
    blocks = settings.tokens // BLOCK[device] - 1  # and the probe's
    return {
        "models_path": MODELS[settings.model],
        "scheduler": {"num_kv_blocks": blocks, **settings.scheduler},
        "device": device,
        "properties": dict(properties),
        "tokenizer_properties": {},
        "insist_prefix_caching": False,
        "counted": settings.counted,
    }


def model_of(facts: Mapping[str, Any], ends: Mapping[tuple[int, ...], int]) -> SimModel:
    """What the simulated engine has to be to be of the size of the real one. `ends`: of stop tokens, by prompt."""
    return SimModel(
        pools=tuple(PoolFacts(**pool) for pool in facts["pools"]),
        running_max=facts["running_max"],
        probe_blocks=facts["probe_blocks"],
        max_num_batched_tokens=facts["step_tokens"],
        split_fuse=facts["max_prompt_tokens"] is None,
        proof=facts["proof"],
        natural_length=lambda prompt: ends.get(tuple(prompt)),
        boot_s=0.0,
        step_s=1.0,
        token_s=0.0,
    )


def simulate(model: SimModel, script: Script, rounds: int = 3000) -> Trace:
    """The same on the simulated engine: its commands are all sent beforehand, each with its instant."""
    engine = SimEngine(1, 0.0, model)
    for at, command in script.commands:
        if isinstance(command, Admit):
            ids, fields = command.ids(), command.fields()
            engine.admit(Request(command.stay, ids, fields, command.deadline, claim=command.claim), float(at))
        else:
            engine.stop(command.stay, float(at))
    loads, trace = Loads(), Trace()
    for instant in range(rounds):
        reports = [report for report in engine.receive(float(instant)) if isinstance(report, Progress | StepRaised)]
        trace += [record(report, loads.of(report)) for report in reports]
        loads.see(engine.pulse(float(instant)))
        if engine.next_event() is None and instant >= script.last:
            return trace
    return [*trace, {"unfinished": rounds}]


def compare(lane: RealLane, settings: Settings, script: Script, *, admit: bool = True) -> list[str]:
    """The differences that are not admitted, or with `admit` False all of them."""
    script = lane.fresh(script)
    (real,) = lane.run(settings, [script])
    ended = {tuple(one.ids()): lane.end(settings.model, one)[0] for one in script.admissions() if one.stop_at}
    simulated = simulate(model_of(lane.facts(settings), ended), script)
    known = admitted.of(settings, script) if admit else []
    if any(one.keys is None for one in known):
        return [] if ends(real) == ends(simulated) else [f"real {ends(real)}, simulated {ends(simulated)}"]
    keys = frozenset(key for one in known for key in one.keys or ())
    return differences(real, simulated, leave_out=keys)
