"""From a call to a generation that the driver has: refusals, places at the door, grammars that are checked beside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from boundedgen._admitting import Admitting
from boundedgen._arguments import kind_of, reading
from boundedgen._call import CALL_ARGUMENTS, Call
from boundedgen._door import Rejections
from boundedgen._driver import Driver
from boundedgen._errors import EngineUnavailable, InvalidRequest, PipelineClosed, Rejected
from boundedgen._flow import Flow
from boundedgen._following import Follower, Following
from boundedgen._generation import Generation
from boundedgen._grammar import GrammarChecker
from boundedgen._observing import error_of, retry_after_s
from boundedgen._prospects import spread
from boundedgen._runtime import Runtime
from boundedgen._stats import Health, HealthState


class Serving:
    """Used by callers' threads; nothing here waits for the engine."""

    def __init__(
        self,
        driver: Driver,
        admitting: Admitting,
        grammars: GrammarChecker | None,
        runtime: Runtime,
        tokenizer_ready: Callable[[], bool],
    ) -> None:
        self.rejections = Rejections()
        self._following: Following | None = None
        self._driver = driver
        self._admitting = admitting
        self._grammars = grammars
        self._runtime = runtime
        self._tokenizer_ready = tokenizer_ready
        self._checks = runtime.aside("boundedgen-checks")
        self.beside = self._checks.run  #: for what may wait for a grammar's check

    def submit(self, call: Call) -> Generation:
        return self._send(self._admit(call))

    def submit_all(self, calls: Iterable[Callable[[], Call]]) -> list[Generation]:
        """All, or, if one is refused, none."""
        flows: list[Flow] = []
        try:
            flows.extend(self._admit(call()) for call in calls)
            return [self._send(flow) for flow in flows]
        except BaseException:  # also an interrupt: what was sent is cancelled, since nobody holds it
            for flow in flows:
                flow.give_back()
            raise

    def probe(self, timeout: float) -> Generation | str:
        """The probe's generation, or why it cannot be run."""
        self.refuse_unless_served()
        facts = self._driver.snapshot.facts
        assert facts is not None
        if any(pool.name not in facts.probe_blocks for pool in facts.pools):
            return "no block could be set aside for it in this engine's cache"
        return self._send(self._admitting.probe(timeout))

    def refuse_unless_served(self) -> None:
        """Raises what the state of the lane demands; returns when a submission can be taken."""
        self.refuse_unless_open()
        if self._driver.snapshot.facts is None or not self._tokenizer_ready():
            raise self._not_yet()

    def refuse_unless_ready(self, health: Health, within: float | None) -> None:
        """Raises why the engine does not serve yet, or never will."""
        if health.state in (HealthState.READY, HealthState.STALLED):
            return
        if health.state in (HealthState.FAILED, HealthState.DRAINING, HealthState.CLOSED):
            self.refuse_unless_served()
        why = f"{health.state}; last: {health.reason}" if health.reason else health.state
        after = self._spread(health.retry_after_s)
        raise EngineUnavailable(f"not ready within {within} s: {why}", retry_after_s=after)

    def _not_yet(self) -> EngineUnavailable:
        snapshot = self._driver.snapshot
        last = f"; last: {snapshot.reason}" if snapshot.reason else ""
        after = self._spread(retry_after_s(snapshot, self._runtime.now()))
        return EngineUnavailable(f"the engine is being started; wait_ready() waits for it{last}", retry_after_s=after)

    def _spread(self, seconds: float | None) -> float | None:
        return None if seconds is None else spread(seconds, self._runtime.chance)

    def refuse_unless_open(self) -> None:
        """Raises once the pipeline has failed, or is closed or closing."""
        driver = self._driver
        driver.check_process()
        snapshot = driver.snapshot
        if snapshot.state == "failed" or driver.failure is not None:
            raise error_of(driver, snapshot)
        if snapshot.state in ("closed", "draining") or driver.over:
            raise PipelineClosed("this pipeline is closed or closing; build a new one, or send this to another")

    def close(self) -> None:
        self._checks.close()
        if self._grammars is not None:
            self._grammars.close()

    def _admit(self, call: Call) -> Flow:
        """A flow with its places at the door, not sent yet."""
        try:
            self.refuse_unless_served()
            return self._admitting.admit(call)
        except Rejected as error:
            self.rejections.add(error)
            raise

    def follow(self, follower: Follower) -> Following:
        """Have `follower` hear of every generation that is submitted from now on. RuntimeError: somebody else does."""
        if self._following is not None:
            raise RuntimeError("somebody follows this pipeline's generations already: close that first")
        self._following = found = Following(follower, self._runtime.aside("boundedgen-following"))
        self._driver.asides.append(found.aside)
        return found

    def unfollow(self, following: Following) -> None:
        """It hears of nothing new; what has ended by now still comes to it."""
        following.close()
        if self._following is following:
            self._following = None
            self._driver.asides.remove(following.aside)

    def _send(self, flow: Flow) -> Generation:
        try:
            if (following := self._following) is not None and not flow.submission.probe:
                following.begin(flow)
            generation = Generation(flow, self._driver, self._runtime)
            self._driver.submit(flow)
        except BaseException:
            flow.give_back()
            raise
        if not flow.submission.cleared and not self._checks.run(lambda: self._check_grammar(flow)):
            self._driver.post("refuse", flow.submission.id, "its grammar cannot be checked any more")
        return generation

    def _check_grammar(self, flow: Flow) -> None:
        """Only this sequence waits for it."""
        ((kind, text),) = flow.config["structured_output_config"].items()
        verdict = None if flow.done or self._grammars is None else self._grammars.check(kind, text)
        if verdict is None:
            self._driver.post("clear", flow.submission.id)
        else:
            detail = f"structured_output_config.{kind} does not compile: {verdict}"
            self._driver.post("refuse", flow.submission.id, detail)


def calls_of(prompts: Iterable[object], config: object, arguments: Mapping[str, Any]) -> Iterator[Callable[[], Call]]:
    """One call a prompt, made when it is needed, from the keywords of `submit`. TypeError if there are no prompts."""
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
        raise TypeError(f"prompts must be a list of prompts, not {kind_of(prompts)}; for a single one use generate")
    if arguments.get("supersede", False) is not False:
        raise InvalidRequest("supersede is for a single generation: the prompts would replace each other")
    own = {name: value for name, value in arguments.items() if name in CALL_ARGUMENTS}
    keywords = {name: value for name, value in arguments.items() if name not in CALL_ARGUMENTS}
    with reading("prompts", TypeError):
        each = iter(prompts)
    return (partial(Call, prompt=prompt, config=config, keywords=keywords, **own) for prompt in each)
