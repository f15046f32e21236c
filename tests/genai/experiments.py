"""Experiments on the raw engine that hold for every model. Each returns plain data; the tests judge it."""

import itertools
import os
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov  # type: ignore[import-untyped,unused-ignore]
import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]
from genai import raw
from genai.raw import add, finish, pipeline, proved, pump, shared, status, step_error, steps, unread, usage

# --- the interpreter -------------------------------------------------------------------------------------------------


def ticks_during(call: str) -> dict[str, float]:
    """How long `call` took and the longest time that another thread stood still meanwhile."""
    pipe = pipeline(num_kv_blocks=400, max_num_batched_tokens=10_000)
    prompt = raw.ids(9000)
    gaps, done = [0.0], threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not done.is_set():
            time.sleep(0.001)
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    thread = threading.Thread(target=tick)
    handle = add(pipe, 1, prompt, 1) if call == "step" else None  # a dropped one would be stopped
    thread.start()
    time.sleep(0.05)
    gaps[:] = [0.0]
    began = time.monotonic()
    if handle is not None:
        pipe.step()
    else:
        pipe.generate([raw.tensor(prompt)], [raw.config(1)])
    took = time.monotonic() - began
    time.sleep(0.05)
    done.set()
    thread.join()
    return {"took": took, "longest_gap": max(gaps)}


def read_an_empty_queue() -> None:
    pipe = pipeline(num_kv_blocks=8)
    handle = add(pipe, 1, 10, 5)
    threading.Timer(0.2, handle.stop).start()  # would free it, if another thread could run
    handle.read()


def fork_after_use(prompt: int, fresh: bool, seconds: float) -> str:
    """What a forked child of a process that used the engine does with its parent's pipeline, or with a fresh one."""
    pipe = pipeline(num_kv_blocks=64, max_num_batched_tokens=2000)
    finish(pipe, add(pipe, 1, prompt, 5))
    child = os.fork()
    if child == 0:
        again = pipeline(num_kv_blocks=64, max_num_batched_tokens=2000) if fresh else pipe
        finish(again, add(again, 2, prompt, 5))
        os._exit(0)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ended, how = os.waitpid(child, os.WNOHANG)
        if ended:
            return f"ended {os.waitstatus_to_exitcode(how)}"
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hung"


def pickling() -> list[str]:
    errors = []
    for value in (genai.GenerationConfig(), genai.SchedulerConfig()):
        try:
            pickle.dumps(value)
            errors.append("")
        except TypeError as error:
            errors.append(str(error))
    return errors


def device_name() -> str:
    """Full name of the GPU, empty where there is none."""
    core = ov.Core()
    return str(core.get_property("GPU", "FULL_DEVICE_NAME")) if "GPU" in core.available_devices else ""


# --- stopping and proof of release -----------------------------------------------------------------------------------


def stop_keeps_blocks(
    device: str = "CPU", model: str = raw.PLAIN, properties: dict[str, str] | None = None
) -> dict[str, Any]:
    pipe = shared(model, device, properties, num_kv_blocks=8, max_num_seqs=4)
    handle = add(pipe, 1, 10, 100)
    steps(pipe, 3)
    before, held = usage(pipe), proved(handle)
    handle.stop()
    stopped = proved(handle)
    pipe.step()
    after, released = usage(pipe), proved(handle)
    pipe.step()
    return {"held": held, "stopped": stopped, "released": released, "usage": [before, after, usage(pipe)]}


def stop_then_newcomer(
    caching: bool, settle: bool, device: str = "CPU", model: str = raw.PLAIN, properties: dict[str, str] | None = None
) -> list[Any]:
    """A holds all blocks and is stopped, then B comes. Both states and B's tokens."""
    pipe = pipeline(model, device, properties, num_kv_blocks=8, enable_prefix_caching=caching)
    first = add(pipe, 1, 8 * block(pipe) - 10, 10)
    steps(pipe, 3)
    full = usage(pipe)[1]
    first.stop()
    if settle:
        pipe.step()
    second = add(pipe, 2, 10, 4)
    if settle:
        return [full, status(first), len(finish(pipe, second)[0]), status(second)]
    pipe.step()
    return [full, status(first), len(unread(second)), status(second)]


