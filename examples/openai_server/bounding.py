"""How long a client lets its request take: a header and a field of the body, the tighter of both. The server's own
bounds hold beside them: the pipeline takes the tighter of all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import boundedgen as b
from examples.openai_server.fields import short, wrong
from examples.openai_server.problems import invalid

HEADER: Final = "x-bounds"  #: total=20, queued=5
_KINDS: Final = ("total", "queued", "first_token", "next_token")
#: The OpenAI clients' own timeout, which they tell. Of a whole answer it is what they wait for it; of a stream it is
#: how long they wait for its next bytes, and it may go on for longer.
_CLIENTS_OWN: Final = "x-stainless-read-timeout"


def bounds_of(body: Mapping[str, Any], headers: Mapping[str, str], *, stream: bool) -> b.Bounds:
    """Raises Problem, which names the bound."""
    for name in body:
        if name not in _KINDS:
            raise invalid(f"bounds.{name}", f"bounds has no {short(name)}; it may have {', '.join(_KINDS)}")
    found = b.Bounds(**{name: _seconds(f"bounds.{name}", value) for name, value in body.items() if value is not None})
    found = found.tightest(_of_header(headers.get(HEADER, "")))
    return found if stream else found.tightest(_of_client(headers.get(_CLIENTS_OWN, "")))


def told(bounds: b.Bounds) -> str:
    """Bounds as the header has them."""
    every = ((name, getattr(bounds, name)) for name in _KINDS)
    return ", ".join(f"{name}={value:g}" for name, value in every if value is not None)


def _of_header(line: str) -> b.Bounds:
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in line.split(","))):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in _KINDS:
            raise invalid("X-Bounds", f"X-Bounds has no bound {name!r}; write {'=…, '.join(_KINDS)}=… in seconds")
        found[name] = _seconds(f"X-Bounds, {name}", _as_number(value))
    return b.Bounds(**found)


def _of_client(line: str) -> b.Bounds:
    """Nobody wrote it by hand: what it cannot mean is passed over."""
    seconds = _as_number(line)
    return b.Bounds(total=seconds) if isinstance(seconds, float) and 0 < seconds < math.inf else b.Bounds()


def _as_number(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


def _seconds(name: str, value: Any) -> float:
    """Zero and less are legal: what is left of a deadline that has passed."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e9 < value < 1e9:
        raise wrong(name, "a number of seconds", value)
    return float(value)
