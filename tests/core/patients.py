"""Machines, models and trials that are made up, for the doctor to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import evolve

from boundedgen._core._admission import Capacity
from boundedgen._core._events import EngineFacts, PoolFacts
from boundedgen._doctor._asked import Asked, asked
from boundedgen._doctor._finding import Check, Finding, Level, found
from boundedgen._doctor._machine import Device, Machine, Place, Survey
from boundedgen._doctor._trial import Rate, Step, Trial
from boundedgen._engine._devices import Part
from boundedgen._stats import ProbeResult, ProbeVerdict

PLAIN = Path(__file__).resolve().parents[1] / "models" / "plain"
CPU = Device(name="CPU", full_name="A processor")
GPU = Device(name="GPU", full_name="Intel(R) Arc(TM) A770 Graphics", kind="DISCRETE", memory_bytes=16_000_000_000)
PARTS = tuple(Part(name, None) for name in ("loader", "driver", "render node", "permission"))
BLOCK = 32


def place(path: str, **changes: Any) -> Place:
    whole = Place(path=path, exists=True, writable=True, free_bytes=50_000_000_000)
    return evolve(whole, **changes)


def survey(*devices: Device, **changes: Any) -> Survey:
    return evolve(Survey(parts=PARTS, devices=devices or (CPU,), drivers={}, failed={}), **changes)


def machine(**changes: Any) -> Machine:
    """One on which everything is as it should be; no GPU is asked for."""
    whole = Machine(
        python="3.12.3",
        pythons=("3.11", "3.12", "3.13"),
        system="Linux 6.1 x86_64",
        versions={
            "boundedgen": "0.1.0",
            "openvino": "2026.4.1",
            "openvino-genai": "2026.4.1.0",
            "openvino-tokenizers": "2026.4.1.0",
        },
        survey=survey(),
        kernel={"pidfd_open": "", "memfd_create": ""},
        limits={"open files": 65_536, "address space": None, "processes": None},
        processors=8,
        quota=None,
        memory=16_000_000_000,
        shm=place("/dev/shm", free_bytes=64 << 20),
        temp=place("/tmp"),
        caches=(),
        holder=None,
        lock_failed="",
        engines=(),
    )
    return evolve(whole, **changes)


def wish(model: Path | str | None = PLAIN, **options: Any) -> Asked:
    """What is asked for: by default the small model, on the CPU."""
    return asked(
        None if model is None else str(model), **{"device": "CPU", "scheduler": '{"num_kv_blocks": 64}', **options}
    )


def facts(kv: int = 64, **changes: Any) -> EngineFacts:
    """Of a plain model with so many blocks, without the probe's."""
    whole = EngineFacts(
        device="CPU",
        versions={},
        pools=(PoolFacts("kv", kv + 1, BLOCK),),
        block_size=BLOCK,
        cache_bytes=(kv + 1) * 1_000_000,
        vocab_size=259,
        running_max=256,
        probe_blocks={"kv": 1},
        max_prompt_tokens=None,
        hybrid=False,
        proof="perf_metrics",
    )
    return evolve(whole, **changes)


def hybrid_facts(kv: int = 64, linear: int = 8, span: int | None = None) -> EngineFacts:
    pools = (PoolFacts("kv", kv + 1, BLOCK), PoolFacts("linear_attention", linear + 1, span))
    ones = {"kv": 1, "linear_attention": 1}
    return facts(kv, pools=pools, probe_blocks=ones, hybrid=True, running_max=linear if span is None else 256)


STEPS = (
    *(Step(4, 0.5), Step(1, 0.1)),
    *(Step(256, 2.0), Step(256, 1.0)),
    *(Step(8, 0.3), *(Step(4, 0.05) for _ in range(20))),
)


def trial(of: EngineFacts | None = None, **changes: Any) -> Trial:
    """A good one."""
    of = of or facts()
    whole = Trial(
        facts=of,
        capacity=Capacity.of(of, None),
        load_s=4.0,
        cache_bytes=of.cache_bytes,
        rss_bytes=800_000_000,
        probe=ProbeResult(verdict=ProbeVerdict.OK, seconds=0.02),
        steps=STEPS,
        rates=(Rate(1, 20.0, 0.2), Rate(4, 60.0, 0.3)),
    )
    return evolve(whole, **changes)


def of(findings: Any, check: str) -> list[Finding]:
    """Those of one check, without the name of it."""
    return [evolve(one, check="") for one in findings if one.check == check]


def levels(findings: Any, check: str) -> list[Level]:
    return [one.level for one in of(findings, check)]


def look(checks: tuple[Check[Any], ...], case: Any, check: str) -> list[Finding]:
    return of(found(checks, case), check)