def block(pipe: Any) -> int:
    """Tokens a block, learnt from the engine: a prompt grows until it takes two blocks. Leaves the pipeline idle."""
    one = usage_of(pipe, 1)
    return next(length for length in (16, 32, 64) if usage_of(pipe, length + 1) > one * 1.5)


def usage_of(pipe: Any, length: int) -> float:
    handle = add(pipe, 10_000 + length, length, 1)
    pipe.step()
    found = usage(pipe)[1]
    pipe.step()
    assert proved(handle) is not False
    return found


def proof_of(how: str) -> list[bool | None]:
    """Whether removal is proved before, and after the step in which the request ends `how`."""
    pipe = shared(num_kv_blocks=8)
    other = add(pipe, 1, 200, 50) if how == "stopped while waiting" else None
    steps(pipe, 2 if other else 0)
    handle = add(pipe, 2, {"ignored": 500, "stopped while waiting": 60}.get(how, 10), 3 if how == "finished" else 100)
    if how in ("stopped", "cancelled"):
        steps(pipe, 2)
    before = proved(handle)
    if how != "ignored":
        {"finished": lambda: steps(pipe, 2), "cancelled": handle.cancel}.get(how, handle.stop)()
    before = before or proved(handle)
    steps(pipe, 2 if how == "ignored" else 1)
    return [before, proved(handle)]


def stop_throws_away(finished: bool) -> dict[str, Any]:
    """What a stop does to tokens that were not read: readable before, at once after, and after the next step."""
    pipe = shared(num_kv_blocks=8)
    handle = add(pipe, 1, 10, 4 if finished else 40)
    steps(pipe, 4)
    before = handle.can_read()
    handle.stop()
    after = handle.can_read()
    try:
        handle.read()
        raised = ""
    except RuntimeError as error:
        raised = str(error)
    pipe.step()
    return {"before": before, "after": after, "raised": bool(raised), "later": len(unread(handle))}


def drop_the_handle() -> list[int]:
    pipe = shared(num_kv_blocks=8)
    handle = add(pipe, 1, 10, 100)
    steps(pipe, 2)
    before = usage(pipe)[0]
    del handle
    steps(pipe, 2)
    return [before, usage(pipe)[0]]


def idle_step(caching: bool) -> list[Any]:
    """Metrics right after the last request finished, and after one step with nothing to do."""
    pipe = pipeline(num_kv_blocks=8, enable_prefix_caching=caching)
    finish(pipe, add(pipe, 1, 50, 5))
    stale = usage(pipe)
    pipe.step()
    return [stale, usage(pipe)]


def thousand_idle_steps() -> float:
    pipe = shared(num_kv_blocks=8)
    finish(pipe, add(pipe, 1, 50, 5))
    began = time.monotonic()
    steps(pipe, 1000)
    return time.monotonic() - began


# --- admission and the cache -----------------------------------------------------------------------------------------


def scheduled_at_once(max_num_seqs: int, requests: int) -> int:
    pipe = shared(num_kv_blocks=64, max_num_seqs=max_num_seqs)
    handles = [add(pipe, i, 10, 5) for i in range(requests)]
    pipe.step()
    assert len(handles) == requests
    return int(pipe.get_metrics().scheduled_requests)


def fits(
    prompt: int,
    new: int,
    blocks: int,
    device: str = "CPU",
    model: str = raw.PLAIN,
    properties: dict[str, str] | None = None,
) -> list[Any]:
    pipe = shared(model, device, properties, num_kv_blocks=blocks, max_num_seqs=4)
    handle = add(pipe, 1, prompt, new)
    tokens = finish(pipe, handle)[0]
    return [status(handle), len(tokens)]


def one_block(
    blocks: int, device: str = "CPU", model: str = raw.PLAIN, properties: dict[str, str] | None = None
) -> list[float]:
    """cache_usage with one block in use, and the block size."""
    pipe = shared(model, device, properties, num_kv_blocks=blocks)
    return [usage_of(pipe, 5), block(pipe)]


