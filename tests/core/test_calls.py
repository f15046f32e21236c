"""Every public call with every strange argument: taken, or refused by name, at once, with nothing started."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest
from core.hand_engine import HandEngine, lane, until
from core.hostile import AT_ONCE_S, STRANGE, timed
from hypothesis import example, given, settings
from hypothesis import strategies as st

import boundedgen as b
from boundedgen._generation_fields import FIELDS, NEUTRAL

LIMITS = b.Limits(progress=1e6, ack=1e6, reclaim=1e6, prompt_bytes=1 << 16, max_new_tokens=32, max_new_tokens_default=8)
OF_SUBMIT = (b.InvalidRequest, b.NeverFits, b.LeaseExpired)
WRONG = (TypeError, ValueError)
ARGUMENTS = ("bounds", "lease", "owner", "priority", "label", "supersede", "tools", "template_context")


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[b.BoundedPipeline, HandEngine]]:
    with lane(limits=LIMITS) as (pipeline, engine):
        yield pipeline, engine


@pytest.fixture
def pipeline(opened: tuple[b.BoundedPipeline, HandEngine]) -> Iterator[b.BoundedPipeline]:
    """A lane in which nothing is left behind, and that still serves."""
    pipeline, engine = opened
    yield pipeline
    until(lambda: at_rest(pipeline))
    serves(pipeline, engine)


@pytest.fixture(scope="module")
def closed() -> b.BoundedPipeline:
    with lane(limits=LIMITS) as (pipeline, _):
        return pipeline


@pytest.fixture(scope="module")
def settled(opened: tuple[b.BoundedPipeline, HandEngine]) -> b.Generation:
    generation = opened[0].submit("x", max_new_tokens=4)
    generation.cancel()
    generation.wait_reclaimed(20)
    return generation


def at_rest(pipeline: b.BoundedPipeline) -> bool:
    stats = pipeline.stats()
    return not (stats.waiting or stats.running or stats.stopping or stats.blocks_reserved)


def serves(pipeline: b.BoundedPipeline, engine: HandEngine) -> None:
    nth = len(engine.link.requests)
    generation = pipeline.submit([5], max_new_tokens=4)
    engine.say(nth=nth)
    engine.finish("length", nth=nth)
    assert generation.result(20).finish_reason is b.FinishReason.LENGTH
    until(lambda: at_rest(pipeline))


def taken_or_refused(call: Callable[[Any], object], name: str, kinds: tuple[type[Exception], ...]) -> list[str]:
    """What was taken. The rest was refused at once with one of `kinds`, in a short message that names the argument."""
    taken = []
    for what, value in STRANGE.items():
        result, error, took = timed(partial(call, value))
        assert took < AT_ONCE_S, f"{what}: {took:.3f} s"
        if isinstance(result, b.Generation):
            result.cancel()
        if error is None:
            taken.append(what)
            continue
        assert type(error) in kinds, f"{what}: {error!r:.300}"
        assert name in str(error), f"{what}: {error}"
        assert len(str(error).encode()) < 400, what
    assert len(taken) < len(STRANGE), f"{name} takes anything"
    return taken


# --- submit ----------------------------------------------------------------------------------------------------------


def test_any_prompt_is_taken_or_refused(pipeline: b.BoundedPipeline) -> None:
    taken = taken_or_refused(lambda value: pipeline.submit(value, max_new_tokens=4), "prompt", OF_SUBMIT)
    assert {"str", "messages", "array of ints", "touchy str", "list of touchy ints"} <= set(taken)


def test_any_prompt_is_taken_or_refused_when_it_is_wrapped(pipeline: b.BoundedPipeline) -> None:
    taken_or_refused(lambda v: pipeline.submit(v, max_new_tokens=4, apply_chat_template=True), "prompt", OF_SUBMIT)


def test_any_generation_config_is_taken_or_refused(pipeline: b.BoundedPipeline) -> None:
    taken = taken_or_refused(lambda value: pipeline.submit("x", value), "generation", OF_SUBMIT)
    assert taken == ["None", "empty dict"]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_any_argument_of_submit_is_taken_or_refused(pipeline: b.BoundedPipeline, name: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    names = "lease" if name == "lease" else name
    taken_or_refused(lambda value: pipeline.submit(messages, max_new_tokens=4, **{name: value}), names, OF_SUBMIT)


@pytest.mark.parametrize("name", [*FIELDS, *NEUTRAL, "nonsense", "timeout"])
def test_any_keyword_of_submit_is_taken_or_refused(pipeline: b.BoundedPipeline, name: str) -> None:
    taken_or_refused(lambda value: pipeline.submit([5], **{name: value}), name, (b.InvalidRequest, b.NeverFits))


#: Beyond what is strange, what is nearly right.
VALUES = st.one_of(
    st.sampled_from(list(STRANGE)).map(STRANGE.__getitem__),
    st.integers(),
    st.integers(0, 300),
    st.floats(),
    st.floats(width=32).map(np.float32),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.lists(st.integers(-5, 300) | st.text(max_size=3) | st.floats(), max_size=20),
    st.booleans(),
    st.builds(lambda n: 10**n, st.integers(20, 6000)),
)
USUAL = object()
MESSAGES = [{"role": "user", "content": "hi"}]
SENSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "max_new_tokens": st.integers(1, 40),
    "min_new_tokens": st.integers(0, 4),
    "do_sample": st.booleans(),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "num_beams": st.integers(1, 4),
    "num_return_sequences": st.integers(1, 4),
    "stop_strings": st.lists(st.text(max_size=5), max_size=3),
    "stop_token_ids": st.lists(st.integers(0, 260), max_size=5),
    "bounds": st.builds(b.Bounds, total=st.floats(-1, 100), queued=st.none() | st.floats(allow_nan=False)),
    "owner": st.text(max_size=5),
    "label": st.text(max_size=5),
    "priority": st.integers(-3, 3),
}
NAMES = st.sampled_from([*FIELDS, *NEUTRAL, *ARGUMENTS]) | st.text(min_size=1, max_size=10)


def mostly(sensible: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Else nothing would get past the first argument that is looked at."""
    return st.integers(0, 9).flatmap(lambda n: VALUES if n == 0 else sensible)


