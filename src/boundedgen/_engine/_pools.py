"""How many blocks of which size an engine has: what to configure, and how to learn the rest exactly.

The engine tells one number only, the usage of its fullest pool. A request of one token holds one block of each pool,
so that its usage is one over the smallest pool; longer prompts tell the block size, and the KV pool where another one
is smaller. Source: openvino-genai 2026.4.1, each rule a test in tests/process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve, field, frozen

from boundedgen._core._events import PoolFacts
from boundedgen._engine._findings import found
from boundedgen._kinds import TEXT, Kind

Measure = Callable[[int], float]  #: tokens of a prompt -> usage of the fullest pool while it is inside, 0..1

KV, LINEAR, DRAFT = "kv", "linear_attention", "draft"
PROBE = 1  #: blocks of every pool that the probe needs: one token of prompt, one new
MULTIPLIER = 8  #: the engine's least automatic cache_interval_multiplier
_BLOCK_SIZES = (8, 16, 32, 64, 128)
_HUGE = 1 << 62
_DEFAULT_SEQS = _DEFAULT_BATCHED = 256  # SchedulerConfig's
_LONGEST = 16_384  #: tokens spent at most on learning the KV pool of a hybrid
_MODEST = 2048  #: tokens spent at most on checking its block size
_PATIENCE_S = 10.0


@frozen
class Plan:
    """What the scheduler is configured with, the probe's share included."""

    scheduler: Mapping[str, Any]
    hybrid: bool
    caching: bool
    max_num_seqs: int  #: the user's; one less where the probe's could not come on top
    kv: int | None  #: blocks in all; None: to be learned
    linear: int | None  #: the same; None on plain models and where the engine decides
    multiplier: int = MULTIPLIER
    findings: tuple[str, ...] = ()
    kind: Kind = TEXT
    draft: int | None = None  #: blocks of the draft model's pool in all

    @property
    def grown(self) -> bool:
        """The probe's blocks come on top of what the user gave; otherwise they are taken out of it."""
        return self.kv is not None


@frozen
class Pools:
    facts: tuple[PoolFacts, ...]
    block_size: int
    running_max: int
    findings: tuple[str, ...] = field(default=())

    @property
    def probe_blocks(self) -> Mapping[str, int]:
        return {pool.name: PROBE for pool in self.facts if pool.blocks > PROBE}


def plan(
    scheduler: Mapping[str, Any], *, hybrid: bool, insist_prefix_caching: bool, version: str, kind: Kind = TEXT
) -> Plan:
    """The configuration to load with. Raises ValueError where the cache would have no bound."""
    settings = dict(scheduler)
    blocks = int(settings.get("num_kv_blocks") or 0)
    if not blocks and not settings.get("cache_size"):
        raise ValueError("the cache needs a bound: set num_kv_blocks or cache_size")
    seqs = int(settings.get("max_num_seqs", _DEFAULT_SEQS))
    settings["max_num_seqs"] = grown = min(seqs + PROBE, max(seqs, _most_seqs(settings)))
    if blocks:
        settings["num_kv_blocks"] = blocks + PROBE
    kv = blocks + PROBE if blocks else None
    caching = bool(settings.get("enable_prefix_caching", False))
    base = Plan(settings, hybrid, caching, min(seqs, grown - PROBE), kv, None, kind=kind, draft=_draft(kind, blocks))
    return _plan_hybrid(base, blocks, insist_prefix_caching, version) if hybrid else base


def _draft(kind: Kind, blocks: int) -> int | None:
    """As many as the main model has, if nobody says: then it is never the fuller one."""
    if kind.draft is None:
        return None
    asked = kind.draft["num_kv_blocks"] or blocks
    if not asked:
        raise ValueError("the draft model's cache needs a bound too: set scheduler_config.num_kv_blocks")
    return int(asked) + PROBE


def _most_seqs(settings: Mapping[str, Any]) -> int:
    """Without dynamic_split_fuse the engine wants max_num_seqs <= max_num_batched_tokens."""
    if settings.get("dynamic_split_fuse", True):
        return _HUGE
    return int(settings.get("max_num_batched_tokens", _DEFAULT_BATCHED))


