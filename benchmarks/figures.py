"""What a benchmark says: figures with their intervals and targets, as a table and as JSON that a later run reads."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import asdict, evolve, field, frozen

TIMES = 1000  #: that a sample is drawn anew for an interval
_TARGET = re.compile(r"(<=|>=|<|>) ([\d.]+)")
_REACHED: dict[str, Callable[[float, float], bool]] = {
    "<=": lambda value, bar: value <= bar,
    ">=": lambda value, bar: value >= bar,
    "<": lambda value, bar: value < bar,
    ">": lambda value, bar: value > bar,
}


@frozen
class Figure:
    """One number. `interval`: where it lies with 95 %, by resampling; None: it was not sampled."""

    part: str
    name: str
    value: float
    unit: str
    interval: tuple[float, float] | None = None
    target: str = ""  #: such as "<= 5" in the same unit; empty: it is printed beside the others only
    note: str = ""
    samples: Sequence[float] = field(default=(), repr=False)  #: those that the plot shows

    @property
    def reached(self) -> bool | None:
        """None: there is no target."""
        return self._reaches(self.value) if self.target else None

    @property
    def clear(self) -> bool:
        """All of the interval is on one side of the target."""
        return self.interval is None or not self.target or len(set(map(self._reaches, self.interval))) == 1

    def _reaches(self, value: float) -> bool:
        found = _TARGET.fullmatch(self.target)
        assert found is not None, self.target
        return _REACHED[found[1]](value, float(found[2]))

    @property
    def smaller_is_better(self) -> bool | None:
        """By its target; None: it has none."""
        return self.target[0] == "<" if self.target else None


# --- samples -----------------------------------------------------------------------------------------------------


def quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(np.asarray(values), share))


def drawn(values: Sequence[float], share: float, seed: int = 0) -> Any:
    """The quantile of `TIMES` samples that are drawn anew from these."""
    rng, given = np.random.default_rng(seed), np.asarray(values)
    return np.array([np.quantile(rng.choice(given, given.size), share) for _ in range(TIMES)])


def interval(resampled: Any) -> tuple[float, float]:
    low, high = np.quantile(resampled, (0.025, 0.975))
    return float(low), float(high)


def sampled(
    part: str, name: str, values: Sequence[float], unit: str, share: float = 0.5, *, target: str = "", note: str = ""
) -> Figure:
    """A quantile of `values` (the median), with its interval."""
    between = interval(drawn(values, share))
    note = note or f"{len(values)} samples"
    return Figure(part, name, quantile(values, share), unit, between, target, note, thinned(values))


def added(
    part: str,
    name: str,
    values: Sequence[float],
    beside: Sequence[float],
    unit: str,
    share: float,
    *,
    target: str = "",
) -> Figure:
    """How much larger a quantile of `values` is than that of `beside`."""
    between = interval(drawn(values, share) - drawn(beside, share, 1))
    value = quantile(values, share) - quantile(beside, share)
    note = f"{quantile(values, share):.3g} {unit} beside {quantile(beside, share):.3g}; {len(values)} samples"
    return Figure(part, name, value, unit, between, target, note, thinned(values))


def ratios(
    part: str, name: str, ours: Sequence[float], theirs: Sequence[float], *, target: str = "", note: str = ""
) -> Figure:
    """The median ratio of pairs, with its interval."""
    pairs = [a / b for a, b in zip(ours, theirs, strict=True)]
    rates = f"{np.median(ours):.1f} beside {np.median(theirs):.1f} tokens/s, {len(pairs)} pairs"
    return sampled(part, name, pairs, "ratio", target=target, note=f"{rates}{'; ' if note else ''}{note}")


def thinned(values: Sequence[float], most: int = 200) -> tuple[float, ...]:
    """Enough of them, evenly over their order of size, for a plot."""
    ranked = sorted(values)
    every = max(1, len(ranked) // most)
    return tuple(float(f"{value:.6g}") for value in ranked[::every])


# --- the machine -------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    import openvino
    import openvino_genai

    import boundedgen

    versions = {
        "python": platform.python_version(),
        "openvino": openvino.__version__,
        "openvino_genai": openvino_genai.__version__,
        "boundedgen": boundedgen.__version__,
    }
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory),
        "kernel": platform.release(),
        **versions,
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


@frozen
class Load:
    """Seconds of processors since the machine was started, and of this process with those children that have ended."""

    at: float = field(factory=time.monotonic)
    own: float = field(factory=lambda: sum(os.times()[:4]))
    all: float = field(factory=lambda: _ticks(0, 1, 2, 5, 6))
    stolen: float = field(factory=lambda: _ticks(7))

    def others(self, part: str) -> Figure:
        """How many processors somebody else had since then: figures beside much of that are worth little."""
        now = Load()
        took, stolen = now.at - self.at, now.stolen - self.stolen
        others = now.all - self.all - (now.own - self.own) + stolen
        note = f"in {took:.0f} s; {stolen / took:.2f} were taken by the hypervisor"
        return Figure(part, "processors that others used meanwhile", max(0.0, others / took), "", note=note)


def _ticks(*columns: int) -> float:
    """Of the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal."""
    fields = Path("/proc/stat").read_text().split(None, 9)[1:9]
    return sum(int(fields[column]) for column in columns) / os.sysconf("SC_CLK_TCK")


# --- saying it ---------------------------------------------------------------------------------------------------


def table(figures: Iterable[Figure]) -> str:
    """As Markdown, which is readable as it is."""
    lines = ["| Part | Figure | Value | 95 % | Target | Reached | |", "|---|---|---:|---|---|---|---|"]
    for one in figures:
        reached = {None: "", True: "yes", False: "**no**"}[one.reached] + ("" if one.clear else ", unclear")
        between = "" if one.interval is None else " to ".join(map(short, one.interval))
        value = f"{short(one.value)} {one.unit}".strip()
        lines.append(f"| {one.part} | {one.name} | {value} | {between} | {one.target} | {reached} | {one.note} |")
    return "\n".join(lines)


def short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def write(path: str | Path, figures: Iterable[Figure]) -> None:
    rows = [asdict(one) for one in figures]
    Path(path).write_text(json.dumps({"machine": machine(), "figures": rows}, indent=1) + "\n")


def read(path: str | Path) -> list[Figure]:
    rows = json.loads(Path(path).read_text())["figures"]
    return [Figure(**{**row, "interval": _pair(row["interval"]), "samples": tuple(row["samples"])}) for row in rows]


def _pair(values: Sequence[float] | None) -> tuple[float, float] | None:
    return None if values is None else (values[0], values[1])


def against(now: Sequence[Figure], before: Sequence[Figure]) -> list[str]:
    """A line for each figure with a target whose interval has left that of an earlier run."""
    known = {(one.part, one.name): one for one in before}
    lines = []
    for one in now:
        old = known.pop((one.part, one.name), None)
        if old is None:
            lines.append(f"new: {one.part}, {one.name}: {short(one.value)} {one.unit}")
        elif one.target and apart(one, old):
            worse = (one.value > old.value) == one.smaller_is_better
            lines.append(
                f"{'WORSE' if worse else 'better'}: {one.part}, {one.name}: {short(one.value)} {one.unit}, "
                f"was {short(old.value)}"
            )
    lines += [f"gone: {part}, {name}" for part, name in known]
    return lines


def apart(one: Figure, old: Figure) -> bool:
    """Their intervals do not meet; where there are none, they differ by more than a tenth."""
    if one.interval is None or old.interval is None:
        return abs(one.value - old.value) > 0.1 * max(abs(old.value), 1e-12)
    return one.interval[0] > old.interval[1] or one.interval[1] < old.interval[0]


# --- a part from the command line --------------------------------------------------------------------------------


def alone(
    doc: str | None,
    measure: Callable[[argparse.Namespace], list[Figure]],
    options: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> None:
    """Run one part, print its figures and keep them. A short run's are no measurement, and have no target."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a little of each, to see that it works: no measurement")
    parser.add_argument("--json", help="write the figures there")
    options(parser)
    given = parser.parse_args()
    load = Load()
    found = measure(given)
    if found:
        found.append(load.others(found[0].part))
    if given.short:
        found = [evolve(one, target="") for one in found]
    print(table(found), flush=True)
    if given.json:
        write(given.json, found)
