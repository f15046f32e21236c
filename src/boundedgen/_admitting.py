"""From what a caller passes to `submit` to a flow that can be handed to the driver, or a typed refusal.

Everything here runs in the caller's thread and starts nothing; what it takes at the door it gives back if it refuses.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import frozen

from boundedgen._bounds import Bounds, Limits
from boundedgen._core._sequences import Submission
from boundedgen._door import Door, Place
from boundedgen._driver import Driver
from boundedgen._errors import InvalidRequest, LeaseExpired, NeverFits, Saturated
from boundedgen._flow import Flow
from boundedgen._generation_config import engine_fields, generation_fields, sequences_of, streams, wants_chat_template
from boundedgen._lease import Lease
from boundedgen._prompt import messages, token_ids
from boundedgen._runtime import Runtime
from boundedgen._text import TextStream
from boundedgen.abc import Tokenizer

SEED_BITS = 63


@frozen(kw_only=True)
class Call:
    """The arguments of one `submit`."""

    prompt: object
    config: object
    keywords: Mapping[str, Any]
    bounds: Bounds | None = None
    lease: Lease | str | None = None
    owner: str = ""
    priority: int = 0
    label: str = ""
    tools: Sequence[Mapping[str, Any]] | None = None
    template_context: Mapping[str, Any] | None = None


class Admitting:
    """Checks calls against the limits, the tokenizer and the engine's capacity."""

    def __init__(
        self,
        driver: Driver,
        door: Door,
        limits: Limits,
        bounds: Bounds,
        lease_ttl: float | None,
        runtime: Runtime,
        tokenizer: Callable[[], Tokenizer],
        defaults: Mapping[str, Any],
        seeds: random.Random,
    ) -> None:
        self._driver = driver
        self._door = door
        self._limits = limits
        self._bounds = bounds
        self._lease_ttl = lease_ttl
        self._runtime = runtime
        self._tokenizer = tokenizer
        self._defaults = defaults
        self._seeds = seeds
        self._ids = itertools.count(1)

    def admit(self, call: Call) -> Flow:
        """A flow that waits for the driver, with its places at the door. Raises a `Rejected`, or LeaseExpired."""
        submitted_at = self._runtime.now()
        lease = self._live_lease(call.lease)
        self._check_names(call, lease)
        owner = call.owner if lease is None else lease.owner
        with self._places(owner, lease) as (place, shares):
            prompt = self._encode(call)
            fields = self._fields(call, len(prompt))
            submission = self._submission(call, lease, owner, fields, len(prompt), submitted_at)
            self._check_fit(submission)
            flow = self._flow(submission, prompt, fields)
            flow.place, flow.shares = place, shares
            ttl = self._lease_ttl if lease is None else lease.ttl_s
            flow.patience = float("inf") if ttl is None else ttl
            return flow

    def probe(self, timeout: float) -> Flow:
        """A one-token generation in the probe's own slot and block."""
        now = self._runtime.now()
        fields = {"max_new_tokens": 1, "ignore_eos": True}
        submission = Submission(
            id=next(self._ids),
            prompt_tokens=1,
            max_new_tokens=1,
            bounds=Bounds(total=timeout),
            submitted_at=now,
            label="probe",
            probe=True,
        )
        return self._flow(submission, [1], fields)

    def _flow(self, submission: Submission, prompt: Sequence[int], fields: Mapping[str, Any]) -> Flow:
        tokenizer = self._tokenizer()

        def text() -> TextStream:
            return TextStream(
                tokenizer.decode,
                stop_strings=fields.get("stop_strings", ()),
                include_stop=bool(fields.get("include_stop_str_in_output", False)),
                unsettled=getattr(tokenizer, "unsettled", None),
            )

        return Flow(submission, prompt, engine_fields(fields), text, self._runtime.now, self._runtime.wakers)

    # --- names, places -------------------------------------------------------------------------------------------

    def _live_lease(self, lease: Lease | str | None) -> Lease | None:
        if isinstance(lease, str):
            cell = self._driver.cells.get(lease)
            lease = None if cell is None else cell.lease
        elif lease is None:
            return None
        elif not isinstance(lease, Lease):
            raise InvalidRequest(f"lease must be a Lease or its id, not {type(lease).__name__}")
        if lease is None or not lease.live:
            raise LeaseExpired("this lease is over or never existed; ask for a new one")
        return lease

    def _check_names(self, call: Call, lease: Lease | None) -> None:
        for name, value in (("owner", call.owner), ("label", call.label)):
            if not isinstance(value, str):
                raise InvalidRequest(f"{name} must be a str, not {type(value).__name__}")
            if len(value.encode(errors="replace")) > self._limits.label_bytes:
                raise InvalidRequest(f"{name} has {len(value)} characters; at most {self._limits.label_bytes} bytes")
        if isinstance(call.priority, bool) or not isinstance(call.priority, int):
            raise InvalidRequest(f"priority must be a whole number, not {call.priority!r}")
        if call.bounds is not None and not isinstance(call.bounds, Bounds):
            raise InvalidRequest(f"bounds must be a Bounds, not {type(call.bounds).__name__}")
        if lease is not None and call.owner not in ("", lease.owner):
            raise InvalidRequest("owner comes from the lease; leave it out, or give the lease's own")

    @contextmanager
    def _places(self, owner: str, lease: Lease | None) -> Iterator[tuple[Place, list[Place]]]:
        """A place in the queue, a share of the owner's and one of the lease's; given back if anything raises."""
        limits = self._limits
        place, of_owner = self._door.queue(), self._door.share(owner)
        of_lease = None if lease is None or lease._places is None else Place(lease._places)
        shares = [share for share in (of_owner, of_lease) if share is not None]
        try:
            self._take(place, f"{limits.waiting_max} sequences are waiting")
            if of_owner is not None:
                self._take(of_owner, f"owner has {limits.owner_max} sequences")
            if of_lease is not None:
                self._take(of_lease, "the lease has all the sequences it may have")
            yield place, shares
        except BaseException:
            for taken in (place, *shares):
                taken.back()
            raise

    def _take(self, place: Place, full: str) -> None:
        if not place.take():
            after = self.retry_after_s()
            raise Saturated(f"{full}; try again in {after:.1f} s", retry_after_s=after)

    def retry_after_s(self) -> float:
        """An estimate of when a place will be free: the work that waits, at the rate at which tokens come."""
        snapshot = self._driver.snapshot
        ended, tokens, rate = sum(snapshot.finished.values()), snapshot.counters["tokens"], snapshot.tokens_per_s
        if not ended or not rate:
            return 1.0
        return min(60.0, max(0.1, max(1, snapshot.waiting) * tokens / ended / rate))

    # --- prompt --------------------------------------------------------------------------------------------------

    def _encode(self, call: Call) -> list[int]:
        """The prompt as token ids: templated text gets no special tokens a second time."""
        prompt, tokenizer = call.prompt, self._tokenizer()
        if isinstance(prompt, bytes):
            raise InvalidRequest("prompt is bytes; decode them to a str first")
        chat = self._chat(call)
        if chat is None and isinstance(prompt, str):
            ids = tokenizer.encode(self._checked(prompt), add_special_tokens=True)
        elif chat is None:
            ids = token_ids(prompt, tokenizer.vocab_size)
        else:
            text = tokenizer.render(chat, tools=call.tools, context=call.template_context)
            ids = tokenizer.encode(self._checked(text), add_special_tokens=False)
        if not ids:
            raise InvalidRequest("prompt is empty; give at least one token")
        return ids

    def _chat(self, call: Call) -> list[dict[str, Any]] | None:
        """Chat messages, if the prompt is to go through the template."""
        prompt = call.prompt
        if isinstance(prompt, str):
            if not wants_chat_template(call.config, call.keywords):
                self._refuse_template_arguments(call)
                return None
            return [{"role": "user", "content": self._checked(prompt)}]
        is_chat = type(prompt).__name__ == "ChatHistory" or (
            isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], Mapping)
        )
        if is_chat:
            return messages(prompt)
        self._refuse_template_arguments(call)
        return None

    def _refuse_template_arguments(self, call: Call) -> None:
        for name, value in (("tools", call.tools), ("template_context", call.template_context)):
            if value is not None:
                raise InvalidRequest(f"{name} is for chat messages; this prompt does not go through the chat template")

    def _checked(self, text: str) -> str:
        if len(text) > self._limits.prompt_bytes or len(text.encode(errors="replace")) > self._limits.prompt_bytes:
            raise InvalidRequest(
                f"prompt has {len(text)} characters, more than Limits.prompt_bytes ({self._limits.prompt_bytes}); "
                "shorten it or raise the limit"
            )
        return text

    # --- configuration -------------------------------------------------------------------------------------------

    def _fields(self, call: Call, prompt_tokens: int) -> dict[str, Any]:
        fields = generation_fields(
            call.config,
            call.keywords,
            defaults=self._defaults,
            limits=self._limits,
            prompt_tokens=prompt_tokens,
            vocab_size=self._tokenizer().vocab_size,
            draw_seed=lambda: self._seeds.getrandbits(SEED_BITS) or 1,
        )
        if not streams(fields) and call.bounds is not None:
            for name in ("first_token", "next_token"):
                if getattr(call.bounds, name) is not None:
                    raise InvalidRequest(
                        f"bounds.{name} cannot be kept: a request of several sequences shows no token until it ends; "
                        "use total or queued"
                    )
        return fields

    def _submission(
        self,
        call: Call,
        lease: Lease | None,
        owner: str,
        fields: Mapping[str, Any],
        prompt_tokens: int,
        submitted_at: float,
    ) -> Submission:
        bounds = self._bounds if call.bounds is None else self._bounds.tightest(call.bounds)
        if not streams(fields):
            bounds = Bounds(total=bounds.total, queued=bounds.queued)
        return Submission(
            id=next(self._ids),
            prompt_tokens=prompt_tokens,
            max_new_tokens=fields["max_new_tokens"],
            sequences=sequences_of(fields),
            bounds=bounds,
            submitted_at=submitted_at,
            owner=owner,
            label=call.label,
            priority=call.priority,
            lease=None if lease is None else lease.id,
            implicit_ttl=self._lease_ttl if lease is None else None,
            cleared="structured_output_config" not in fields,
        )

    def _check_fit(self, submission: Submission) -> None:
        """The exact rule, against every pool when it is empty."""
        snapshot = self._driver.snapshot
        capacity, facts = snapshot.capacity, snapshot.facts
        if capacity is None or facts is None:
            return
        most = facts.max_prompt_tokens
        if most is not None and submission.prompt_tokens > most:
            raise InvalidRequest(
                f"prompt has {submission.prompt_tokens} tokens; with dynamic_split_fuse off a step takes at most "
                f"max_num_batched_tokens ({most})"
            )
        needs = capacity.needs(submission.prompt_tokens, submission.max_new_tokens, submission.sequences)
        lacking = capacity.lacking(needs)
        if lacking:
            words = ", ".join(f"{need} blocks of {name}, there are {have}" for name, (need, have) in lacking.items())
            raise NeverFits(
                f"{submission.prompt_tokens} prompt tokens and max_new_tokens={submission.max_new_tokens} "
                f"in {submission.sequences} sequence(s) need {words}; shorten the prompt, lower max_new_tokens, "
                "or give the engine a larger cache",
                needed={name: need for name, (need, _) in lacking.items()},
                available={name: have for name, (_, have) in lacking.items()},
            )