def _plan_hybrid(base: Plan, kv_asked: int, insist: bool, version: str) -> Plan:
    text = found("hybrid_prefix_caching", version) if base.caching else None
    if text and not insist:
        base = evolve(base, caching=False, findings=(f"enable_prefix_caching was turned off: {text}",))
    elif text:
        base = evolve(base, findings=(f"enable_prefix_caching was kept on by request: {text}",))
    settings = {**base.scheduler, "enable_prefix_caching": base.caching}
    asked = int(settings.get("num_linear_attention_blocks") or 0)
    if not base.caching:
        linear: int | None = (asked or min(base.max_num_seqs, _HUGE) * base.kind.linear_each) + PROBE
    else:
        base = evolve(base, multiplier=int(settings.get("cache_interval_multiplier") or MULTIPLIER))
        settings["cache_interval_multiplier"] = base.multiplier
        most = asked or -(-kv_asked // base.multiplier)
        linear = most + PROBE if most else None
    if linear is not None:
        settings["num_linear_attention_blocks"] = linear
    return evolve(base, scheduler=settings, linear=linear)


def learn(plan: Plan, measure: Measure, *, la_pool: Callable[[], int], device: str, longest: int | None) -> Pools:
    """The pools as they are. `la_pool()` is the engine's `la_peak_pool_blocks`; `longest`: prompt tokens at most."""
    smallest = _over(measure(1))
    linear = la_pool()
    longest = min(longest or _LONGEST, _LONGEST)
    if not linear:
        return _learn_plain(plan, smallest, measure, device, longest)
    kv, findings = _learn_kv(plan, smallest, linear, measure, device, longest)
    size = _hybrid_block_size(plan, kv, linear, measure, device, longest)
    span = size * plan.multiplier if plan.caching else None
    each = 1 if plan.caching else plan.kind.linear_each
    facts = (PoolFacts(KV, kv, size, plan.kind.lookahead), PoolFacts(LINEAR, linear, span, each=each))
    running = plan.max_num_seqs if plan.caching else min(plan.max_num_seqs, (linear - PROBE) // each)
    return Pools(facts, size, running, (*findings, *_differences(plan, kv, linear)))


def _hybrid_block_size(plan: Plan, kv: int, linear: int, measure: Measure, device: str, longest: int) -> int:
    """Measured where a prompt of reasonable length makes the KV pool the fullest one."""
    usual = _default_block_size(device)
    if plan.caching:
        tokens = usual * plan.multiplier
        tells = plan.multiplier * linear > kv
    else:
        tokens = usual * (kv // linear + 2)
        tells = True
    if not tells or tokens > min(longest, usual * kv, _MODEST):
        return usual
    return _block_size(kv, tokens, measure, device)


def _learn_plain(plan: Plan, kv: int, measure: Measure, device: str, longest: int) -> Pools:
    size = _block_size(kv, min(65, 8 * kv, longest), measure, device)
    pools = [PoolFacts(KV, kv, size, plan.kind.lookahead)]
    if plan.draft is not None:
        pools.append(PoolFacts(DRAFT, plan.draft, size, plan.kind.assistant))
    return Pools(tuple(pools), size, plan.max_num_seqs, _differences(plan, kv, None))


def _learn_kv(
    plan: Plan, smallest: int, linear: int, measure: Measure, device: str, longest: int
) -> tuple[int, tuple[str, ...]]:
    if plan.kv is not None:
        return plan.kv if smallest == linear and plan.kv >= linear else smallest, ()
    if smallest < linear:
        return smallest, ()
    if plan.caching:
        kv = (linear - 1) * plan.multiplier + 1
        return kv, (f"the KV pool has at least {kv} blocks and is used up to there; num_kv_blocks makes it exact",)
    return _grow(linear, measure, _default_block_size(device), longest)


def _grow(linear: int, measure: Measure, size: int, longest: int) -> tuple[int, tuple[str, ...]]:
    """A prompt that fills more of the KV pool than one sequence does of the other one tells the KV pool's size."""
    until = time.monotonic() + _PATIENCE_S
    blocks = 1
    while blocks * 2 * size <= longest and time.monotonic() < until:
        blocks *= 2
        usage = measure(blocks * size)
        if usage * linear > 1.0 + 1e-3:
            return round(blocks / usage), ()
    kv = blocks * linear
    return kv, (f"the KV pool has at least {kv} blocks and is used up to there; num_kv_blocks makes it exact",)


def _over(usage: float) -> int:
    if usage <= 0.0:
        raise ValueError("the engine reports no cache usage for a request that is inside")
    return round(1.0 / usage)


def _default_block_size(device: str) -> int:
    return 16 if "GPU" in device else 32


def _block_size(kv: int, tokens: int, measure: Measure, device: str) -> int:
    """From the blocks that a prompt of `tokens` holds; the device's usual size where several would fit."""
    blocks = round(measure(tokens) * kv)
    possible = [size for size in _BLOCK_SIZES if -(-tokens // size) == blocks]
    usual = _default_block_size(device)
    if not possible:
        raise ValueError(f"a prompt of {tokens} tokens holds {blocks} of {kv} blocks: no block size known fits that")
    return usual if usual in possible else possible[0]


def _differences(plan: Plan, kv: int, linear: int | None) -> tuple[str, ...]:
    pairs = ((KV, plan.kv, kv), (LINEAR, plan.linear, linear))
    return tuple(
        f"the {name} pool has {real} blocks where {asked} were configured; the engine's own number is used"
        for name, asked, real in pairs
        if asked is not None and real is not None and asked != real
    )
