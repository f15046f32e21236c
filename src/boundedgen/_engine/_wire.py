"""The words between parent and engine: in a frame each, as a JSON body of one known shape a kind. The report of a step
has its numbers in binary before that, and in most steps nothing else: making and reading text costs ten times as much.

Nothing from the wire is ever run or looked up by name: each kind has its own small decoder, which accepts exactly
what its encoder makes. Whatever else arrives is a `WireError`, the engine's death; a frame that the end of the pipe
cuts off is none: the process has died, and the link says so. Pieces of images are `_pixels`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from boundedgen._core._events import (
    BootFailed,
    Claim,
    EngineFacts,
    Finish,
    Output,
    PoolFacts,
    Progress,
    Ready,
    Refusal,
    Release,
    SequenceResult,
    StepRaised,
)
from boundedgen._engine._frames import Frame, WireError, pack
from boundedgen._engine._pixels import PIXELS, Pixels
from boundedgen._engine._words import Boot as Boot
from boundedgen._engine._words import Halt as Halt
from boundedgen._engine._words import Hello as Hello
from boundedgen.abc import Image, Request

_dumps = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_raw_decode = json.JSONDecoder().raw_decode
T = TypeVar("T")
_PROGRESS = 19  #: its kind of frame
_BINARY = (_PROGRESS, PIXELS)  #: kinds of frame whose bodies are no JSON
_BAD_BODY = (struct.error, ValueError, TypeError, KeyError, OverflowError, RecursionError)


Word = Boot | Request | Pixels | Halt | Hello | Ready | BootFailed | Progress | StepRaised


# --- bodies ------------------------------------------------------------------------------------------------------


def encode(word: Word, incarnation: int) -> bytes:
    """`word` as one frame."""
    kind, body_of = _ENCODERS[type(word)]
    return pack(kind, incarnation, body_of(word) if kind in _BINARY else _to_json(body_of(word)))


def decode(frame: Frame) -> Word:
    """The word in `frame`. Raises WireError, and nothing else, for anything that `encode` does not make."""
    decoder = _DECODERS.get(frame.kind)
    if decoder is None:
        raise WireError(f"unknown kind of frame: {frame.kind}")
    try:
        return decoder(frame.incarnation, frame.body if frame.kind in _BINARY else _from_json(frame.body))
    except _BAD_BODY as error:
        raise WireError(f"bad body of a frame of kind {frame.kind}: {type(error).__name__}") from error


def _to_json(value: Any) -> bytes:
    return _dumps(value).encode("ascii")


def _from_json(body: bytes) -> Any:
    """Of what `_to_json` makes: ASCII, and nothing around the value."""
    text = body.decode("ascii")
    value, end = _raw_decode(text)
    if end != len(text):
        raise ValueError
    return value


def _int(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError
    return value


def _str(value: Any) -> str:
    if type(value) is not str:
        raise TypeError
    return value


def _float(value: Any) -> float:
    if type(value) is not float:
        return float(_int(value))
    return value


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError
    return value


def _dict(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise TypeError
    return value


def _or_none(check: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else check(value)


def _ints(value: Any) -> tuple[int, ...]:
    for item in _list(value):
        if type(item) is not int:
            raise TypeError
    return tuple(value)


def _floats(value: Any) -> tuple[float, ...]:
    return tuple(map(_float, _list(value)))


def _each(one: Callable[[Any], T], value: Any) -> tuple[T, ...]:
    return tuple([one(item) for item in _list(value)])


def _rows(one: Callable[[Any], list[Any]], rows: Iterable[Any]) -> list[Any]:
    return [one(row) for row in rows]


def _from_outputs(outputs: tuple[Output, ...]) -> list[Any]:
    """By columns, for flat lists of numbers are cheap."""
    return [
        [e.stay for e in outputs],
        [len(e.token_ids) for e in outputs],
        [token for e in outputs for token in e.token_ids],
        [len(e.logprobs) for e in outputs],
        [prob for e in outputs for prob in e.logprobs],
    ]


def _to_outputs(v: Any) -> tuple[Output, ...]:
    stays, id_counts, ids, prob_counts, probs = _list(v)
    token_ids = _cut(_ints(ids), _ints(id_counts))
    logprobs = _cut(_floats(probs), _ints(prob_counts))
    return tuple([Output(*row) for row in zip(_ints(stays), token_ids, logprobs, strict=True)])


def _cut(flat: tuple[T, ...], counts: tuple[int, ...]) -> list[tuple[T, ...]]:
    """`flat` in pieces of these lengths; ValueError unless they are its own."""
    pieces: list[tuple[T, ...]] = []
    at = 0
    for count in counts:
        if count < 0:
            raise ValueError
        pieces.append(flat[at : at + count])
        at += count
    if at != len(flat):
        raise ValueError
    return pieces


def _from_result(e: SequenceResult) -> list[Any]:
    return [e.token_ids, e.logprobs, e.score]


def _to_result(v: Any) -> SequenceResult:
    token_ids, logprobs, score = _list(v)
    return SequenceResult(_ints(token_ids), _floats(logprobs), _or_none(_float, score))


def _from_finish(e: Finish) -> list[Any]:
    return [e.stay, e.why, _rows(_from_result, e.results)]


def _to_finish(v: Any) -> Finish:
    stay, why, results = _list(v)
    if why not in ("stop", "length", "ignored"):
        raise ValueError
    return Finish(_int(stay), why, _each(_to_result, results))


def _from_refusal(e: Refusal) -> list[Any]:
    return [e.stay, e.code, e.text]


def _to_refusal(v: Any) -> Refusal:
    stay, code, text = _list(v)
    return Refusal(_int(stay), _str(code), _str(text))


def size_of(part: Finish | Refusal) -> int:
    """Bytes that it takes in the frame of a report, and a separator."""
    return 2 + len(_to_json(_from_finish(part) if isinstance(part, Finish) else _from_refusal(part)))


def _from_release(e: Release) -> list[Any]:
    return [e.stay, e.steps, e.seconds, e.late_tokens]


def _to_release(v: Any) -> Release:
    stay, steps, seconds, late_tokens = _list(v)
    return Release(_int(stay), _int(steps), _float(seconds), _int(late_tokens))


def _to_pair(v: Any) -> tuple[int, int]:
    first, second = _ints(v)
    return first, second


#: Steps, began, ended, scheduled, usage, cache_bytes, tokens, attention, and how many numbers of `singles` follow.
_NUMBERS = struct.Struct("<QddQdQQQI")
_NONE = (1 << 64) - 1


def _from_progress(e: Progress) -> bytes:
    parts = {name: encoder(value) for name, (encoder, _) in _PARTS.items() if (value := getattr(e, name))}
    if e.held is not None:
        parts["held"] = e.held
    if e.rss_bytes is not None:
        parts["rss_bytes"] = e.rss_bytes
    if e.accepted or e.proposed:
        parts["accepted"], parts["proposed"] = e.accepted, e.proposed
    singles = e.singles
    cache_bytes = _NONE if e.cache_bytes is None else e.cache_bytes
    load = (min(e.tokens, _NONE), min(e.attention, _NONE), len(singles))
    numbers = _NUMBERS.pack(e.steps, e.began, e.ended, e.scheduled, e.usage, cache_bytes, *load)
    return numbers + struct.pack(f"<{len(singles)}Q", *singles) + (_to_json(parts) if parts else b"")


def _to_progress(incarnation: int, body: bytes) -> Progress:
    steps, began, ended, scheduled, usage, cache_bytes, tokens, attention, numbers = _NUMBERS.unpack_from(body)
    if numbers & 1:
        raise ValueError
    singles = struct.unpack_from(f"<{numbers}Q", body, _NUMBERS.size)
    rest = body[_NUMBERS.size + 8 * numbers :]
    parts = {name: _DECODE_PART[name](v) for name, v in _dict(_from_json(rest)).items()} if rest else {}
    return Progress(
        incarnation,
        steps,
        began,
        ended,
        scheduled,
        usage,
        parts.pop("held", None),
        cache_bytes=None if cache_bytes == _NONE else cache_bytes,
        tokens=tokens,
        attention=attention,
        singles=singles,
        **parts,
    )


#: What only some steps have; a part that is empty is left out.
_PARTS: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], tuple[Any, ...]]]] = {
    "taken": (list, _ints),
    "stopping": (list, _ints),
    "paused": (list, _ints),
    "outputs": (_from_outputs, _to_outputs),
    "refused": (partial(_rows, _from_refusal), partial(_each, _to_refusal)),
    "finished": (partial(_rows, _from_finish), partial(_each, _to_finish)),
    "released": (partial(_rows, _from_release), partial(_each, _to_release)),
    "counted": (list, partial(_each, _to_pair)),
}
_DECODE_PART: Mapping[str, Callable[[Any], Any]] = {
    "held": _ints,
    **dict.fromkeys(("rss_bytes", "accepted", "proposed"), _int),
    **{name: decoder for name, (_, decoder) in _PARTS.items()},
}


def _from_ready(e: Ready) -> list[Any]:
    f = e.facts
    pools = [[p.name, p.blocks, p.tokens_per_block, p.ahead] for p in f.pools]
    return [
        *(f.device, dict(f.versions), pools, f.block_size, f.cache_bytes, f.vocab_size, f.running_max),
        *(dict(f.probe_blocks), f.max_prompt_tokens, f.hybrid, f.proof, f.findings, f.canary, f.exact),
        *(f.drafted, f.counts_proposed, [list(adapter) for adapter in f.adapters], e.rss_bytes),
    ]


def _to_pool(v: Any) -> PoolFacts:
    name, blocks, tokens_per_block, ahead = _list(v)
    return PoolFacts(_str(name), _int(blocks), _or_none(_int, tokens_per_block), _int(ahead))


def _to_adapter(v: Any) -> tuple[str, float]:
    name, weight = _list(v)
    return _str(name), _float(weight)


def _to_ready(incarnation: int, v: Any) -> Ready:
    device, versions, pools, block_size, cache_bytes, vocab_size, running_max, *rest = _list(v)
    probe_blocks, max_prompt_tokens, hybrid, proof, findings, canary, exact, *of_kind = rest
    drafted, counts_proposed, adapters, rss_bytes = of_kind
    facts = EngineFacts(
        device=_str(device),
        versions={name: _str(version) for name, version in _dict(versions).items()},
        pools=_each(_to_pool, pools),
        block_size=_int(block_size),
        cache_bytes=_or_none(_int, cache_bytes),
        vocab_size=_or_none(_int, vocab_size),
        running_max=_int(running_max),
        probe_blocks={name: _int(blocks) for name, blocks in _dict(probe_blocks).items()},
        max_prompt_tokens=_or_none(_int, max_prompt_tokens),
        hybrid=_bool(hybrid),
        proof=_str(proof),
        findings=_each(_str, findings),
        canary=_ints(canary),
        exact=_bool(exact),
        drafted=_int(drafted),
        counts_proposed=_bool(counts_proposed),
        adapters=_each(_to_adapter, adapters),
    )
    return Ready(incarnation, facts, _or_none(_int, rss_bytes))


def _to_boot_failed(incarnation: int, v: Any) -> BootFailed:
    kind, text, permanent = _list(v)
    return BootFailed(incarnation, _str(kind), _str(text), _bool(permanent))


def _to_step_raised(incarnation: int, v: Any) -> StepRaised:
    steps, text = _list(v)
    return StepRaised(incarnation, _int(steps), _str(text))


def _to_hello(incarnation: int, v: Any) -> Hello:
    at, pid, versions = _list(v)
    return Hello(incarnation, _float(at), _int(pid), {name: _str(of) for name, of in _dict(versions).items()})


def _from_request(e: Request) -> list[Any]:
    claim = None if e.claim is None else [e.claim.pausable, *e.claim.rank]
    asked = [e.stay, e.deadline, dict(e.config), list(e.prompt), e.shown, claim, e.followed]
    return [*asked, e.text, e.text_prompt_tokens, [[i.height, i.width] for i in e.images]]


def _to_request(incarnation: int, v: Any) -> Request:
    """Its images are empty: what is in them has come before (`Pixels`)."""
    stay, deadline, config, prompt, shown, claim, followed, text, tokens, sizes = _list(v)
    asked = (_int(stay), _ints(prompt), _dict(config), _float(deadline), _int(shown))
    seen = (_or_none(_str, text), tuple([Image(*size, b"") for size in _each(_to_pair, sizes)]), _int(tokens))
    return Request(*asked, _or_none(_to_claim, claim), _bool(followed), *seen)


def _to_claim(v: Any) -> Claim:
    pausable, priority, deadline, number = _list(v)
    return Claim(_bool(pausable), (_float(priority), _float(deadline), _float(number)))


_ENCODERS: Mapping[type[Any], tuple[int, Callable[[Any], Any]]] = {
    Boot: (1, lambda e: dict(e.spec)),
    Request: (2, _from_request),
    Halt: (3, lambda e: e.stay),
    Pixels: (PIXELS, Pixels.body),
    Hello: (16, lambda e: [e.at, e.pid, dict(e.versions)]),
    Ready: (17, _from_ready),
    BootFailed: (18, lambda e: [e.kind, e.text, e.permanent]),
    Progress: (_PROGRESS, _from_progress),
    StepRaised: (20, lambda e: [e.steps, e.text]),
}
_DECODERS: Mapping[int, Callable[[int, Any], Word]] = {
    1: lambda _, v: Boot(_dict(v)),
    2: _to_request,
    3: lambda _, v: Halt(_int(v)),
    PIXELS: lambda _, body: Pixels.of(body),
    16: _to_hello,
    17: _to_ready,
    18: _to_boot_failed,
    _PROGRESS: _to_progress,
    20: _to_step_raised,
}