def never_fitting_prompt() -> dict[str, Any]:
    pipe = shared(num_kv_blocks=8)
    running = add(pipe, 1, 100, 20)
    steps(pipe, 2)
    giant, behind = add(pipe, 2, 500, 5), add(pipe, 3, 10, 5)
    steps(pipe, 10)
    starved = [len(unread(running)), len(unread(behind)), status(behind)]
    pump(pipe)
    return {
        "starved": starved,
        "end": [status(running), status(giant), status(behind)],
        "read_all": len(behind.read_all()),
    }


def duplicate_id() -> list[str]:
    pipe = pipeline(num_kv_blocks=8)
    first, second = add(pipe, 7, 10, 20), add(pipe, 7, 12, 20)
    errors = [step_error(pipe) for _ in range(2)]
    first.stop()
    errors.append(step_error(pipe))
    second.stop()
    return [*errors, step_error(pipe)]


def bad_grammar(kind: str) -> list[str]:
    """Errors of the next two steps, and of one after the culprit was stopped; a bystander is there too."""
    pipe = pipeline(num_kv_blocks=8)
    bystander = add(pipe, 1, 10, 20)
    wanted = genai.StructuredOutputConfig(**{kind: '{"type": "nonsense"' if kind == "json_schema" else "a(b"})
    request = raw.config(20, structured_output_config=wanted)
    request.validate()
    culprit = pipe.add_request(2, raw.tensor([5, 6, 7]), request)
    errors = [step_error(pipe) for _ in range(2)]
    culprit.stop()
    return [*errors, step_error(pipe), status(bystander)]


def beams_that_all_end(ends: int, by: str) -> list[str]:
    """Two beams, of whose four candidates `ends` end at the first step. Errors of three steps; a bystander's state."""
    prompt, candidates = _candidates(4)
    pipe = pipeline(num_kv_blocks=8)
    bystander = add(pipe, 1, 10, 20)
    if by == "strings":
        strings = set(list(candidates.values())[:ends])
        request = raw.config(8, num_beams=2, stop_strings=strings, include_stop_str_in_output=True)
    else:
        request = raw.config(8, num_beams=2, ignore_eos=False, stop_token_ids=set(list(candidates)[:ends]))
    request.validate()
    culprit = pipe.add_request(2, raw.tensor(prompt), request)
    errors = [step_error(pipe) for _ in range(2)]
    culprit.stop()
    return [*errors, step_error(pipe), status(bystander)]


def _candidates(count: int) -> tuple[list[int], dict[int, str]]:
    """A prompt, and the likeliest tokens after it with their texts, all of which are characters."""
    pipe, tokenizer = shared(num_kv_blocks=64), genai.Tokenizer(raw.PLAIN)
    for seed in range(200):
        prompt = raw.ids(8, seed)
        config = raw.config(1, num_beams=count, num_return_sequences=count)
        handle = pipe.add_request(seed, raw.tensor(prompt), config)
        pump(pipe)
        texts = {o.generated_ids[0]: tokenizer.decode(o.generated_ids) for o in handle.read_all()}
        if all(text.isascii() and text.strip() for text in texts.values()):
            return prompt, texts
    raise AssertionError("no prompt is followed by characters only")


def longer_than_a_batch() -> list[str]:
    pipe = pipeline(num_kv_blocks=64, dynamic_split_fuse=False, max_num_seqs=4, max_num_batched_tokens=64)
    handle = add(pipe, 1, 100, 5)
    return [step_error(pipe), step_error(pipe), status(handle)]