def keywords_of(sensible: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    strange = mostly(st.just(USUAL)).flatmap(
        lambda usual: st.just({}) if usual is USUAL else st.dictionaries(NAMES, VALUES, max_size=2)
    )
    return st.builds(lambda usual, other: {**usual, **other}, st.fixed_dictionaries({}, optional=sensible), strange)


CONFIGS = keywords_of({name: values for name, values in SENSIBLE.items() if name in FIELDS})


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    prompt=mostly(st.sampled_from(["x", [5, 6], MESSAGES])),
    config=mostly(st.none() | CONFIGS),
    keywords=keywords_of(SENSIBLE),
)
@example(prompt="x", config=None, keywords={"bounds": b.Bounds(total=10**400), "max_new_tokens": 4})
@example(prompt=[10**5000], config={10**5000: 1}, keywords={"max_new_tokens": 10**400})
def test_whatever_is_submitted_is_taken_or_refused_and_the_lane_is_unharmed(
    opened: tuple[b.BoundedPipeline, HandEngine], prompt: Any, config: Any, keywords: dict[str, Any]
) -> None:
    pipeline, _ = opened
    before = pipeline.stats()
    names = ["prompt", "generation", *keywords, *(config if type(config) is dict else ())]
    result, error, took = timed(lambda: pipeline.submit(prompt, config, **keywords))
    assert took < AT_ONCE_S
    if isinstance(result, b.Generation):
        result.cancel()
        result.wait_reclaimed(20)
    elif isinstance(error, TypeError):  # Python's own: a name given twice
        assert {"prompt", "generation_config", "self"} & set(keywords)
    else:
        assert type(error) in OF_SUBMIT, repr(error)[:300]
        assert any(isinstance(name, str) and name[:20] in str(error) for name in names) or "is not a field" in str(
            error
        )
        assert len(str(error).encode()) < 400
        assert pipeline.stats().submitted_total == before.submitted_total
    until(lambda: at_rest(pipeline))


def test_the_lane_that_was_fuzzed_still_serves(pipeline: b.BoundedPipeline) -> None:
    assert pipeline.health().ready


# --- prompts that are too long ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [[5] * 3_000_000, ["x"] * 3_000_000, np.full(3_000_000, 5)])
def test_three_million_ids_are_refused_by_their_length(pipeline: b.BoundedPipeline, prompt: object) -> None:
    _, error, took = timed(lambda: pipeline.submit(prompt, max_new_tokens=4))
    assert isinstance(error, b.NeverFits)
    assert took < 0.005


def test_a_prompt_that_can_never_fit_is_told_the_longest_that_does(pipeline: b.BoundedPipeline) -> None:
    with pytest.raises(b.NeverFits, match="the longest prompt that fits beside it has 253 tokens") as caught:
        pipeline.submit([5] * 254, max_new_tokens=4)
    assert caught.value.prompt_tokens_max == 253
    pipeline.submit([5] * 253, max_new_tokens=4).cancel()


def test_where_no_prompt_fits_it_says_so(pipeline: b.BoundedPipeline) -> None:
    with pytest.raises(b.NeverFits, match="no prompt fits beside it: lower max_new_tokens") as caught:
        pipeline.submit([5], max_new_tokens=32, num_return_sequences=16, do_sample=True)
    assert caught.value.prompt_tokens_max == 0


