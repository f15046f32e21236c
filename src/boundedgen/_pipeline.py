"""`BoundedPipeline`: what users hold."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, final, overload

from boundedgen._admission import Admission
from boundedgen._admitting import Admitting
from boundedgen._blackbox._box import box_of, install
from boundedgen._bounds import Bounds, Limits, patience
from boundedgen._call import Call
from boundedgen._closing import Closing
from boundedgen._completion import Completion
from boundedgen._device_lock import entrust, lock_of
from boundedgen._driver import Driver
from boundedgen._errors import BoundedGenError
from boundedgen._exchanging import Exchange, Switching
from boundedgen._generation import Generation, aoutcomes, outcomes, refuse_to_block
from boundedgen._lease import Lease
from boundedgen._leasing import Leasing
from boundedgen._loading import Loading
from boundedgen._making import CLOSING_SLACK, parts_of
from boundedgen._observing import health_of, stats_of
from boundedgen._probing import Probing
from boundedgen._restart import RestartPolicy
from boundedgen._runtime import runtime_of
from boundedgen._serving import Serving, calls_of
from boundedgen._settings import settings_of
from boundedgen._stats import Health, ProbeResult, SchedulerStats
from boundedgen._stats_document import document_of, source_of
from boundedgen._stats_socket import StatsSocket, StatsSockets
from boundedgen.abc import Clock, EngineHost


@final
class BoundedPipeline(Switching):
    """Continuous batching of OpenVINO GenAI in which every generation ends in time and gives its cache back, proved.

    The constructor checks its arguments (TypeError and ValueError name the wrong one), starts the engine in a child
    process and returns; `with` and `async with` wait until it is ready (at most `Limits.boot`, 300 s) and raise
    ModelLoadFailed, DeviceUnavailable or EngineFailed. Leaving closes: after a normal exit with a drain of
    `Limits.drain` (30 s), after an exception at once; if the lane has FAILED, a normal exit raises `health().error`, so
    that a server does not end as if all were well. Every method may be called from any thread; those that wait, except
    `close`, refuse to block a running event loop (RuntimeError) and name the awaitable one. The first four arguments
    are those of `openvino_genai.ContinuousBatchingPipeline`:

    - `models_path`: a folder with an OpenVINO model, or a GGUF file.
    - `scheduler_config`: an `openvino_genai.SchedulerConfig` or a mapping of its fields. With neither `num_kv_blocks`
      nor `cache_size` (GB) the cache has a quarter of the memory that is free for this process, 1 to 4 GB.
    - `device`: "GPU", "GPU.1", "CPU", as OpenVINO names it.
    - `properties`, `tokenizer_properties`: OpenVINO's, for the device and for the tokenizer; plain data only.
    - `adapters`: LoRA adapters (.safetensors), a path or a mapping of paths to weights: docs/request-kinds.md.
    - `limits`, `admission`, `restart`: None: the defaults of Limits, Admission and RestartPolicy.
    - `bounds`: of every generation; a call can only tighten them. `total` must be finite. None: `Bounds(total=600)`.
    - `lease_ttl`: generations without a lease get an implicit one of so many seconds, renewed by reading and waiting.
    - `prompt_lookup` (True or a mapping), `draft` (a folder or a mapping): several tokens a step: docs/request-kinds.md
    - `black_box`: a folder, made if need be, in which each lost engine leaves an incident. None: nothing is kept.
    - `device_lock`: a file that each engine keeps locked. If another does, this raises DeviceUnavailable. None: none.
    - `engine`, `clock`: for tests: the child with its tokenizer (`models_path` may then be None), and time.
    """

    def __init__(
        self,
        models_path: str | os.PathLike[str] | None,
        scheduler_config: object = None,
        device: str = "GPU",
        properties: Mapping[str, Any] | None = None,
        *,
        tokenizer_properties: Mapping[str, Any] | None = None,
        adapters: str | os.PathLike[str] | Mapping[Any, float] | None = None,
        limits: Limits | None = None,
        bounds: Bounds | None = None,
        lease_ttl: float | timedelta | None = None,
        admission: Admission | None = None,
        restart: RestartPolicy | None = None,
        draft: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        prompt_lookup: bool | Mapping[str, int] | None = None,
        black_box: str | os.PathLike[str] | None = None,
        device_lock: str | os.PathLike[str] | None = None,
        engine: EngineHost | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings = settings_of(limits, bounds, lease_ttl, admission, restart)
        self._limits = limits = settings.limits
        given = (models_path, scheduler_config, device, properties, tokenizer_properties, limits, engine)
        parts = parts_of(*given, draft, prompt_lookup, settings.admission.policy, adapters)
        self._configuration = parts.configuration
        asked = {**parts.configuration, "bounds": settings.bounds, "admission": settings.admission}
        box = box_of(black_box, limits, asked)
        self._runtime = runtime = runtime_of(clock)
        with contextlib.ExitStack() as undo:
            self._driver = driver = Driver(parts.host, settings, runtime)
            undo.callback(driver.abandon, limits.reap + CLOSING_SLACK)
            self._loading = loading = Loading(parts.host, driver, runtime.aside("boundedgen-tokenizer"))
            admitting = Admitting(driver, settings, runtime, loading.need, parts.kind, parts.host)
            self._serving = Serving(driver, admitting, parts.grammars, runtime, loading.done)
            self._leasing = Leasing(driver, limits, runtime)
            self._probing = Probing(self._serving.probe, self._serving.beside, limits.probe_timeout, runtime.now)
            self._stats_sockets = StatsSockets()
            self._closing = Closing(driver, self._serving, self._stats_sockets, runtime, limits.reap)
            driver.probe = self._probing.due
            self._exchange = Exchange(parts, driver, limits)
            install(box, driver, self._serving.rejections.by_error)
            entrust(lock_of(device_lock), parts.host, driver)
            driver.start()
            loading.start()
            undo.pop_all()

    # --- submitting ----------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt: object,
        generation_config: object = None,
        *,
        bounds: Bounds | None = None,
        lease: Lease | str | None = None,
        owner: str = "",
        priority: int = 0,
        label: str = "",
        supersede: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_context: Mapping[str, Any] | None = None,
        images: Sequence[object] | None = None,
        traceparent: str | None = None,
        **config: Any,
    ) -> Generation:
        """Start a generation and return its handle; waits for nothing but the tokenizer, in this thread.

        - `prompt`: a str as it is (`apply_chat_template=True` wraps it as a user message), token ids (a list or a 1-D
          integer array), or chat messages (a list of mappings with role and content, or a ChatHistory).
        - `generation_config`: an `openvino_genai.GenerationConfig` or a mapping of its fields; `config`, all other
          keywords, go over it: `max_new_tokens=200, do_sample=True, temperature=0.7`.
        - `bounds`: tighten the pipeline's, kind by kind.
        - `lease`: a Lease or its id: the generation ends when that does. `owner` comes from it, else it is yours; it
          counts for `Limits.owner_max`.
        - `priority`: a whole number; higher is admitted first (see Admission for the order of those that wait).
        - `label`: yours, for logs, errors and stats.
        - `supersede`: the newest generation of the same owner and label that waits or runs makes way for this one: it
          ends GenerationCancelled, and this one has its place in the queue and its shares. If there is none, so be it.
          Needs a label; those without an owner are one owner.
        - `tools`: what the model may call, a list of mappings as its chat template expects them (function
          descriptions as JSON schema); `template_context`: further variables of the template, such as
          `{"enable_thinking": False}`. Both only with chat messages. What the model calls comes as text.
        - `images`: beside a str, for a model that sees; in chat messages an image is a part (docs/request-kinds.md).
        - `traceparent`: W3C's: the parent of its span (boundedgen.exporters). A malformed one is as if there were none.

        Raises a `Rejected` (InvalidRequest, NeverFits, Saturated, EngineUnavailable, PipelineClosed: nothing was
        started), or LeaseExpired.
        """
        call = Call(
            prompt=prompt, config=generation_config, keywords=config, bounds=bounds, lease=lease, owner=owner,
            priority=priority, label=label, supersede=supersede, tools=tools, template_context=template_context,
            images=images, traceparent=traceparent,
        )  # fmt: skip
        return self._serving.submit(call)

    async def asubmit(self, prompt: object, generation_config: object = None, **arguments: Any) -> Generation:
        """`submit`, with templating and encoding in a worker thread. A cancelled call leaves nothing running.

        `prompt`, `generation_config` and `arguments` are those of `submit`.
        """
        return await self._runtime.offload(self.submit, prompt, generation_config, **arguments)

    def generate(
        self,
        prompt: object,
        generation_config: object = None,
        *,
        timeout: float | timedelta | None = None,
        **arguments: Any,
    ) -> Completion:
        """Submit and wait for the completion, or raise its GenerationError.

        `prompt`, `generation_config` and `arguments` are those of `submit`. Leaving early, by `timeout` (seconds; a
        plain TimeoutError) or a signal, cancels it. None: as long as its bounds allow.
        """
        refuse_to_block("'await pipeline.agenerate(…)'")
        timeout = patience(timeout)
        with self.submit(prompt, generation_config, **arguments) as generation:
            return generation._result(timeout, "it is cancelled")

    async def agenerate(self, prompt: object, generation_config: object = None, **arguments: Any) -> Completion:
        """`generate` for a coroutine; cancelling it, also by `asyncio.wait_for`, cancels the generation.

        `prompt`, `generation_config` and `arguments` are those of `submit`.
        """
        return await (await self.asubmit(prompt, generation_config, **arguments))

    @overload
    def generate_many(
        self,
        prompts: Sequence[object],
        generation_config: object = ...,
        *,
        return_errors: Literal[False] = ...,
        **arguments: Any,
    ) -> list[Completion]: ...
    @overload
    def generate_many(
        self, prompts: Sequence[object], generation_config: object = ..., *, return_errors: bool, **arguments: Any
    ) -> list[Completion | BoundedGenError]: ...
    def generate_many(
        self,
        prompts: Sequence[object],
        generation_config: object = None,
        *,
        return_errors: bool = False,
        **arguments: Any,
    ) -> Any:
        """All `prompts`, in order, with one `generation_config`; all are submitted or, if one is refused, none.

        `arguments` are those of `submit`. If one ends abnormally its error is raised and the others are cancelled, or,
        with `return_errors`, it stands in its place.
        """
        refuse_to_block("'await pipeline.agenerate_many(…)'")
        calls = calls_of(prompts, generation_config, arguments)
        return outcomes(self._serving.submit_all(calls), return_errors=return_errors)

    async def agenerate_many(
        self,
        prompts: Sequence[object],
        generation_config: object = None,
        *,
        return_errors: bool = False,
        **arguments: Any,
    ) -> list[Completion | BoundedGenError]:
        """`generate_many` for a coroutine: the same `prompts`, `generation_config`, `return_errors`, `arguments`."""
        calls = calls_of(prompts, generation_config, arguments)
        return await aoutcomes(
            await self._runtime.offload(self._serving.submit_all, calls), return_errors=return_errors
        )

    # --- leases --------------------------------------------------------------------------------------------------

    def lease(
        self, owner: str, *, ttl: float | timedelta, renew_on_read: bool = False, max_sequences: int | None = None
    ) -> Lease:
        """Grant a lease to `owner` (a str, shown in stats) that ends unless renewed within `ttl` seconds.

        Its id is a bearer token of 128 random bits. `renew_on_read`: reading one of its generations, or waiting for
        one, renews it too. Leave it off (the default) where a proxy may read for a client that is gone: then only
        `renew` counts. `max_sequences`: at most so many generations under it at once, else Saturated; None: no limit.
        Raises Saturated at `Limits.leases_max`. A wrong argument is a TypeError or ValueError that names it, as a `ttl`
        that is not more than 0 and at most `Limits.lease_ttl_max`.
        """
        self._serving.refuse_unless_open()
        return self._leasing.grant(owner, ttl, renew_on_read, max_sequences)

    def find_lease(self, lease_id: str) -> Lease | None:
        """The live lease with the id `lease_id`; None: over, or never there. TypeError if it is no str."""
        return self._leasing.find(lease_id)

    def renew(self, lease_id: str, owner: str | None = None) -> Lease:
        """Renew by id, for a heartbeat endpoint: valid for its ttl from now.

        LeaseExpired: `lease_id` is over, unknown or not `owner`'s (all look alike). Or PipelineClosed, EngineFailed.
        """
        self._serving.refuse_unless_open()
        return self._leasing.renew(lease_id, owner)

    def revoke(self, lease_id: str) -> bool:
        """End the lease `lease_id`, and everything submitted under it. False: there was none."""
        if (lease := self._leasing.find(lease_id)) is None:
            return False
        lease.revoke()
        return True

    # --- looking -------------------------------------------------------------------------------------------------

    def stats(self, *, sequences: bool = False) -> SchedulerStats:
        """What is inside the lane, now; answers in microseconds, in every state, however many wait.

        `sequences`: also a row for each sequence, which takes as many times ten microseconds.
        """
        rejected = self._serving.rejections.by_error()
        return stats_of(self._driver, rejected, self._runtime.now(), self._probing.last(), sequences=sequences)

    def health(self) -> Health:
        """Whether to send work here (`ready`), and whether to leave the process alone (`live`); answers at once."""
        ready, probed = self._loading.done(), self._probing.last()
        return health_of(self._driver, self._runtime.now(), probed, tokenizer_ready=ready)

    def stats_document(self, name: str = "") -> dict[str, Any]:
        """`name`, version, time, health and stats with a row a sequence: what `serve_stats` serves, for your own URL.

        Plain data, which strict JSON takes, with the keys that docs/on-call.md tells of.
        """
        return document_of(self, name, self._runtime.now())

    def serve_stats(self, path: str | os.PathLike[str], *, name: str = "") -> StatsSocket:
        """Serve `stats_document(name)` over HTTP on a Unix socket at `path`, for `python -m boundedgen top PATH`.

        For this user alone (0600), read only, in a thread of its own that answers while the engine hangs, and once the
        lane has FAILED. Until the socket that it returns is closed, or the pipeline. StatsSocketError: not there.
        `name`: shown. By hand: `curl --unix-socket PATH http://lane/stats`.
        """
        self._driver.check_process()
        return self._stats_sockets.open(path, source_of(self, name))

    def probe(self, timeout: float | timedelta = 10.0) -> ProbeResult:
        """Does a generation come through, now? One token, in a slot and a block of its own, however full the lane is.

        No token within `timeout` seconds (more than 0) is FAILED. One runs at a time; concurrent callers share its
        result.
        """
        refuse_to_block("'await pipeline.aprobe(…)'")
        return self._probing.run(timeout)

    async def aprobe(self, timeout: float | timedelta = 10.0) -> ProbeResult:
        """`probe` for a coroutine, with the same `timeout`."""
        return await self._probing.arun(timeout)

    def wait_ready(self, timeout: float | timedelta | None = None) -> None:
        """Until the engine serves; at most `timeout` seconds (0 or less: it only looks). None: `Limits.boot` (300 s).

        Raises ModelLoadFailed, DeviceUnavailable, EngineFailed, EngineUnavailable (not yet) or PipelineClosed.
        """
        refuse_to_block("'await pipeline.await_ready()'")
        within = patience(self._limits.boot if timeout is None else timeout)
        self._driver.wakers.wait(self._decided, within)
        self._raise_unless_ready(within)

    async def await_ready(self, timeout: float | timedelta | None = None) -> None:
        """`wait_ready` for a coroutine, with the same `timeout`."""
        within = patience(self._limits.boot if timeout is None else timeout)
        await self._driver.wakers.until(self._decided, within)
        self._raise_unless_ready(within)

    def _decided(self) -> bool:
        state = self._driver.snapshot.state
        return (state == "ready" and self._loading.done()) or self._driver.over or state in ("failed", "closed")

    def _raise_unless_ready(self, within: float | None) -> None:
        self._serving.refuse_unless_ready(self.health(), within)

    # --- closing -------------------------------------------------------------------------------------------------

    def close(self, drain: float | timedelta = 0) -> None:
        """Accept nothing new, let what is inside end for `drain` seconds, settle the rest SHUTDOWN, end the engine.

        With `drain` 0, the default, everything is settled at once. During a drain what waits is still admitted, bounds,
        leases and watchdogs hold, and an engine that dies is not replaced, but one that is being recycled is.

        Idempotent, from any thread, and back within `drain` + `Limits.reap` + 2 seconds. It blocks an event loop too,
        and raises nothing if the lane has failed. An exception that a signal raises in it (Ctrl-C) ends the drain.
        """
        self._closing.close(drain)

    async def aclose(self, drain: float | timedelta = 0) -> None:
        """`close` for a coroutine, with the same `drain`; cancelling it ends the drain."""
        await self._closing.aclose(drain)

    def __enter__(self) -> BoundedPipeline:
        refuse_to_block("'async with'")  # before the try: others may be using it
        try:
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close(self._limits.drain if kind is None else 0)
        self._own_up(kind)

    async def __aenter__(self) -> BoundedPipeline:
        try:
            await self.await_ready()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        await self.aclose(self._limits.drain if kind is None else 0)
        self._own_up(kind)

    def _own_up(self, raised: type[BaseException] | None) -> None:
        """A lane that failed does not end well, whenever that was; what was raised already is not masked."""
        error = self.health().error
        if error is not None and raised is None:
            raise error

    def __del__(self) -> None:
        closing: Closing | None = getattr(self, "_closing", None)
        if closing is None:
            return
        if not self._driver.over:
            warnings.warn(f"unclosed {self!r}; use 'with', or call close()", ResourceWarning, stacklevel=1, source=self)
        closing.abandon()

    def __repr__(self) -> str:
        return f"<BoundedPipeline {self._driver.snapshot.state}>"
