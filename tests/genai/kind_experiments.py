"""Experiments on the raw engine with prompt lookup and with a draft model: several tokens a step."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]
from genai.raw import F32, HYBRID, PLAIN, TESTS, config, proved, pump, status, step_error, tensor, unread, usage

SAME = PLAIN  #: the model as its own draft model: every candidate is accepted
OTHER = str(TESTS / "models" / "draft")
LOOKUP = {"num_assistant_tokens": 5, "max_ngram_size": 1}
K = 5
Script = Sequence[tuple[Sequence[int], int]]  #: prompt, new tokens


def settings(scheduler: Mapping[str, Any]) -> Any:
    made = genai.SchedulerConfig()
    for name, value in {"enable_prefix_caching": False, **scheduler}.items():
        setattr(made, name, value)
    return made


def drafting(draft: str | None, model: str = PLAIN, draft_blocks: int | None = None, **scheduler: Any) -> Any:
    """A pipeline with a draft model, or, with None, with prompt lookup."""
    if draft is None:
        properties: dict[str, Any] = {"prompt_lookup": True}
    else:
        own = settings({**scheduler, "num_kv_blocks": draft_blocks or scheduler["num_kv_blocks"]})
        properties = {"draft_model": genai.draft_model(draft, "CPU", scheduler_config=own, **F32)}
    return genai.ContinuousBatchingPipeline(model, settings(scheduler), "CPU", {**F32, **properties})


def plain(model: str = PLAIN, **scheduler: Any) -> Any:
    return genai.ContinuousBatchingPipeline(model, settings(scheduler), "CPU", F32)


def fields_of(draft: str | None) -> dict[str, int]:
    return LOOKUP if draft is None else {"num_assistant_tokens": K}


def repeating(length: int, seed: int = 0) -> list[int]:
    """A prompt in which every token comes again, so that there is always something to look up."""
    rnd = random.Random(seed)
    return [3 + (seed + rnd.randrange(7)) % 200 for _ in range(length)]


def alone(pipe: Any, prompt: Sequence[int], new: int, **fields: Any) -> dict[str, Any]:
    """What one request shows, by step, and how it ends."""
    handle = pipe.add_request(1, tensor(prompt), config(new, **fields))
    sizes, tokens = [], []
    for _ in range(500):
        if not pipe.has_non_finished_requests():
            break
        pipe.step()
        fresh = unread(handle)
        sizes.append(len(fresh))
        tokens += fresh
    pipe.step()
    return {"status": status(handle), "sizes": sizes, "tokens": tokens, "proved": proved(handle), "rest": usage(pipe)}


def fits(draft: str | None, prompt: int, new: int, blocks: int, draft_blocks: int | None = None) -> list[Any]:
    """Status, number of tokens, and whether -1 is among them, in a cache of so many blocks."""
    pipe = drafting(draft, draft_blocks=draft_blocks, num_kv_blocks=blocks)
    seen = alone(pipe, repeating(prompt), new, **fields_of(draft))
    return [seen["status"], len(seen["tokens"]), -1 in seen["tokens"]]


def states(blocks: int, drafted: int) -> str:
    """What a hybrid with prompt lookup raises with so many linear-attention blocks; empty: nothing."""
    pipe = drafting(None, HYBRID, num_kv_blocks=64, num_linear_attention_blocks=blocks)
    handle = pipe.add_request(1, tensor(repeating(20)), config(8, num_assistant_tokens=drafted, max_ngram_size=1))
    raised = pump(pipe)
    return raised or ("" if status(handle) == "FINISHED" else status(handle))


def without_candidates(draft: str) -> list[str]:
    """A request without num_assistant_tokens: what add_request and the two steps after it raise."""
    pipe = drafting(draft, num_kv_blocks=16)
    handle = pipe.add_request(1, tensor([5, 6, 7]), config(5))
    raised = [pump(pipe, 3), pump(pipe, 3)]
    del handle
    return raised


def together(pipe: Any, script: Script, fields: Mapping[str, Any], inside: int = 1000) -> list[list[int]] | str:
    """All of them, at most so many at once; their tokens, or what a step raised."""
    waiting = list(range(len(script)))
    live: dict[int, Any] = {}
    found: list[list[int]] = [[] for _ in script]
    for _ in range(5000):
        while waiting and len(live) < inside:
            number = waiting.pop(0)
            prompt, new = script[number]
            live[number] = pipe.add_request(number, tensor(prompt), config(new, **fields))
        if not live:
            break
        try:
            pipe.step()
        except RuntimeError as error:
            return str(error)
        for number, handle in list(live.items()):
            found[number] += unread(handle)
            if status(handle) != "RUNNING":
                del live[number]
    return found


def crowd(seed: int, requests: int, longest: int, words: int = 256) -> Script:
    rnd = random.Random(seed)
    return [
        ([3 + rnd.randrange(words) for _ in range(rnd.randrange(1, longest))], rnd.randrange(1, 30))
        for _ in range(requests)
    ]


def others(draft: str | None, room: int, inside: int, requests: int, longest: int, words: int = 256) -> int | str:
    """Of six crowds: requests with other tokens than without drafts; or what a step raised."""
    pipe, reference = drafting(draft, num_kv_blocks=400, max_num_batched_tokens=room), plain(num_kv_blocks=400)
    wrong = 0
    for seed in range(6):
        script = crowd(seed, requests, longest, words)
        found, right = together(pipe, script, fields_of(draft), inside), together(reference, script, {}, inside)
        if isinstance(found, str):
            return found
        wrong += sum(a != b for a, b in zip(found, right, strict=True))
    return wrong


def beside_each_other(room: int) -> str:
    """What a step raises while four requests decode, with five candidates each."""
    script = [([3 + (7 * request + at * at) % 70 for at in range(3)], 20) for request in range(4)]
    found = together(drafting(None, num_kv_blocks=400, max_num_batched_tokens=room), script, LOOKUP)
    return found if isinstance(found, str) else ""


def unreserved(kind: str, seed: int, blocks: int) -> str:
    """Mixed traffic that is stopped at random, all let in at once: raised, ignored, unfinished or clean."""
    rnd = random.Random(seed)
    hybrid, draft = kind == "hybrid lookup", {"draft": SAME, "other draft": OTHER}.get(kind)
    pools = {"num_kv_blocks": blocks, **({"num_linear_attention_blocks": 3 * (K + 2)} if hybrid else {})}
    pipe = drafting(draft, HYBRID if hybrid else PLAIN, **pools)
    live: dict[int, Any] = {}
    for number in range(rnd.randint(2, 6)):
        asked: dict[str, Any] = {"ignore_eos": rnd.random() < 0.7, **fields_of(draft)}
        if rnd.random() < 0.4:
            asked |= {"do_sample": True, "rng_seed": rnd.randint(1, 999)}
        if rnd.random() < 0.3:
            asked["stop_strings"] = {chr(rnd.randint(97, 122)) for _ in range(2)}
        prompt = repeating(rnd.randint(1, 200), rnd.randint(0, 9))
        live[number] = pipe.add_request(number, tensor(prompt), config(rnd.randint(1, 150), **asked))
    ignored = False
    for _ in range(1500):
        if not pipe.has_non_finished_requests():
            return "ignored" if ignored else "clean"
        if step_error(pipe):
            return "raised"
        for number, handle in list(live.items()):
            unread(handle)
            ignored = ignored or status(handle) == "IGNORED"
            if rnd.random() < 0.03:
                handle.stop()
                del live[number]
    return "unfinished"


def ends_too_early(draft: str | None) -> int:
    """Of 40 requests with min_new_tokens: those that end before."""
    pipe = drafting(draft, num_kv_blocks=64)
    early = 0
    for seed in range(40):
        ends = {"ignore_eos": False, "stop_token_ids": set(range(40, 90)), "min_new_tokens": 15}
        early += len(alone(pipe, repeating(20, seed), 20, **ends, **fields_of(draft))["tokens"]) < 15
    return early


def sampled_twice(draft: str) -> list[list[int]]:
    """Twice the same seed, and without a draft model."""
    asked = {"do_sample": True, "rng_seed": 7, "temperature": 1.0}
    pipe = drafting(draft, num_kv_blocks=64)
    twice = [alone(pipe, repeating(20), 20, **asked, **fields_of(draft))["tokens"] for _ in range(2)]
    return [*twice, alone(plain(num_kv_blocks=64), repeating(20), 20, **asked)["tokens"]]


def counted(draft: str) -> list[int]:
    """Requests in the engine's metrics while two are inside, step by step."""
    pipe = drafting(draft, num_kv_blocks=64)
    handles = [pipe.add_request(n, tensor(repeating(10)), config(30, **fields_of(draft))) for n in (1, 2)]
    found = []
    for _ in range(4):
        pipe.step()
        found.append(usage(pipe)[0])
    pump(pipe)
    return found if all(status(handle) == "FINISHED" for handle in handles) else []