def odd_requests() -> dict[str, str]:
    """What add_request says to each odd request; empty: it took it."""
    pipe = pipeline(num_kv_blocks=8)
    array, i64 = np.array, np.int64
    good = array([[5, 6, 7]], dtype=i64)
    odd: dict[str, tuple[Any, genai.GenerationConfig]] = {
        "beyond vocabulary": (array([[5, 100_000]], dtype=i64), raw.config(2)),
        "negative": (array([[5, -3]], dtype=i64), raw.config(2)),
        "two rows": (array([[5], [6]], dtype=i64), raw.config(2)),
        "no row": (array([5, 6], dtype=i64), raw.config(2)),
        "empty": (array([[]], dtype=i64), raw.config(2)),
        "int32": (good.astype(np.int32), raw.config(2)),
        "no new token": (good, raw.config(0)),
        "temperature 0": (good, raw.config(2, do_sample=True, temperature=0.0)),
    }
    said, handles = {}, []
    for number, (name, (prompt, wanted)) in enumerate(odd.items()):
        try:
            handles.append(pipe.add_request(number, ov.Tensor(prompt), wanted))
            said[name] = ""
        except Exception as error:
            said[name] = type(error).__name__ + ": " + str(error)
    return said


# --- what a caller sees ----------------------------------------------------------------------------------------------


def several_sequences(**fields: Any) -> dict[str, Any]:
    pipe = shared(num_kv_blocks=64)
    handle = add(pipe, 1, 10, 12, **fields)
    seen = []
    while pipe.has_non_finished_requests():
        pipe.step()
        seen.append(handle.can_read())
    return {"seen": seen, "sequences": [list(o.generated_ids) for o in handle.read_all()]}


def sampled(*seeds: int | None) -> list[list[int]]:
    pipe = shared(num_kv_blocks=64)
    found = []
    for request, seed in enumerate(seeds):
        fields = {} if seed is None else {"rng_seed": seed}
        found.append(
            finish(pipe, add(pipe, request, raw.ids(10), 16, do_sample=True, temperature=1.0, top_k=50, **fields))[0]
        )
    return found


def logprobs(asked: int) -> list[list[float]]:
    """Of each read of one request."""
    pipe = shared(num_kv_blocks=8)
    handle = add(pipe, 1, 10, 4, logprobs=asked)
    found = []
    while pipe.has_non_finished_requests():
        pipe.step()
        found += [list(next(iter(handle.read().values())).generated_log_probs)] if handle.can_read() else []
    return found


def text_against_generate() -> list[int]:
    """Prompt tokens of the same text: by add_request, by generate, and through the tokenizer as it is."""
    pipe = shared(num_kv_blocks=8)
    handle = pipe.add_request(1, "hello", raw.config(2))
    finish(pipe, handle)
    generated = pipe.generate(["hello"], [raw.config(2)])[0]
    alone = pipe.get_tokenizer().encode("hello").input_ids.shape[1]
    return [handle.get_perf_metrics().get_num_input_tokens(), generated.perf_metrics.get_num_input_tokens(), alone]


def greedy(device: str = "CPU", model: str = raw.PLAIN, properties: dict[str, str] | None = None) -> list[list[int]]:
    """Tokens of a few greedy requests that run together."""
    pipe = shared(model, device, properties, num_kv_blocks=64, max_num_seqs=4)
    return finish(pipe, *(add(pipe, i, length, 12) for i, length in enumerate((1, 15, 40))))


def greedy_with_cache(
    folder: str, damage: str, device: str = "CPU", properties: dict[str, str] | None = None
) -> dict[str, Any]:
    """Greedy tokens of a pipeline that found every file in CACHE_DIR damaged, and the sizes that it left them with."""
    for path in Path(folder).iterdir():
        path.chmod(0o600)
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
    chosen = {**(raw.F32 if properties is None else properties), "CACHE_DIR": folder}
    pipe = pipeline(device=device, properties=chosen, num_kv_blocks=16)
    return {
        "tokens": finish(pipe, add(pipe, 1, 15, 12))[0],
        "sizes": [path.stat().st_size for path in sorted(Path(folder).iterdir())],
    }


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "empty": lambda _: b"",
    "cut": lambda whole: whole[: len(whole) // 2],
    "garbage": lambda whole: random.Random(39).randbytes(len(whole)),
}


