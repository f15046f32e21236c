"""What a lane did with deep/traffic.py, and several lanes beside each other."""

from __future__ import annotations

import re
import signal
from collections import Counter

from attrs import Factory, define

_CHECK = re.compile(r"Check '[^']*' failed")
_SIGNAL = re.compile(r"died of signal (\d+)")


@define(kw_only=True)
class Figures:
    lane: str
    seconds: float
    asked: int = 0  #: requests
    tokens: int = 0  #: of requests that ended normally
    ends: Counter[str] = Factory(Counter)
    died: Counter[str] = Factory(Counter)  #: engines, by what they died of
    late_most: float | None = None  #: seconds after its deadline that the latest answer came; None: nobody looked
    machine_late: float | None = None  #: seconds that threads waited for a processor, in all
    broken: list[str] = Factory(list)

    @property
    def finished(self) -> int:
        return self.ends["stop"] + self.ends["length"] + self.ends["finished"]


def how(text: str, status: int = 0) -> str:
    """What an engine died of, in few words: from an exit status, or from what was said of it."""
    told = _SIGNAL.search(text)
    number = -status if status < 0 else int(told[1]) if told else 0
    if number:
        return signal.Signals(number).name
    check = _CHECK.search(text)
    return check[0] if check else text.strip().rpartition("\n")[2][:80] or f"exit {status}"


def table(lanes: list[Figures]) -> str:
    rows = [
        ("seconds", [f"{f.seconds:.0f}" for f in lanes]),
        ("requests", [str(f.asked) for f in lanes]),
        ("engines lost", [str(sum(f.died.values())) for f in lanes]),
        *((f"  {why}", [str(f.died[why]) for f in lanes]) for why in sorted({why for f in lanes for why in f.died})),
        ("ended normally", [str(f.finished) for f in lanes]),
        *((f"  {why}", [str(f.ends[why]) for f in lanes]) for why in sorted({why for f in lanes for why in f.ends})),
        ("goodput, tokens/s", [f"{f.tokens / f.seconds:.0f}" for f in lanes]),
        ("goodput, requests/s", [f"{f.finished / f.seconds:.2f}" for f in lanes]),
        ("latest answer, ms", [_ms(f.late_most) for f in lanes]),
        ("waits for a processor, ms", [_ms(f.machine_late) for f in lanes]),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [("", [f.lane for f in lanes]), *rows]
    return "\n".join(f"{name:{width}} " + "".join(f"{value:>12}" for value in values) for name, values in lines)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.0f}"
