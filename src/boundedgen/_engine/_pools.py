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
from boundedgen._engine._releases import release_of
from boundedgen._engine._seam import BootRefusedError
from boundedgen._kinds import Chosen

Measure = Callable[[int], float]  #: tokens of a prompt -> usage of the fullest pool while it is inside, 0..1

KV, LINEAR = "kv", "linear_attention"
PROBE = 1  #: blocks that the probe needs of a pool that is counted by tokens: one token of prompt, one new
MULTIPLIER = 8  #: the engine's least automatic cache_interval_multiplier
_BLOCK_SIZES = (8, 16, 32, 64, 128)
_ONE_DRAFTED = 1  #: of an answer of one token nothing is drafted, and yet the engine wants room for one
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
    chosen: Chosen | None = None
    extra: int | None = None  #: blocks of the pool that the kind brings with it, the probe's included

    @property
    def states(self) -> int:
        """Linear-attention blocks a sequence, while they are not counted by tokens."""
        return 1 + self.ahead(LINEAR)

    def ahead(self, pool: str) -> int:
        return 0 if self.chosen is None else self.chosen.ahead(pool)

    def probe(self, pool: str) -> int:
        """Blocks that the probe needs of it."""
        if pool != LINEAR or self.caching or self.chosen is None:
            return PROBE
        return PROBE + self.chosen.kind.ahead[LINEAR].of(_ONE_DRAFTED)

    @property
    def grown(self) -> bool:
        """The probe's blocks come on top of what the user gave; otherwise they are taken out of it."""
        return self.kv is not None


@frozen
class Pools:
    facts: tuple[PoolFacts, ...]
    block_size: int
    running_max: int
    plan: Plan
    findings: tuple[str, ...] = field(default=())

    @property
    def probe_blocks(self) -> Mapping[str, int]:
        needed = {pool.name: self.plan.probe(pool.name) for pool in self.facts}
        return {pool.name: needed[pool.name] for pool in self.facts if pool.blocks > needed[pool.name]}


def plan(
    scheduler: Mapping[str, Any],
    *,
    hybrid: bool,
    insist_prefix_caching: bool,
    version: str,
    chosen: Chosen | None = None,
) -> Plan:
    """The configuration to load with. Raises ValueError where the cache would have no bound, BootRefusedError where
    the kind of requests does not go with it."""
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
    base = Plan(settings, hybrid, caching, min(seqs, grown - PROBE), kv, None)
    if chosen is not None:
        base = _plan_kind(base, chosen, scheduler, version)
    return _plan_hybrid(base, blocks, insist_prefix_caching, version) if hybrid else base


def _plan_kind(base: Plan, chosen: Chosen, asked: Mapping[str, Any], version: str) -> Plan:
    """A step has room for all that decode, each with its candidates; or for all that there can be, prompts too."""
    kind = chosen.kind
    if base.hybrid and kind.not_hybrid:
        raise BootRefusedError("model", f"{kind.name}= does not go with this hybrid model: {kind.not_hybrid}", True)
    if base.hybrid and kind.hybrid_needs in (release := release_of(version)).lacks:
        words = f"openvino-genai {release.name} has not {kind.hybrid_needs}, and would answer otherwise; upgrade it"
        raise BootRefusedError("model", f"{kind.name}= does not go with this hybrid model: {words}", True)
    base = evolve(base, chosen=chosen)
    room, each = int(base.scheduler.get("max_num_batched_tokens", _DEFAULT_BATCHED)), 1 + chosen.drafted
    if kind.extra_pool:
        base = evolve(base, extra=int(chosen.settings["num_kv_blocks"]) + PROBE)
    if not kind.whole_steps:
        running = max(1, (room - PROBE) // each)
        if running >= base.max_num_seqs:
            return base
        text = (
            f"at most {running} sequences run at once: a step has room for {room} tokens (max_num_batched_tokens), and "
            f"each of them takes {each}"
        )
        findings = (text,) if "max_num_seqs" in asked else ()
        return evolve(base, max_num_seqs=running, findings=(*base.findings, *findings))
    whole = max(room, (base.kv or 0) * _BLOCK_SIZES[-1] + (base.max_num_seqs + PROBE) * each)
    settings = {**base.scheduler, "max_num_batched_tokens": whole}
    text = f"max_num_batched_tokens was raised to {whole}: {kind.name}= gives other tokens where a prompt is cut"
    findings = (text,) if "max_num_batched_tokens" in asked and whole > room else ()
    return evolve(base, scheduler=settings, findings=(*base.findings, *findings))


def _most_seqs(settings: Mapping[str, Any]) -> int:
    """Without dynamic_split_fuse the engine wants max_num_seqs <= max_num_batched_tokens."""
    if settings.get("dynamic_split_fuse", True):
        return _HUGE
    return int(settings.get("max_num_batched_tokens", _DEFAULT_BATCHED))


def _plan_hybrid(base: Plan, kv_asked: int, insist: bool, version: str) -> Plan:
    text = found("hybrid_prefix_caching", version) if base.caching else None
    if text and not insist:
        turned_off = f"enable_prefix_caching was turned off: {text}"
        base = evolve(base, caching=False, findings=(*base.findings, turned_off))
    elif text:
        base = evolve(base, findings=(*base.findings, f"enable_prefix_caching was kept on by request: {text}"))
    if base.caching and base.chosen is not None:
        name = base.chosen.kind.name
        raise BootRefusedError(
            "model", f"{name}= does not go with prefix caching on a hybrid model: leave it off", True
        )
    settings = {**base.scheduler, "enable_prefix_caching": base.caching}
    asked = int(settings.get("num_linear_attention_blocks") or 0)
    if not base.caching:
        linear: int | None = (asked or _states(base)) + base.probe(LINEAR)
        if asked and asked < base.states:
            text = f"num_linear_attention_blocks is {asked}, and each sequence needs {base.states} of them: raise it"
            raise BootRefusedError("model", text, True)
    else:
        base = evolve(base, multiplier=int(settings.get("cache_interval_multiplier") or MULTIPLIER))
        settings["cache_interval_multiplier"] = base.multiplier
        most = asked or -(-kv_asked // base.multiplier)
        linear = most + PROBE if most else None
    if linear is not None:
        settings["num_linear_attention_blocks"] = linear
    return evolve(base, scheduler=settings, linear=linear)


def _states(base: Plan) -> int:
    """For max_num_seqs sequences; where nobody set that, no more memory than without the kind."""
    seqs = min(base.max_num_seqs, _HUGE)
    if base.states == 1 or seqs < _DEFAULT_SEQS:
        return seqs * base.states
    return max(seqs, base.states)


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
    facts = (PoolFacts(KV, kv, size, plan.ahead(KV)), PoolFacts(LINEAR, linear, span, plan.ahead(LINEAR)))
    slots = (linear - plan.probe(LINEAR)) // plan.states
    running = plan.max_num_seqs if plan.caching else min(plan.max_num_seqs, slots)
    return Pools(facts, size, running, plan, (*findings, *_differences(plan, kv, linear)))


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
    facts = (PoolFacts(KV, kv, size, plan.ahead(KV)), *_extra(plan, device))
    return Pools(facts, size, plan.max_num_seqs, plan, _differences(plan, kv, None))


def _extra(plan: Plan, device: str) -> tuple[PoolFacts, ...]:
    """It is in none of the engine's figures: as it was configured."""
    if plan.chosen is None or plan.extra is None:
        return ()
    size = _default_block_size(str(plan.chosen.settings.get("device", device)))
    return (PoolFacts(plan.chosen.kind.extra_pool, plan.extra, size),)


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
