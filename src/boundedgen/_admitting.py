"""From what a caller passes to `submit` to a flow that can be handed to the driver, or a typed refusal.

Everything here runs in the caller's thread and starts nothing; what it takes at the door it gives back if it refuses.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

from attrs import evolve

from boundedgen._arguments import plain_str, short
from boundedgen._bounds import Bounds, Limits
from boundedgen._call import Call
from boundedgen._core._admission import Capacity
from boundedgen._core._sequences import Resume, Submission
from boundedgen._door import Door, Place
from boundedgen._driver import Driver
from boundedgen._errors import InvalidRequest, LeaseExpired, NeverFits, Saturated
from boundedgen._flow import Flow
from boundedgen._generation_config import (
    engine_fields,
    generation_fields,
    resume_of,
    sequences_of,
    streams,
    wants_chat_template,
)
from boundedgen._kinds import Chosen
from boundedgen._lease import Lease
from boundedgen._leasing import live_lease
from boundedgen._prompt import Row, is_chat, messages
from boundedgen._prospects import Prospects
from boundedgen._runtime import Runtime
from boundedgen._scenery import Scenery
from boundedgen._seeing import Seeing
from boundedgen._settings import Settings
from boundedgen._text import TextStream
from boundedgen._vision import vision_in
from boundedgen.abc import EngineHost, Image, Tokenizer

SEED_BITS: Final = 63
_NEVER_ASKED: Final = 2**63 - 1
_Wanted = tuple[Place, Callable[[], Saturated]]  # what it needs at the door, and the refusal where that is not left


class Admitting:
    """Checks calls against the limits, the tokenizer and the engine's capacity."""

    def __init__(
        self,
        driver: Driver,
        settings: Settings,
        runtime: Runtime,
        tokenizer: Callable[[], Tokenizer],
        kind: Chosen | None,
        host: EngineHost,
    ) -> None:
        self._driver, self._kind = driver, kind
        self._door = Door(settings.limits)
        self._seeing = Seeing(vision_in(host), self._door, settings.limits)
        self._limits = settings.limits
        self._bounds = settings.bounds
        self._lease_ttl = settings.lease_ttl
        self._runtime = runtime
        self._tokenizer = tokenizer
        self._defaults = host.defaults()
        self._chance = runtime.chance
        self._prospects = Prospects(driver, settings, runtime.now, runtime.chance)
        self._resume = settings.restart.resume == "continue"
        self._ids = itertools.count(1)
        #: The newest of each owner and label, for as long as somebody holds it
        self._named: WeakValueDictionary[tuple[str, str], Flow] = WeakValueDictionary()

    def admit(self, call: Call) -> Flow:
        """A flow that waits for the driver, with its places at the door. Raises a `Rejected`, or LeaseExpired."""
        submitted_at = self._runtime.now()
        call = call.plain(self._limits)
        lease = None if call.lease is None else self._live_lease(call.lease, call.owner)
        owner = call.owner if lease is None else lease.owner
        first = self._superseded(owner, call)
        with self._places(owner, lease, call.priority, first) as wanted:
            self._look_ahead(call, owner, submitted_at, first)
            prompt, kind = self._encode(call)
            if isinstance(prompt, Scenery) and not prompt.known:
                prompt.alone(self._all_there_is(self._fields(call, len(prompt))))
            fields = self._fields(call, len(prompt))
            submission = self._submission(call, lease, owner, fields, len(prompt), submitted_at)
            self._check_fit(submission, call)
            flow = self._flow(submission, self._ids_of(prompt), fields)
            flow.scenery = prompt if isinstance(prompt, Scenery) else None
            flow.prompt_kind, flow.traceparent = kind, call.traceparent
            flow.place, *flow.shares = [place for place, _ in wanted]
            if first is not None:
                self._inherit(flow, wanted, self._superseded(owner, call))
            if call.label:
                self._named[owner, call.label] = flow
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
        flow = self._flow(submission, [1], fields)
        if (vision := self._seeing.vision) is not None:
            flow.scenery = Scenery(vision, "0", 1, ())
        return flow

    def _flow(self, submission: Submission, prompt: Sequence[int], fields: Mapping[str, Any]) -> Flow:
        tokenizer = self._tokenizer()

        def text() -> TextStream:
            return TextStream(
                tokenizer.decode,
                stop_strings=fields.get("stop_strings", ()),
                include_stop=bool(fields.get("include_stop_str_in_output", False)),
                unsettled=getattr(tokenizer, "unsettled", None),
                lexicon=getattr(tokenizer, "lexicon", None),
            )

        return Flow(submission, prompt, engine_fields(fields), text, self._runtime.now, self._runtime.wakers)

    # --- names, places -------------------------------------------------------------------------------------------

    def _live_lease(self, given: Lease | str, owner: str) -> Lease:
        lease = live_lease(self._driver, given.id if isinstance(given, Lease) else given)
        if lease is None:
            raise LeaseExpired("this lease is over or never existed; ask for a new one")
        if owner not in ("", lease.owner):
            raise InvalidRequest("owner comes from the lease; leave it out, or give the lease's own")
        return lease

    @contextmanager
    def _places(self, owner: str, lease: Lease | None, priority: int, first: Flow | None) -> Iterator[list[_Wanted]]:
        """What it needs at the door, given back if anything raises. What is not left is that of one it supersedes."""
        wanted = self._wanted(owner, lease, priority)
        try:
            for place, refusal in wanted:
                if not place.take() and first is None:
                    raise refusal()
            yield wanted
        except BaseException:
            for place, _ in wanted:
                place.back()
            raise

    def _wanted(self, owner: str, lease: Lease | None, priority: int) -> list[_Wanted]:
        """A place in the queue, a share of the owner's and one of the lease's; what is said where there is none."""
        limits, prospects = self._limits, self._prospects
        text = f"{limits.waiting_max} sequences are waiting (Limits.waiting_max)"
        found: list[_Wanted] = [(self._door.queue(), partial(prospects.queue_full, text, owner))]
        if (of_owner := self._door.share(owner)) is not None:
            text = f"owner {short(owner)} has {limits.owner_max} sequences (Limits.owner_max)"
            found.append((of_owner, partial(prospects.share_full, text, owner, priority)))
        if lease is not None and lease._places is not None:
            text = "the lease has all the sequences that it may have (max_sequences)"
            found.append((Place(lease._places), partial(prospects.share_full, text, owner, priority)))
        return found

    def _superseded(self, owner: str, call: Call) -> Flow | None:
        """What it supersedes, as far as is known at the door; the core decides."""
        first = self._named.get((owner, call.label)) if call.supersede else None
        return None if first is None or first.done else first

    def _inherit(self, flow: Flow, wanted: list[_Wanted], first: Flow | None) -> None:
        """At the last moment: from here on it is sent, and that one ends. If anything lacks, that one keeps all."""
        moved = [] if first is None else flow.inherit(first)
        try:
            for place, refusal in wanted:
                if place.taken or place.take():
                    continue
                if first is None or place is not flow.place or not self._door.spare(place):
                    raise refusal()
        except BaseException:
            if first is not None:
                first.take_back(moved)
            raise

    # --- what needs no tokenizer ---------------------------------------------------------------------------------

    def _look_ahead(self, call: Call, owner: str, at: float, first: Flow | None) -> None:
        """Refuse what is known before the prompt is encoded: a wrong configuration, or too much time to wait.

        One that has the place of another does not begin to wait now; but for an engine it waits as everybody does.
        """
        fields, prospects = self._fields(call, 0), self._prospects
        tokens, bounds = fields["max_new_tokens"], self._bounds_of(call, fields)
        ahead = 0 if first is not None else prospects.ahead_of(owner, call.priority, bounds, at)
        refusal = prospects.hopeless(ahead, owner, bounds, tokens)
        if refusal is not None and self._fields(call, 1)["max_new_tokens"] != tokens:
            refusal = prospects.hopeless(ahead, owner, bounds, 1)  # max_length: how much that is depends on the prompt
        if refusal is not None:
            raise refusal()
        prospects.accepted()

    def _bounds_of(self, call: Call, fields: Mapping[str, Any]) -> Bounds:
        bounds = self._bounds if call.bounds is None else self._bounds.tightest(call.bounds)
        return bounds if streams(fields) else Bounds(total=bounds.total, queued=bounds.queued)

    # --- prompt --------------------------------------------------------------------------------------------------

    def _encode(self, call: Call) -> tuple[Row | Scenery | list[int], str]:
        """The prompt, as long as it will be, and its kind. Templated text gets no special tokens a second time."""
        call, images = self._split(call)
        prompt, tokenizer = call.prompt, self._tokenizer()
        if isinstance(prompt, bytes):
            raise InvalidRequest("prompt is bytes; decode them to a str first")
        chat = self._chat(call)
        if chat is not None:
            text = tokenizer.render(chat, tools=call.tools, context=call.template_context)
            if self._seeing.vision is not None:
                return self._seeing.scenery(self._checked(text), images, tokenizer, templated=True), "chat"
            ids, kind = tokenizer.encode(self._checked(text), add_special_tokens=False), "chat"
        elif self._seeing.vision is not None:
            if not isinstance(prompt, str):
                raise InvalidRequest(
                    "prompt is token ids, which the engine does not take for a model that sees (they may end it); send "
                    "text or chat messages"
                )
            return self._seeing.scenery(self._checked(prompt), images, tokenizer, templated=False), "text"
        elif isinstance(prompt, str):
            ids, kind = tokenizer.encode(self._checked(prompt), add_special_tokens=True), "text"
        else:
            return Row(prompt), "tokens"
        if not ids:
            raise InvalidRequest("prompt is empty; give at least one token")
        return ids, kind

    def _split(self, call: Call) -> tuple[Call, list[Image]]:
        """Its prompt with tags for its images, and these."""
        prompt, images = self._seeing.split(call)
        return (call if prompt is call.prompt else evolve(call, prompt=prompt)), images

    def _all_there_is(self, fields: Mapping[str, Any]) -> int:
        """Tokens of the longest prompt that fits an empty engine beside that length."""
        capacity = self._driver.snapshot.capacity
        if capacity is None:
            return 1
        most = max((pool.blocks * (pool.tokens_per_block or 1) for pool in capacity.pools), default=1)
        return longest_prompt(capacity, most, fields["max_new_tokens"], sequences_of(fields))

    def _ids_of(self, prompt: Row | Scenery | list[int]) -> list[int]:
        """Looked at last: that a prompt is too long can be told from its length."""
        if isinstance(prompt, Scenery):
            return []
        most = self._limits.prompt_bytes
        if len(prompt) > most:
            raise InvalidRequest(f"prompt has {len(prompt)} token ids; at most {most} (Limits.prompt_bytes)")
        return prompt.ids(self._tokenizer().vocab_size) if isinstance(prompt, Row) else prompt

    def _chat(self, call: Call) -> list[dict[str, Any]] | None:
        """Chat messages, if the prompt is to go through the template."""
        prompt = call.prompt
        if isinstance(prompt, str):
            if not wants_chat_template(call.config, call.keywords):
                self._refuse_template_arguments(call)
                return None
            return [{"role": "user", "content": self._checked(prompt)}]
        if is_chat(prompt):
            return messages(prompt, self._limits.prompt_bytes)
        self._refuse_template_arguments(call)
        return None

    def _refuse_template_arguments(self, call: Call) -> None:
        for name, value in (("tools", call.tools), ("template_context", call.template_context)):
            if value is not None:
                raise InvalidRequest(f"{name} is for chat messages; this prompt does not go through the chat template")

    def _checked(self, given: str) -> str:
        text, most = plain_str(given), self._limits.prompt_bytes
        if len(text) > most or len(text.encode(errors="replace")) > most:
            raise InvalidRequest(
                f"prompt has {len(text)} characters, more than Limits.prompt_bytes ({most}); "
                "shorten it or raise the limit"
            )
        return text

    # --- configuration -------------------------------------------------------------------------------------------

    def _fields(self, call: Call, prompt_tokens: int) -> dict[str, Any]:
        fields = self._asked(call, prompt_tokens, self._limits)
        if not streams(fields) and call.bounds is not None:
            for name in ("first_token", "next_token"):
                if getattr(call.bounds, name) is not None:
                    raise InvalidRequest(
                        f"bounds.{name} cannot be kept: a request of several sequences shows no token until it ends; "
                        "use total or queued"
                    )
        return fields

    def _asked(self, call: Call, prompt_tokens: int, limits: Limits) -> dict[str, Any]:
        return generation_fields(
            call.config,
            call.keywords,
            defaults=self._defaults,
            limits=limits,
            prompt_tokens=prompt_tokens,
            vocab_size=self._tokenizer().vocab_size,
            draw_seed=lambda: self._chance.getrandbits(SEED_BITS) or 1,
            chosen=self._kind,
        )

    def _submission(
        self,
        call: Call,
        lease: Lease | None,
        owner: str,
        fields: Mapping[str, Any],
        prompt_tokens: int,
        submitted_at: float,
    ) -> Submission:
        can_become = resume_of(fields) if self._seeing.vision is None else Resume.UNSEEN  # its prompt is text
        return Submission(
            id=next(self._ids),
            prompt_tokens=prompt_tokens,
            max_new_tokens=fields["max_new_tokens"],
            sequences=sequences_of(fields),
            bounds=self._bounds_of(call, fields),
            submitted_at=submitted_at,
            owner=owner,
            label=call.label,
            supersede=call.supersede,
            priority=call.priority,
            lease=None if lease is None else lease.id,
            implicit_ttl=self._lease_ttl if lease is None else None,
            cleared="structured_output_config" not in fields,
            resume=can_become if self._resume else Resume.NEVER,
            continuable=can_become is Resume.ALWAYS,
        )

    def _check_fit(self, submission: Submission, call: Call) -> None:
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
        if lacking := capacity.lacking(needs):
            raise self._never_fits(submission, call, capacity, lacking)

    def _never_fits(
        self, asked: Submission, call: Call, capacity: Capacity, lacking: Mapping[str, tuple[int, int]]
    ) -> NeverFits:
        longest = longest_prompt(capacity, asked.prompt_tokens, asked.max_new_tokens, asked.sequences)
        words = ", ".join(f"{need} blocks of {name}, there are {have}" for name, (need, have) in lacking.items())
        remedy = (
            f"the longest prompt that fits beside it has {longest} tokens: shorten the prompt, lower max_new_tokens"
            if longest
            else "no prompt fits beside it: lower max_new_tokens"
        )
        return NeverFits(
            f"{asked.prompt_tokens} prompt tokens and max_new_tokens={asked.max_new_tokens}{self._why(asked, call)} "
            f"in {asked.sequences} sequence(s) need {words}; {remedy}, or give the engine a larger cache",
            needed={name: need for name, (need, _) in lacking.items()},
            available={name: have for name, (_, have) in lacking.items()},
            prompt_tokens_max=longest,
        )

    def _why(self, asked: Submission, call: Call) -> str:
        """Why the length is another than what the caller wrote."""
        boundless = evolve(self._limits, max_new_tokens=_NEVER_ASKED, max_new_tokens_default=_NEVER_ASKED)
        length = self._asked(call, asked.prompt_tokens, boundless)["max_new_tokens"]
        if length == asked.max_new_tokens:
            return ""
        return " (the default)" if length == _NEVER_ASKED else f" (Limits.max_new_tokens; asked: {length})"


def longest_prompt(capacity: Capacity, most: int, max_new_tokens: int, sequences: int) -> int:
    """In tokens, at most `most`: what fits an empty engine beside that length, in so many sequences; 0: none."""

    def is_too_long(prompt_tokens: int) -> bool:
        return bool(capacity.lacking(capacity.needs(prompt_tokens, max_new_tokens, sequences)))

    return bisect_left(range(1, most + 1), True, key=is_too_long)