def test_a_length_that_is_not_what_was_written_says_why(pipeline: b.BoundedPipeline) -> None:
    with pytest.raises(b.NeverFits, match=r"max_new_tokens=32 \(Limits.max_new_tokens; asked: 5000\) in"):
        pipeline.submit([5] * 254, max_new_tokens=5000)
    with pytest.raises(b.NeverFits, match=r"max_new_tokens=8 \(the default\) in"):
        pipeline.submit([5] * 254)
    with pytest.raises(b.NeverFits, match=r"max_new_tokens=8 in"):
        pipeline.submit([5] * 254, max_new_tokens=8)


def test_where_nothing_is_reserved_more_ids_than_bytes_are_refused_all_the_same() -> None:
    limits = b.Limits(progress=1e6, prompt_bytes=100)
    with lane(limits=limits, admission=b.Admission(policy="engine")) as (pipeline, _):
        with pytest.raises(b.Rejected, match="prompt") as caught:
            pipeline.submit([5] * 101, max_new_tokens=4)
        assert isinstance(caught.value, b.InvalidRequest | b.NeverFits)


def test_a_list_that_changes_while_it_is_read_is_refused(pipeline: b.BoundedPipeline) -> None:
    class Growing(list[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([5] * 200)

    with pytest.raises(b.InvalidRequest, match="prompt had 3 token ids and then 200"):
        pipeline.submit(Growing([5, 5, 5]), max_new_tokens=4)


# --- leases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["find_lease", "renew", "revoke"])
def test_any_id_of_a_lease_is_taken_or_refused(pipeline: b.BoundedPipeline, name: str) -> None:
    taken = taken_or_refused(getattr(pipeline, name), "lease", (*WRONG, b.LeaseExpired))
    assert "list" not in taken


@pytest.mark.parametrize("name", ["owner", "ttl", "renew_on_read", "max_sequences"])
def test_any_argument_of_a_lease_is_taken_or_refused(pipeline: b.BoundedPipeline, name: str) -> None:
    def grant(value: object) -> None:
        arguments: dict[str, Any] = {"owner": "me", "ttl": 60, name: value}
        pipeline.lease(**arguments).revoke()

    taken = taken_or_refused(grant, name, WRONG)
    assert set(taken) < set(STRANGE)


def test_any_owner_of_a_renewal_is_taken_or_refused(pipeline: b.BoundedPipeline) -> None:
    with pipeline.lease("me", ttl=60) as lease:
        kinds = (TypeError, b.LeaseExpired)
        taken = taken_or_refused(lambda value: pipeline.renew(lease.id, value), "", kinds)
    assert taken == ["None"]


def test_the_lease_of_another_pipeline_is_none_here(pipeline: b.BoundedPipeline) -> None:
    with lane(limits=LIMITS) as (other, _), other.lease("me", ttl=60) as lease, pytest.raises(b.LeaseExpired):
        pipeline.submit("x", max_new_tokens=4, lease=lease)


# --- waiting ---------------------------------------------------------------------------------------------------------


def in_a_loop(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(value: object) -> Any:
        async def awaited() -> Any:
            return await call(value)

        return asyncio.run(awaited())

    return run


def test_any_timeout_of_a_call_that_waits_is_taken_or_refused(
    pipeline: b.BoundedPipeline, closed: b.BoundedPipeline, settled: b.Generation
) -> None:
    started = pipeline.stats().submitted_total
    calls: list[tuple[Callable[[Any], Any], tuple[type[Exception], ...]]] = [
        (pipeline.wait_ready, WRONG),
        (in_a_loop(pipeline.await_ready), WRONG),
        (settled.result, (*WRONG, b.GenerationCancelled)),
        (in_a_loop(settled.wait), WRONG),
        (settled.wait_reclaimed, WRONG),
        (in_a_loop(settled.await_reclaimed), WRONG),
        (closed.probe, WRONG),
        (in_a_loop(closed.aprobe), WRONG),
    ]
    for call, kinds in calls:
        taken_or_refused(call, "timeout" if b.GenerationCancelled not in kinds else "", kinds)
    assert pipeline.stats().submitted_total == started


def test_a_timeout_that_generate_cannot_take_starts_nothing(pipeline: b.BoundedPipeline) -> None:
    started = pipeline.stats().submitted_total
    wrong: list[Any] = ["5", float("nan"), [], True]
    for timeout in wrong:
        with pytest.raises(WRONG, match="timeout"):
            pipeline.generate("x", max_new_tokens=4, timeout=timeout)
    assert pipeline.stats().submitted_total == started


@pytest.mark.parametrize(
    "timeout", [0, -1, timedelta(0), timedelta(-1), float("-inf"), 0.001, timedelta(microseconds=1)]
)
def test_a_wait_of_no_length_only_looks(pipeline: b.BoundedPipeline, timeout: float | timedelta) -> None:
    with pipeline.submit("x", max_new_tokens=4) as generation:
        with pytest.raises(TimeoutError, match="this ends only the wait"):
            generation.result(timeout)
        with pytest.raises(TimeoutError, match="no proof of release"):
            generation.wait_reclaimed(timeout)
        assert not in_a_loop(generation.wait)(timeout)
        assert generation.phase != "settled"
        pipeline.wait_ready(timeout)


def test_tighten_takes_bounds_only(pipeline: b.BoundedPipeline) -> None:
    with pipeline.submit("x", max_new_tokens=4) as generation:
        taken = taken_or_refused(generation.tighten, "bounds", (TypeError,))
        assert taken == []
        for bounds in (b.Bounds(total=10**400), b.Bounds(queued=1e300), b.Bounds(first_token=float("inf"))):
            generation.tighten(bounds)
        assert generation.phase != "settled"


@pytest.mark.parametrize("drain", [timedelta.max, 1e300, -5, timedelta(seconds=0.01)])
def test_any_drain_closes_an_idle_pipeline_at_once(drain: float | timedelta) -> None:
    with lane(limits=LIMITS) as (pipeline, _):
        pipeline.close(drain)
        assert pipeline.health().state is b.HealthState.CLOSED


def test_bounds_of_any_size_are_kept(pipeline: b.BoundedPipeline) -> None:
    for size in (10**400, 1e300, float("inf"), timedelta.max, 5e-324, -(10**400), timedelta.min):
        generation = pipeline.submit("x", max_new_tokens=4, bounds=b.Bounds(total=size, queued=size))
        assert generation.bounds.total is not None
        assert generation.bounds.total <= 600
        if generation.bounds.total > 1:
            generation.cancel()
        with pytest.raises((b.DeadlineExceeded, b.GenerationCancelled)):
            generation.result(20)


# --- what a newcomer is told -----------------------------------------------------------------------------------------


def test_any_prompts_of_generate_many_are_refused_or_submitted(closed: b.BoundedPipeline) -> None:
    kinds = (*WRONG, b.PipelineClosed)
    for what, value in STRANGE.items():
        _, error, took = timed(partial(closed.generate_many, value))
        assert took < AT_ONCE_S, what
        assert error is None or type(error) in kinds, f"{what}: {error!r:.300}"


def test_prompts_without_end_are_refused_when_the_queue_is_full() -> None:
    def endless() -> Any:
        while True:
            yield "x"

    with lane(limits=b.Limits(progress=1e6, waiting_max=5)) as (pipeline, _):
        with pytest.raises(b.Saturated, match=r"5 sequences are waiting \(Limits.waiting_max\)"):
            pipeline.generate_many(endless(), max_new_tokens=4)
        assert pipeline.stats().submitted_total == 0


def test_several_prompts_in_one_are_pointed_to_generate_many(pipeline: b.BoundedPipeline) -> None:
    for prompt in (["one", "two"], [[5], [6]], np.ones((2, 3), dtype=int)):
        with pytest.raises(b.InvalidRequest, match="generate_many"):
            pipeline.submit(prompt, max_new_tokens=4)


def test_a_single_message_is_asked_for_in_a_list(pipeline: b.BoundedPipeline) -> None:
    with pytest.raises(b.InvalidRequest, match="put a single message into a list"):
        pipeline.submit({"role": "user", "content": "hi"})


def test_saturation_names_the_limit() -> None:
    with lane(limits=b.Limits(progress=1e6, waiting_max=8, owner_max=1, leases_max=1)) as (pipeline, _):
        first = pipeline.submit("x", max_new_tokens=4, owner="me")
        with pytest.raises(b.Saturated, match=r"\(Limits.owner_max\)"):
            pipeline.submit("x", max_new_tokens=4, owner="me")
        lease = pipeline.lease("you", ttl=60, max_sequences=0 + 1)
        with pytest.raises(b.Saturated, match=r"\(Limits.leases_max\)"):
            pipeline.lease("them", ttl=60)
        first.cancel()
        under = pipeline.submit("x", max_new_tokens=4, lease=lease)
        with pytest.raises(b.Saturated, match=r"owner 'you' has 1|\(max_sequences\)"):
            pipeline.submit("x", max_new_tokens=4, lease=lease)
        under.cancel()


def test_a_closed_pipeline_says_what_to_do(closed: b.BoundedPipeline) -> None:
    with pytest.raises(b.PipelineClosed, match="build a new one"):
        closed.submit("x")


async def _entered(pipeline: b.BoundedPipeline) -> None:
    with pipeline:
        pass


def test_with_in_a_coroutine_is_pointed_to_async_with() -> None:
    with lane(limits=LIMITS) as (pipeline, _), pytest.raises(RuntimeError, match="use 'async with'"):
        asyncio.run(_entered(pipeline))
