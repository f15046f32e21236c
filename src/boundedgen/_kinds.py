"""The kinds of requests that a pipeline can be made for beside plain text: what each needs, as data.

Whoever checks a call, a setting or a reservation reads this table; nobody asks for the name of a kind. A kind is chosen
for a whole pipeline (`Chosen`), and the numbers that come with it go into every request: the callers', the probe's, the
canary's and those by which the pools are learned.

What each figure rests on is measured (openvino-genai 2026.4.1, docs/request-kinds.md) and a test in tests/genai.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

from attrs import Factory, frozen


@final
@frozen
class Off:
    """What a kind cannot be combined with: the value that switches it off, and the reason."""

    value: Any
    why: str


@final
@frozen
class Ahead:
    """What each sequence needs of a pool beyond what plain text needs: P + n - 1 tokens where blocks are counted by
    tokens, one block where they are counted by sequences. In the unit of the pool."""

    fixed: int = 0
    per_drafted: int = 0  #: times `num_assistant_tokens`

    def of(self, drafted: int) -> int:
        return self.fixed + self.per_drafted * drafted


@final
@frozen(kw_only=True)
class Kind:
    """One kind. Empty texts: there is nothing that speaks against it."""

    name: str  #: of the pipeline's option
    #: generation fields that only it takes, each a whole number: the least and the most of it. The most of one that is
    #: set in every request is the pipeline's own value.
    fields: Mapping[str, tuple[int, int]] = Factory(dict)
    defaults: Mapping[str, int] = Factory(dict)  #: of those fields; they must be in every request
    without: Mapping[str, Off] = Factory(dict)  #: generation fields
    without_scheduler: Mapping[str, Off] = Factory(dict)  #: SchedulerConfig fields
    single: str = ""  #: why a request may have one sequence only
    not_hybrid: str = ""
    hybrid_needs: str = ""  #: of a release (_engine/_releases.py), where it answers a hybrid wrongly without that
    not_vision: str = ""
    not_gguf: str = ""
    not_adaptive: str = ""  #: Admission("adaptive")
    not_adapted: str = ""  #: adapters
    needs_proof: str = ""  #: why a release without a proof of its own for each request will not do
    ahead: Mapping[str, Ahead] = Factory(dict)  #: by pool
    extra_pool: str = ""  #: a pool that only this kind has; counted by tokens, as the KV pool
    whole_steps: bool = False  #: a step must have room for all that could be scheduled, or answers become other ones
    cuts_stop_strings: bool = False  #: stop strings are looked for by us: the engine's own search does not go with it
    unverified: bool = False  #: what comes at a stop or with an IGNORED one is no output, and is not counted as such


_DRAFTED: Final = "num_assistant_tokens"
_ONE: Final = "the engine drafts for one sequence a request only; leave out num_beams and num_return_sequences"
_MIN: Final = "the engine ends a drafted answer at an end-of-sequence token all the same (2026.4.1)"
#: Of both kinds that draft. A draft of more is hardly ever accepted, and is computed all the same.
DRAFTED_MOST: Final = 32
NGRAM_MOST: Final = 64

PROMPT_LOOKUP: Final = Kind(
    name="prompt_lookup",
    fields={"num_assistant_tokens": (1, DRAFTED_MOST), "max_ngram_size": (1, NGRAM_MOST)},
    defaults={"num_assistant_tokens": 5, "max_ngram_size": 3},
    without={"min_new_tokens": Off(0, _MIN)},
    single=_ONE,
    not_adaptive="what is paused must be known to the token, and a step can show up to num_assistant_tokens + 1",
    ahead={"kv": Ahead(per_drafted=1), "linear_attention": Ahead(fixed=1, per_drafted=1)},
    hybrid_needs="a recurrent state for each drafted candidate",
    cuts_stop_strings=True,
    unverified=True,
)
DRAFT: Final = Kind(
    name="draft",
    fields={"num_assistant_tokens": (1, DRAFTED_MOST)},
    defaults={"num_assistant_tokens": 5},
    without={"min_new_tokens": Off(0, _MIN)},
    without_scheduler={
        "enable_prefix_caching": Off(
            False, "with a draft model and sampling every step of the engine raises (2026.4.1)"
        ),
        "cache_size": Off(0, "the engine divides bytes between the two models in its own way; give num_kv_blocks"),
    },
    single=_ONE,
    not_hybrid="the engine raises at the first step of a hybrid model with a draft model (2026.4.1)",
    not_vision="the engine takes no draft model beside a vision model (2026.4.1)",
    not_gguf="nothing is known of a GGUF model with a draft model; export it to an IR folder",
    not_adaptive=PROMPT_LOOKUP.not_adaptive,
    not_adapted="the engine puts them on the draft model too",
    needs_proof="its metrics count no requests, so that this release cannot prove that it let go of one",
    extra_pool="draft",
    whole_steps=True,
    cuts_stop_strings=True,
    unverified=True,
)
KINDS: Final[Mapping[str, Kind]] = {kind.name: kind for kind in (PROMPT_LOOKUP, DRAFT)}


@final
@frozen(kw_only=True)
class Chosen:
    """A kind that a pipeline is made for. Plain data goes to the engine's process and back (`spec`, `of`)."""

    kind: Kind
    always: Mapping[str, int]  #: what every request has unless it sets a smaller one
    settings: Mapping[str, Any] = Factory(dict)  #: of the kind's own, JSON types: for the process that builds it

    @property
    def drafted(self) -> int:
        """Candidates a step, at most; 0: it does not draft."""
        return self.always.get(_DRAFTED, 0)

    def ahead(self, pool: str) -> int:
        """What each sequence needs of this pool beyond what plain text does; see `Ahead`."""
        found = self.kind.ahead.get(pool)
        return 0 if found is None else found.of(self.drafted)

    def range_of(self, field: str) -> tuple[int, int]:
        """The least and the most that a request may ask for; what is set aside is for the pipeline's own number."""
        least, most = self.kind.fields[field]
        return least, self.drafted if field == _DRAFTED else most

    def completed(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """A request's configuration with what must always be set. Of an answer of one token there is nothing to draft.

        Without it add_request accepts, and every step raises for ever.
        """
        made = {**self.always, **config}
        if self.drafted:
            made[_DRAFTED] = min(made[_DRAFTED], max(1, config["max_new_tokens"] - 1))
        return made

    def spec(self) -> dict[str, Any]:
        return {"name": self.kind.name, "always": dict(self.always), "settings": dict(self.settings)}

    @classmethod
    def of(cls, spec: Mapping[str, Any] | None) -> Chosen | None:
        if spec is None:
            return None
        return cls(kind=KINDS[spec["name"]], always=spec["always"], settings=spec["settings"])