def seen_inside(draft: str | None, new: int) -> float:
    """The highest usage that the metrics show of a request of so many new tokens, in blocks."""
    pipe = drafting(draft, num_kv_blocks=16)
    handle = pipe.add_request(1, tensor([5]), config(new, **{**fields_of(draft), "num_assistant_tokens": 1}))
    most = 0.0
    while pipe.has_non_finished_requests():
        pipe.step()
        most = max(most, usage(pipe)[1])
    assert status(handle) == "FINISHED"
    return most * 16 / 100


def several(draft: str | None) -> str:
    """What add_request, or else a step, says of two sequences."""
    pipe = drafting(draft, num_kv_blocks=64)
    try:
        handle = pipe.add_request(1, tensor([5, 6]), config(5, num_beams=2, num_return_sequences=2, **fields_of(draft)))
    except RuntimeError as error:
        return f"add_request: {error}"
    raised = pump(pipe)
    del handle
    return f"step: {raised}"


def answers(model: str, prompts: Sequence[Sequence[int]], new: int, **fields: Any) -> list[list[int]]:
    """Of the plain engine, one after the other."""
    if "stop_token_ids" in fields:  # a list on the way here
        fields["stop_token_ids"] = set(fields["stop_token_ids"])
    pipe = plain(model, num_kv_blocks=64)
    return [alone(pipe, prompt, new, **fields)["tokens"] for prompt in prompts]
