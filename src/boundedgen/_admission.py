"""`Admission`: how sequences are let into the engine, and in which order."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, final

from attrs import field, frozen

from boundedgen._arguments import names_unknown_keywords, plain_str, reading, real_number, short

POLICIES: Final = ("reserve", "adaptive", "engine")
MOST: Final = 1e9  #: seconds, and weights


def _ageing(value: Any) -> float:
    with reading("Admission.ageing", TypeError):
        plain = real_number(value)
    if plain is None:
        raise TypeError(f"Admission.ageing must be a number of seconds, not {short(value)}")
    if not 0.001 <= plain <= MOST:
        raise ValueError(f"Admission.ageing is {short(value)}; it must be at least 0.001 and at most {MOST:g} s")
    return plain


def _margin(value: Any) -> float | None:
    if value is None:
        return None
    with reading("Admission.margin", TypeError):
        plain = real_number(value)
    if plain is None:
        raise TypeError(f"Admission.margin must be a number or None, not {short(value)}")
    if not -1.0 <= plain <= MOST:
        raise ValueError(f"Admission.margin is {short(value)}; it must be at least -1 and at most {MOST:g}")
    return plain


def _covered(value: Any) -> float:
    with reading("Admission.covered", TypeError):
        plain = real_number(value)
    if plain is None:
        raise TypeError(f"Admission.covered must be a number, not {short(value)}")
    if not 0.0 < plain <= 1.0:
        raise ValueError(f"Admission.covered is {short(value)}; it must be more than 0 and at most 1")
    return plain


def _weights(value: Any) -> Mapping[str, float]:
    if not isinstance(value, Mapping):
        raise TypeError(f"Admission.weights must be a mapping of owners to numbers, not {short(value)}")
    return {_owner(owner): _weight(owner, weight) for owner, weight in _pairs(value)}


def _pairs(value: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """What is wrong with one of them is not said here."""
    with reading("Admission.weights", TypeError):
        yield from ((owner, weight) for owner, weight in value.items())


def _owner(owner: Any) -> str:
    if not isinstance(owner, str):
        raise TypeError(f"Admission.weights is by owner, a str, not {short(owner)}")
    return plain_str(owner)


def _weight(owner: Any, weight: Any) -> float:
    with reading("Admission.weights", TypeError):
        plain = real_number(weight)
    if plain is None:
        raise TypeError(f"Admission.weights[{short(owner)}] must be a number, not {short(weight)}")
    if not 1 / MOST <= plain <= MOST:
        raise ValueError(f"Admission.weights[{short(owner)}] is {short(weight)}; give more than 0, at most {MOST:g}")
    return plain


@final
@names_unknown_keywords
@frozen(kw_only=True)
class Admission:
    """How sequences are let into the engine, and in which order.

    "reserve": a sequence enters once every cache pool has room for its whole prompt and output beside all that is
    held. The engine's own preemption, which crashes, is never needed.
    "adaptive": for callers who ask for far more than they use. A sequence enters once there is room for its prompt
    and the output that is expected by the lengths of answers so far; nothing learned yet, for the whole of it. Before
    the cache overflows, the least urgent is paused: stopped, put back in its place with its deadline and lease, and
    later continued after what it has shown. Paused are only those of one sequence that can be continued (no grammar,
    no presence or frequency penalty) without a bound `next_token`; the others are admitted as with "reserve". What
    was paused is the same as what was not where it is greedy and all in f32, else a valid continuation.
    "engine": only `Limits.running_max` counts, and overflow is left to the engine. For tests and for the brave.

    Who is next: of those that wait, the highest priority; in it the owner that has had least, in tokens (prompt and
    output) by weight; of that owner's, the one with the earliest deadline. One that does not fit yet is not overtaken.
    """

    policy: str = "reserve"  #: "reserve", "adaptive" or "engine"
    #: "adaptive": share of answers, more than 0 and at most 1, that what is set aside is to be enough for; with a
    #: smaller one more are inside at once, and more are paused
    covered: float = field(default=0.5, converter=_covered)
    #: seconds; what one step of priority is worth: a class below is passed over for so long, then one of it comes in.
    #: And a deadline that is farther away than this counts as if it were not, so that urgent ones do not starve others
    ageing: float = field(default=30.0, converter=_ageing)
    #: by owner: how much more than others it gets while several wait; 1 for who is not named
    weights: Mapping[str, float] = field(factory=dict, converter=_weights, hash=False)

    #: a sequence that was never inside is not let in any more if what is left of its time is less than 1 + this times
    #: what it will take by what was measured, and others wait: it ends DEADLINE, bound `queued`. And one is refused at
    #: once, Saturated, if its time is less than 1 + this times what those ahead of it and itself will take, or
    #: EngineUnavailable, if an engine that is being replaced is expected too late for it. None: never
    margin: float | None = field(default=0.25, converter=_margin)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.policy, str) or plain_str(self.policy) not in POLICIES:
            raise ValueError(
                f"Admission.policy is {short(self.policy)}; this version knows {', '.join(map(repr, POLICIES))}"
            )
