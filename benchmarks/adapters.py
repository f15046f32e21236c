"""LoRA adapters: mixed runs with switches beside the raw engine's, and tokens a second beside raw, interleaved.

    python benchmarks/adapters.py [--runs 100] [--seed 0] [--pairs 10] [--folder tests/models]

A run is a few requests (greedy, beams, samples) in a cache of 16 blocks, some of them stopped, some with a deadline or
a lease of milliseconds. boundedgen has one lane for all of them, with other adapters after every third run; the raw
loop has a process for each run, since some end it. All with the same adapter, on the small model.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from raw_loop import RawLoop
from workload import on_small

import boundedgen as bg

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
BLOCKS, BLOCK = 16, 32
STUCK_S = 60.0
STEPS_MOST = 3000


def plan(seed: int) -> list[dict[str, Any]]:
    """Requests that each fit alone: prompt, configuration, and the step before which it is stopped (None: none)."""
    chance = random.Random(seed)
    shared = [chance.randint(3, 258) for _ in range(4 * BLOCK)]
    return [_request(chance, shared) for _ in range(chance.randint(2, 6))]


def _request(chance: random.Random, shared: list[int]) -> dict[str, Any]:
    sequences = chance.choice([1, 1, 2, 3, 4])
    room = BLOCKS // sequences * BLOCK - BLOCK
    prompt = chance.randint(1, min(len(shared), room - 1))
    config: dict[str, Any] = {"max_new_tokens": chance.randint(1, min(100, room - prompt)), "ignore_eos": True}
    if sequences > 1 and chance.random() < 0.5:
        config |= {"num_beams": sequences, "num_return_sequences": sequences}
    elif sequences > 1:
        config |= {"do_sample": True, "num_return_sequences": sequences, "rng_seed": chance.randint(1, 999)}
    own = [chance.randint(3, 258) for _ in range(prompt)]
    return {
        "prompt": shared[:prompt] if chance.random() < 0.5 else own,
        "config": config,
        "stop": chance.randint(1, 40) if chance.random() < 0.25 else None,
    }


# --- boundedgen ------------------------------------------------------------------------------------------------------


def bounded_runs(model: Path, sets: list[dict[Path, float]], seeds: range) -> Counter[str]:
    """How all requests ended. AssertionError: something is left behind, or stuck."""
    ends: Counter[str] = Counter()
    limits = bg.Limits(running_max=8)
    with bg.BoundedPipeline(model, {"num_kv_blocks": BLOCKS}, "CPU", F32, adapters=sets[0], limits=limits) as lane:
        for seed in seeds:
            _bounded_run(lane, seed, ends)
            if seed % 3 == 2:
                lane.switch_adapters(sets[seed // 3 % len(sets)])
                ends["(switches)"] += 1
        stats = lane.stats()
        assert (stats.waiting, stats.running, stats.stopping, stats.blocks_reserved) == (0, 0, 0, 0), stats
        assert not any(stats.kills_total.values()), stats.kills_total
    return ends


def _bounded_run(lane: bg.BoundedPipeline, seed: int, ends: Counter[str]) -> None:
    chance, lease = random.Random(seed), lane.lease("run", ttl=STUCK_S)
    generations = []
    for request in plan(seed):
        bounds = bg.Bounds(total=chance.uniform(0.005, 0.2)) if chance.random() < 0.2 else None
        under = lease if chance.random() < 0.2 else None
        generations.append(lane.submit(request["prompt"], request["config"], bounds=bounds, lease=under))
        if request["stop"]:
            time.sleep(chance.uniform(0, 0.01))
            generations[-1].cancel()
    if chance.random() < 0.5:
        lease.revoke()
    for generation in generations:
        with contextlib.suppress(bg.GenerationCancelled, bg.DeadlineExceeded, bg.LeaseLost):
            generation.result(STUCK_S)
        generation.wait_reclaimed(STUCK_S)
        ends[str(generation.finish_reason)] += 1
    lease.revoke()


# --- raw -------------------------------------------------------------------------------------------------------------


def raw_pipeline(model: Path, adapters: dict[Path, float], blocks: int) -> Any:
    import openvino_genai as genai

    config = genai.AdapterConfig(genai.AdapterConfig.Mode.MODE_STATIC)
    for path, weight in adapters.items():
        config.add(genai.Adapter(str(path)), weight)
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = blocks
    properties = {**F32, **({"adapters": config} if adapters else {})}
    return genai.ContinuousBatchingPipeline(str(model), scheduler, "CPU", properties)


def raw_run(model: Path, adapters: dict[Path, float], seed: int) -> str:
    """What became of one run: "fine", "ignored", "raised" or "stuck"; a crash ends the process."""
    import numpy
    import openvino
    import openvino_genai as genai

    pipeline, requests, handles = raw_pipeline(model, adapters, BLOCKS), plan(seed), []
    for number, request in enumerate(requests):
        config = genai.GenerationConfig()
        for name, value in request["config"].items():
            setattr(config, name, value)
        handles.append(pipeline.add_request(number, openvino.Tensor(numpy.array([request["prompt"]])), config))
    for step in range(STEPS_MOST):
        if not pipeline.has_non_finished_requests():
            ignored = any(handle.get_status() == genai.GenerationStatus.IGNORED for handle in handles)
            return "ignored" if ignored else "fine"
        for handle, request in zip(handles, requests, strict=True):
            if request["stop"] == step:
                handle.stop()
        try:
            pipeline.step()
        except RuntimeError:
            return "raised"
    return "stuck"


def raw_runs(seeds: range, folder: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in seeds:
        command = [sys.executable, __file__, "--raw-run", str(seed), "--folder", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        found[done.stdout.strip() if done.returncode == 0 else f"died of signal {-done.returncode}"] += 1
    return found


# --- throughput ------------------------------------------------------------------------------------------------------


def raw_server(model: Path, adapters: dict[Path, float]) -> None:
    """For each line, a seed: tokens a second of one round."""
    work = on_small(8)
    loop = RawLoop(raw_pipeline(model, adapters, work.scheduler()["num_kv_blocks"]))
    for line in sys.stdin:
        done = loop.round(work.prompts(int(line)), work.new)
        print(json.dumps(done["tokens"] / done["seconds"]), flush=True)


def throughput(model: Path, adapters: dict[Path, float], pairs: int, folder: Path) -> tuple[list[float], list[float]]:
    """Tokens a second, raw and boundedgen, round by round; who goes first changes."""
    work, raw, bounded = on_small(8), [], []
    command = [sys.executable, __file__, "--raw-server", *(["--none"] if not adapters else []), "--folder", str(folder)]
    with (
        bg.BoundedPipeline(model, work.scheduler(), "CPU", F32, adapters=adapters or None) as lane,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        for seed in range(pairs + 1):
            for contestant in ("raw", "bounded") if seed % 2 else ("bounded", "raw"):
                if contestant == "raw":
                    print(seed, file=server.stdin, flush=True)
                    raw.append(float(server.stdout.readline()))
                else:
                    began = time.monotonic()
                    done = lane.generate_many(work.prompts(seed), max_new_tokens=work.new, ignore_eos=True)
                    bounded.append(sum(one.completion_tokens for one in done) / (time.monotonic() - began))
    return raw[1:], bounded[1:]  # without the one that warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parents[1] / "tests" / "models")
    parser.add_argument("--raw-run", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--raw-server", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--none", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    model, lora = given.folder / "plain", given.folder / "lora"
    one, other = {lora / "lora_a.safetensors": 0.8}, {lora / "lora_b.safetensors": 1.0}
    if given.raw_run is not None:
        print(raw_run(model, one, given.raw_run))
        return
    if given.raw_server:
        raw_server(model, {} if given.none else one)
        return
    seeds = range(given.seed, given.seed + given.runs)
    if given.runs:
        print(f"seeds {seeds.start} to {seeds.stop - 1}, {BLOCKS} blocks")
        print("boundedgen:", dict(bounded_runs(model, [one, other, {**one, **other}], seeds)), flush=True)
        print("raw:", dict(raw_runs(seeds, given.folder)), flush=True)
    for name, adapters in (("none", {}), ("one adapter", one)) if given.pairs else ():
        raw, bounded = throughput(model, adapters, given.pairs, given.folder)
        shares = [b / a for a, b in zip(raw, bounded, strict=True)]
        print(
            f"{name}: raw {statistics.median(raw):.0f} tokens/s, boundedgen {statistics.median(bounded):.0f}; "
            f"boundedgen / raw {statistics.median(shares):.3f} (median of {len(shares)} rounds)"
        )


if __name__ == "__main__":
    main()
