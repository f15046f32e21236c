"""LoRA adapters through a whole pipeline: the answers are the raw engine's, and a switch harms nobody."""

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openvino_genai
import pytest
from adapter_files import LORA_A, LORA_B, PLAIN, WRONG, packed, random_pair, wrong
from genai import adapter_experiments as raw
from genai.lanes import FULL, HYBRID, ids, lane, running, until
from genai.raw import F32, Lab, laboratory
from genai.test_adapter_facts import whole_adapter
from hybrid.traffic import mixed_run

import boundedgen as bg
from boundedgen import _exchanging as exchanging
from boundedgen._adapters import adapters_of

MODEL = str(PLAIN)
SETS: list[dict[str, float]] = [{}, {LORA_A: 0.8}, {LORA_B: 1.0}, {LORA_A: 0.8, LORA_B: 0.3}]


class Answers:
    """What the raw engine says to three prompts, with the same adapters."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._known: dict[str, list[list[int]]] = {}

    def __call__(self, adapters: dict[str, float], model: str = MODEL) -> list[list[int]]:
        key = f"{model} {adapters}"
        if key not in self._known:
            self._known[key] = self._lab.run(raw.tokens, model, list(adapters.items()))
        return self._known[key]


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    with laboratory() as lab:
        known = Answers(lab)
        known({})  # so that the laboratory is there before any lane is
        yield known


def said(pipeline: bg.BoundedPipeline) -> list[list[int]]:
    prompts = [list(prompt) for prompt in raw.PROMPTS]
    return [list(done.token_ids) for done in pipeline.generate_many(prompts, max_new_tokens=12, **FULL)]


def in_force(pipeline: bg.BoundedPipeline) -> dict[str, float]:
    stats, health = pipeline.stats(), pipeline.health()
    assert stats.adapters == health.adapters
    assert pipeline.stats_document()["stats"]["adapters"] == stats.adapters
    return dict(stats.adapters)


# --- the answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapters", SETS, ids=lambda one: "+".join(map(os.path.basename, one)) or "none")
def test_greedy_tokens_are_those_of_the_raw_engine_with_the_same_adapters(
    adapters: dict[str, float], answers: Answers
) -> None:
    with lane(adapters=adapters or None) as pipeline:
        assert said(pipeline) == answers(adapters)
        assert in_force(pipeline) == {os.path.basename(path): weight for path, weight in adapters.items()}
    assert len({str(answers(one)) for one in SETS}) == len(SETS), "each makes a difference"


def test_a_hybrid_model_is_adapted(tmp_path: Path, answers: Answers) -> None:
    adapters = {whole_adapter(HYBRID, tmp_path): 0.5}
    with lane(HYBRID, adapters=adapters) as pipeline:
        assert said(pipeline) == answers(adapters, HYBRID) != answers({}, HYBRID)


def test_with_prompt_lookup_the_answers_are_the_same_also_after_a_switch(answers: Answers) -> None:
    with lane(adapters=SETS[1], prompt_lookup=True) as pipeline:
        assert said(pipeline) == answers(SETS[1])
        pipeline.switch_adapters(SETS[3])
        assert said(pipeline) == answers(SETS[3])


def test_a_lane_with_a_draft_model_switches_to_no_adapters() -> None:
    with (
        lane(draft=PLAIN.parent / "draft") as pipeline,
        pytest.raises(ValueError, match="adapters cannot be used with draft"),
    ):
        pipeline.switch_adapters(LORA_A)


# --- what is refused -------------------------------------------------------------------------------------------------


def adapter_config() -> Any:
    config = openvino_genai.GenerationConfig()
    config.adapters = openvino_genai.AdapterConfig()
    return config


@pytest.mark.parametrize("config", [{"adapters": LORA_A}, {"adapters": [LORA_A]}, adapter_config()], ids=type)
def test_adapters_of_a_request_are_refused_with_the_way_out(config: object) -> None:
    with lane() as pipeline:
        beside = pipeline.submit(ids(10), max_new_tokens=200, **FULL)
        with pytest.raises(bg.InvalidRequest, match=r"ignores the adapters.*adapters=.*switch_adapters"):
            pipeline.submit(ids(5), config, max_new_tokens=3)
        assert beside.result(30).completion_tokens == 200


def test_a_file_that_is_wrong_is_refused_and_a_neighbours_stream_goes_on(tmp_path: Path) -> None:
    fifo, folder, loop = (tmp_path / f"{name}.safetensors" for name in ("fifo", "folder", "loop"))
    os.mkfifo(fifo)
    folder.mkdir()
    loop.symlink_to(loop)
    data, made = Path(LORA_A).read_bytes(), {}
    huge = (2**62).to_bytes(8, "little") + data[8:]
    for name, content in {"cut": data[:-15_000], "long": data + b"\0", "empty": b"", "huge": huge}.items():
        made[name] = tmp_path / f"{name}.safetensors"
        made[name].write_bytes(content)
    files: list[Any] = [fifo, folder, loop, *made.values(), *(wrong(what, tmp_path) for what in WRONG)]
    with lane(adapters=LORA_A) as pipeline:
        (alone,) = [pipeline.generate(ids(10), max_new_tokens=300, **FULL)]
        beside = pipeline.submit(ids(10), max_new_tokens=300, **FULL)
        for path in files:
            with pytest.raises(ValueError, match=str(path)):
                pipeline.switch_adapters(path)
            with pytest.raises(ValueError, match=str(path)):
                bg.BoundedPipeline(PLAIN, device="CPU", adapters=path)
        assert beside.result(30).token_ids == alone.token_ids
        assert in_force(pipeline) == {"lora_a.safetensors": 1.0}
        assert pipeline.stats().incarnation == 1


# --- engines that are lost -------------------------------------------------------------------------------------------


def kill(pipeline: bg.BoundedPipeline) -> None:
    pid = pipeline.stats().engine_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_after_a_crash_the_weights_are_the_same_whatever_became_of_the_file(tmp_path: Path, answers: Answers) -> None:
    path = tmp_path / "mine.safetensors"
    path.write_bytes(Path(LORA_A).read_bytes())
    with lane(adapters={path: 0.8}, restarts=2) as pipeline:
        assert said(pipeline) == answers(SETS[1])
        for change in (lambda: path.write_bytes(Path(LORA_B).read_bytes()), path.unlink):
            change()
            kill(pipeline)
            until(pipeline, lambda stats: not pipeline.health().ready)
            pipeline.wait_ready(30)
            assert said(pipeline) == answers(SETS[1])
            assert in_force(pipeline) == {"mine.safetensors": 0.8}


# --- the switch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("caching", [False, True])
def test_a_switch_gives_the_answers_of_the_new_adapters_and_none_of_the_old_cache(
    caching: bool, answers: Answers
) -> None:
    with lane(scheduler={"enable_prefix_caching": caching}) as pipeline:
        for turn, adapters in enumerate([*SETS[1:], SETS[0]], 2):
            said(pipeline)
            pipeline.switch_adapters(adapters or None)
            assert said(pipeline) == answers(adapters)
            assert len(in_force(pipeline)) == len(adapters)
            assert pipeline.stats().incarnation == turn
        stats = pipeline.stats()
        assert (stats.recycled_total, stats.restarts_total, sum(stats.kills_total.values())) == (4, 0, 0)


def test_each_is_served_by_the_adapters_that_were_in_force_when_it_was_submitted(answers: Answers) -> None:
    """One runs, two wait, the switch begins, two more come."""
    prompt = list(raw.PROMPTS[0])
    old, new = (tuple(answers(adapters)[0]) for adapters in (SETS[1], SETS[2]))
    with lane(adapters=SETS[1], limits=bg.Limits(running_max=1)) as pipeline:
        long = pipeline.submit(prompt, max_new_tokens=600, **FULL)
        before = [pipeline.submit(prompt, max_new_tokens=12, **FULL) for _ in range(2)]
        running(pipeline)
        switching = threading.Thread(target=pipeline.switch_adapters, args=(SETS[2],))
        switching.start()
        until(pipeline, lambda stats: "switching adapters" in pipeline.health().reason)
        assert pipeline.health().ready
        since = [pipeline.submit(prompt, max_new_tokens=12, priority=5, **FULL) for _ in range(2)]
        assert [one.result(60).token_ids for one in before] == [old, old]
        assert [one.result(60).token_ids for one in since] == [new, new]
        switching.join(30)
        assert long.result(1).token_ids[:12] == old


def test_what_takes_longer_than_the_drain_leaves_all_as_it_was(answers: Answers) -> None:
    with lane(adapters=SETS[1], scheduler={"num_kv_blocks": 1100}) as pipeline:
        long = pipeline.submit(ids(5), max_new_tokens=32_000, **FULL)
        running(pipeline)
        with pytest.raises(TimeoutError, match="1 that were submitted before were not served yet"):
            pipeline.switch_adapters(SETS[2], drain=0.3)
        assert said(pipeline) == answers(SETS[1])
        long.cancel()
        pipeline.switch_adapters(SETS[2])
        assert said(pipeline) == answers(SETS[2])


def test_there_is_one_switch_at_a_time_and_a_cancelled_one_is_dropped(answers: Answers) -> None:
    async def serve(pipeline: bg.BoundedPipeline) -> None:
        long = await pipeline.asubmit(ids(5), max_new_tokens=32_000, **FULL)
        switching = asyncio.create_task(pipeline.aswitch_adapters(SETS[2], drain=60))
        while "switching" not in pipeline.health().reason:  # noqa: ASYNC110 health tells nobody
            await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError, match="another switch of adapters is under way"):
            await pipeline.aswitch_adapters(SETS[3])
        with pytest.raises(RuntimeError, match=r"await pipeline.aswitch_adapters"):
            pipeline.switch_adapters(SETS[3])
        since = await pipeline.asubmit(list(raw.PROMPTS[0]), max_new_tokens=12, **FULL)
        switching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await switching
        assert list((await since).token_ids) == answers(SETS[1])[0]
        long.cancel()
        await pipeline.aswitch_adapters(SETS[3])

    with lane(adapters=SETS[1], scheduler={"num_kv_blocks": 1100}) as pipeline:
        asyncio.run(serve(pipeline))
        assert said(pipeline) == answers(SETS[3])


def test_a_switch_that_is_cancelled_while_its_files_are_read_is_dropped(monkeypatch: Any, answers: Answers) -> None:
    reading, read = threading.Event(), threading.Event()
    look = adapters_of

    def slowly(*given: Any) -> Any:
        reading.set()
        assert read.wait(10)
        return look(*given)

    async def serve(pipeline: bg.BoundedPipeline) -> None:
        long = await pipeline.asubmit(ids(5), max_new_tokens=32_000, **FULL)
        switching = asyncio.create_task(pipeline.aswitch_adapters(SETS[2], drain=60))
        assert await asyncio.to_thread(reading.wait, 10)
        switching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await switching
        read.set()
        since = await pipeline.asubmit(list(raw.PROMPTS[0]), max_new_tokens=12, **FULL)
        assert list((await since).token_ids) == answers(SETS[1])[0]
        long.cancel()
        await pipeline.aswitch_adapters(SETS[3])

    with lane(adapters=SETS[1], scheduler={"num_kv_blocks": 1100}) as pipeline:
        monkeypatch.setattr(exchanging, "adapters_of", slowly)
        asyncio.run(serve(pipeline))
        assert said(pipeline) == answers(SETS[3])


def test_a_kill_while_those_from_before_are_served_does_not_end_the_switch(answers: Answers) -> None:
    policy = bg.RestartPolicy(wait=lambda _: 0.0, resume="continue")
    with lane(adapters=SETS[1], restart=policy, restarts=1) as pipeline:
        before = pipeline.submit(list(raw.PROMPTS[0]), max_new_tokens=1000, **FULL)
        stream = iter(before)
        shown = list(next(stream).token_ids)
        switching = threading.Thread(target=pipeline.switch_adapters, args=(SETS[2],), kwargs={"drain": 60})
        switching.start()
        until(pipeline, lambda stats: "switching" in pipeline.health().reason)
        kill(pipeline)
        done = before.result(60)
        assert done.resumed == 1
        assert list(done.token_ids[:12]) == answers(SETS[1])[0], "by engines with the adapters that it was for"
        assert shown
        switching.join(30)
        assert not switching.is_alive()
        assert said(pipeline) == answers(SETS[2])


def test_a_kill_of_the_new_engine_while_it_starts_goes_back_to_the_old_adapters(answers: Answers) -> None:
    with lane(adapters=SETS[1], restarts=1) as pipeline:
        raised: list[BaseException] = []

        def switch() -> None:
            try:
                pipeline.switch_adapters(SETS[2])
            except BaseException as error:
                raised.append(error)

        switching = threading.Thread(target=switch)
        switching.start()
        until(pipeline, lambda stats: stats.incarnation == 2 and stats.engine_pid is not None)
        kill(pipeline)
        switching.join(30)
        (error,) = raised
        assert isinstance(error, bg.EngineUnavailable)
        assert "the lane goes on with those before: died: the process was killed by signal 9" in str(error)
        pipeline.wait_ready(30)
        assert said(pipeline) == answers(SETS[1])
        stats = pipeline.stats()
        assert (stats.incarnation, stats.kills_total["died"], stats.recycled_total) == (3, 1, 1)
        pipeline.switch_adapters(SETS[2])
        assert said(pipeline) == answers(SETS[2])


def test_adapters_that_the_engine_does_not_take_go_back_to_the_old_ones(
    tmp_path: Path, monkeypatch: Any, answers: Answers
) -> None:
    """As if there were something that our checks do not see."""
    monkeypatch.setattr("boundedgen._adapters.check_layers", lambda *given: None)
    path = tmp_path / "other_shapes.safetensors"
    path.write_bytes(packed(random_pair("model.layers.0.self_attn.q_proj", 64, 60)))
    with lane(adapters=SETS[1], restarts=1) as pipeline:
        with pytest.raises(
            bg.ModelLoadFailed, match="the lane goes on with those before: boot: The engine does not take"
        ):
            pipeline.switch_adapters(path)
        pipeline.wait_ready(30)
        assert said(pipeline) == answers(SETS[1])
        assert pipeline.stats().incarnation == 3


def test_a_lane_that_is_closed_or_closing_switches_no_more() -> None:
    with lane(adapters=LORA_A) as pipeline:
        pass
    with pytest.raises(bg.PipelineClosed):
        pipeline.switch_adapters(LORA_B)


def test_a_close_ends_a_switch_that_waits() -> None:
    raised: list[type] = []

    def switch() -> None:
        try:
            pipeline.switch_adapters(LORA_B, drain=60)
        except Exception as error:
            raised.append(type(error))

    with contextlib.closing(
        bg.BoundedPipeline(PLAIN, {"num_kv_blocks": 1100}, "CPU", F32, adapters=LORA_A)
    ) as pipeline:
        pipeline.wait_ready(60)
        long = pipeline.submit(ids(5), max_new_tokens=32_000, **FULL)
        running(pipeline)
        switching = threading.Thread(target=switch)
        switching.start()
        until(pipeline, lambda stats: "switching" in pipeline.health().reason)
        pipeline.close()
        switching.join(10)
        assert raised == [bg.PipelineClosed]
        assert long.finish_reason is bg.FinishReason.SHUTDOWN


# --- traffic ---------------------------------------------------------------------------------------------------------


def traffic(seeds: range, model: str = MODEL, adapters: list[Any] | None = None) -> tuple[dict[str, int], int]:
    """Mixed runs beside each other, and a switch to other adapters now and then; how requests ended, and switches."""
    sets, switches = SETS if adapters is None else adapters, 0
    ends: dict[str, int] = {}
    with lane(model, {"num_kv_blocks": 16}, adapters=sets[1]) as pipeline:
        for seed in seeds:
            random_ = random.Random(seed)
            runs = [threading.Thread(target=_run, args=(pipeline, seed * 10 + n, ends)) for n in range(2)]
            for run in runs:
                run.start()
            if seed % 3 == 0:
                time.sleep(random_.uniform(0, 0.05))
                pipeline.switch_adapters(random_.choice(sets) or None, drain=30)
                switches += 1
            for run in runs:
                run.join(120)
                assert not run.is_alive(), f"stuck: seed {seed}"
        stats = pipeline.stats()
        assert stats.recycled_total == switches
    return ends, switches


def _run(pipeline: bg.BoundedPipeline, seed: int, ends: dict[str, int]) -> None:
    for end in mixed_run(pipeline, random.Random(seed)):
        ends[end] = ends.get(end, 0) + 1


def test_mixed_traffic_with_switches_loses_nothing() -> None:
    """A short one; `nox -s kinds` runs a hundred."""
    seeds = range(int(os.environ.get("BOUNDEDGEN_KIND_RUNS", "12")))
    ends, switches = traffic(seeds)
    print(f"\nseeds {seeds}: {ends}, {switches} switches")
    assert set(ends) <= {"stop", "length", "cancelled", "deadline", "lease"}
    assert sum(ends.values()) >= 4 * len(seeds)