def continued(cuts: list[int]) -> list[bool]:
    """Whether prompt + tokens so far, in a fresh pipeline, gives the rest of an uninterrupted greedy run."""
    pipe = pipeline(num_kv_blocks=64)
    prompt = raw.ids(20)
    whole = finish(pipe, add(pipe, 1, prompt, 32))[0]
    again = pipeline(num_kv_blocks=64)
    return [finish(again, add(again, cut, prompt + whole[:cut], 32 - cut))[0] == whole[cut:] for cut in cuts]


def _stops(prompt: list[int], new: int, pipe: Any, request: Iterator[int], **fields: Any) -> list[list[int]]:
    """What a greedy request shows, step by step."""
    handle = add(pipe, next(request), prompt, new, include_stop_str_in_output=True, **fields)
    shown: list[list[int]] = []
    while pipe.has_non_finished_requests():
        pipe.step()
        shown.append(raw.unread(handle))
    return shown


def withheld(string: str) -> tuple[int, list[int]]:
    """Tokens that a stop string which never comes is encoded to; numbers of tokens shown after each step."""
    pipe = raw.shared(num_kv_blocks=64)
    window = pipe.get_tokenizer().encode(string, add_special_tokens=False).input_ids.shape[1]
    return window, [len(ids) for ids in _stops(raw.ids(20), 12, pipe, itertools.count(1), stop_strings={string})]


def continued_with_stops(seed: int, new: int, tries: int) -> dict[str, int]:
    """Greedy runs that end at a stop string, each continued after every token that it shows before the end."""
    pipe, request, draw = raw.shared(num_kv_blocks=64), itertools.count(1), random.Random(seed)
    decode, prompt = pipe.get_tokenizer().decode, raw.ids(20, seed)
    whole = list(itertools.chain(*_stops(prompt, new, pipe, request)))
    text, seen = decode(whole), {"stopped": 0, "cuts": 0, "equal": 0, "multibyte": 0}
    multibyte = [at for at, c in enumerate(text) if not c.isascii() and c != "\ufffd"]
    for number in range(tries):
        length = draw.choice([1, 2, 3, 5])
        at = draw.choice(multibyte) - draw.randrange(length) if number % 3 == 0 else draw.randrange(len(text))
        strings = {text[max(0, at) :][:length], "zq~~~~"[: draw.randint(3, 6)]}
        steps = _stops(prompt, new, pipe, request, stop_strings=strings)
        ids = list(itertools.chain(*steps))
        seen["stopped"] += len(ids) < new
        seen["multibyte"] += any(c in text[at : at + length] for c in (text[m] for m in multibyte))
        for cut in range(1, len(list(itertools.chain(*steps[:-1]))) + 1):
            rest = _stops(prompt + ids[:cut], new - cut, pipe, request, stop_strings=strings)
            seen["cuts"] += 1
            seen["equal"] += ids[:cut] + list(itertools.chain(*rest)) == ids
    return seen


def continued_with_penalty(name: str, value: float, cuts: list[int]) -> tuple[bool, list[bool]]:
    """Whether a penalty changes a greedy run, and whether continuing that run gives its rest."""
    pipe, prompt = raw.shared(num_kv_blocks=64), raw.ids(20, 1)
    whole, plain = finish(pipe, add(pipe, 1, prompt, 40, **{name: value}), add(pipe, 2, prompt, 40))
    rests = [finish(pipe, add(pipe, 3 + c, prompt + whole[:c], 40 - c, **{name: value}))[0] for c in cuts]
    return whole != plain, [rest == whole[c:] for c, rest in zip(cuts, rests, strict=True)]


def unbounded_cache() -> list[int]:
    """Cache bytes after a small and after a larger request, with neither size nor number of blocks given."""
    pipe = pipeline()
    found = []
    for request, length in enumerate((10, 4000)):
        finish(pipe, add(pipe, request, length, 2))
        found.append(int(pipe.get_metrics().cache_size_in_bytes))
    return found


def load_cut_gguf(source: str, target: str, size: int) -> None:
    """Load the first `size` bytes of a GGUF file. The process may die."""
    with open(source, "rb") as whole, open(target, "wb") as cut:
        cut.write(whole.read(size))
    pipeline(target, num_kv_blocks=8)
