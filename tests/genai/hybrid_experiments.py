"""Experiments on the raw engine with a hybrid model: linear attention beside full attention, two cache pools."""

from typing import Any

import numpy as np
from genai import raw
from genai.raw import HYBRID, add, finish, pipeline, pump, shared, status, step_error, steps, unread, usage

CRASHING = ((60, 80), (100, 80), (100, 20))  #: prompt and new tokens; each fits alone in 8 blocks


def pool_size(**scheduler: Any) -> int:
    """Linear-attention blocks in all, told after the first step."""
    pipe = pipeline(HYBRID, **scheduler)
    handle = add(pipe, 1, 5, 2)
    pipe.step()
    handle.stop()
    return int(pipe.get_metrics().la_peak_pool_blocks)


def pool_size_of_a_plain_model() -> int:
    pipe = shared(num_kv_blocks=8)
    finish(pipe, add(pipe, 1, 5, 2))
    return int(pipe.get_metrics().la_peak_pool_blocks)


def usage_follows_the_fuller_pool() -> list[float]:
    """cache_usage with 2 LA and 64 KV blocks: one short sequence, then one of 33 KV blocks."""
    found = []
    for length in (5, 32 * 32 + 1):
        pipe = pipeline(HYBRID, num_kv_blocks=64, max_num_seqs=2, max_num_batched_tokens=4096)
        handle = add(pipe, 1, length, 1)
        pipe.step()
        found.append(usage(pipe)[1])
        assert status(handle) == "FINISHED"
    return found


def blocks_with_caching(tokens: int, multiplier: int) -> float:
    """LA blocks that a prompt of so many tokens takes, of 64."""
    pipe = shared(
        HYBRID,
        num_kv_blocks=640,
        enable_prefix_caching=True,
        cache_interval_multiplier=multiplier,
        num_linear_attention_blocks=64,
        max_num_batched_tokens=4096,
    )
    handle = add(pipe, 1, raw.ids(tokens, seed=tokens), 1)
    pipe.step()
    assert status(handle) == "FINISHED"
    return usage(pipe)[1] * 64 / 100


def jam(stop_one: bool) -> dict[str, Any]:
    """Two orphans hold both linear-attention blocks while the KV cache is nearly empty; a one-token request comes."""
    pipe = shared(HYBRID, num_kv_blocks=512, max_num_seqs=2)
    orphans = [add(pipe, i, 20, 2000) for i in range(2)]
    steps(pipe, 5)
    newcomer = add(pipe, 9, 10, 1)
    steps(pipe, 95)
    metrics = pipe.get_metrics()
    picture = [
        metrics.requests,
        metrics.scheduled_requests,
        metrics.cache_usage,
        status(newcomer),
        len(unread(newcomer)),
    ]
    if stop_one:
        orphans[0].stop()
    served_at = next(
        (step for step in range(1, 100) if step_error(pipe) == "" and status(newcomer) == "FINISHED"), None
    )
    return {"picture": picture, "served_at": served_at}


def all_stop_while_others_wait() -> list[str]:
    pipe = shared(HYBRID, num_kv_blocks=512, max_num_seqs=2)
    orphans = [add(pipe, i, 20, 2000) for i in range(2)]
    steps(pipe, 5)
    waiting = [add(pipe, 10 + i, 10, 1) for i in range(4)]
    steps(pipe, 5)
    for handle in orphans:
        handle.stop()
    pump(pipe)
    return [status(handle) for handle in waiting]


def three_greedy_requests(model: str, **scheduler: Any) -> list[str]:
    """What the steps raised, and the states; the process may die."""
    pipe = pipeline(model, num_kv_blocks=8, **scheduler)
    handles = [add(pipe, i, prompt, new) for i, (prompt, new) in enumerate(CRASHING)]
    return [pump(pipe), *(status(handle) for handle in handles)]


def repeated_prompt_poisons(tokens: int, multiplier: int) -> list[str]:
    """A one-token request, the same again, and a bystander: errors of two steps, and of one after its stop."""
    pipe = pipeline(
        HYBRID,
        num_kv_blocks=256,
        enable_prefix_caching=True,
        cache_interval_multiplier=multiplier,
        num_linear_attention_blocks=64,
    )
    prompt = raw.ids(tokens)
    finish(pipe, add(pipe, 1, prompt, 1))
    bystander = add(pipe, 2, 10, 50)
    steps(pipe, 2)
    culprit = add(pipe, 3, prompt, 5)
    errors = [step_error(pipe), step_error(pipe)]
    culprit.stop()
    return [*errors, step_error(pipe), status(bystander)]


def repeated_prompts_differ(model: str, caching: bool, lengths: list[int], **scheduler: Any) -> list[int]:
    """The lengths at which a prompt's second run gives other greedy tokens than its first; no other has its prefix."""
    pipe = pipeline(model, num_kv_blocks=256, enable_prefix_caching=caching, **scheduler)
    different = []
    for length in lengths:
        prompt = raw.ids(length, seed=length)
        first, second = (finish(pipe, add(pipe, 2 * length + again, prompt, 12))[0] for again in range(2))
        if first != second:
            different.append(length)
    return different


def reserved_traffic(seed: int, requests: int) -> list[str]:
    """Mixed traffic that holds blocks of both pools for each request until its removal is proved: how each ended."""
    kv, la = 16, 4
    pipe = shared(HYBRID, num_kv_blocks=kv, max_num_seqs=la)
    random = np.random.default_rng(seed)
    queue = [
        (int(p), int(n))
        for p, n in zip(random.integers(1, 150, requests), random.integers(1, 100, requests), strict=True)
    ]
    held: dict[int, tuple[Any, int]] = {}
    stopped: set[int] = set()
    left: dict[int, int] = {}  #: steps that have returned since its end, where the release does not tell
    ended: list[str] = []
    for _ in range(5000):
        while queue and len(held) < la and sum(b for _, b in held.values()) + needed(*queue[-1]) <= kv:
            prompt, new = queue.pop()
            held[len(queue)] = (add(pipe, len(queue), prompt, new), needed(prompt, new))
        if not held:
            return ended
        if raised := step_error(pipe):
            return [*ended, raised]
        for request, (handle, _) in list(held.items()):
            if random.random() < 0.03:
                handle.stop()
                stopped.add(request)
            if request in stopped or status(handle) != "RUNNING":
                left[request] = left.get(request, -1) + 1
            if left.get(request, 0) >= 2 if (told := raw.proved(handle)) is None else told:
                ended.append("stopped" if request in stopped else status(handle))
                del held[request]
    return [*ended, "unfinished"]


def needed(prompt: int, new: int) -> int:
    return -(-(prompt + new - 1) // 32)
