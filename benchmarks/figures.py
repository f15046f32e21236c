"""What a benchmark says: figures with their intervals and targets, as a table and as JSON that a later run reads."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import time
from collections import Counter
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
    few: bool = False  #: too few samples, or rounds, for an interval of 95 %: it is too narrow

    @property
    def reached(self) -> bool | None:
        """None: there is no target."""
        return self._reaches(self.value) if self.target else None

    @property
    def clear(self) -> bool:
        """All of the interval is on one side of the target, and there were samples enough for one."""
        if self.interval is None or not self.target:
            return True
        return not self.few and len(set(map(self._reaches, self.interval))) == 1

    def _reaches(self, value: float) -> bool:
        found = _TARGET.fullmatch(self.target)
        assert found is not None, self.target
        return _REACHED[found[1]](value, float(found[2]))

    @property
    def smaller_is_better(self) -> bool | None:
        """By its target; None: it has none."""
        return self.target[0] == "<" if self.target else None


# --- samples -----------------------------------------------------------------------------------------------------


MISSES = 0.025  #: the chance that an interval may lie below a figure, and that it may lie above it

#: Each by itself; or round by round, where samples of one round are late, or fast, together: sixteen requests at once
#: are no sixteen samples. An interval is then that of rounds drawn anew.
Samples = Sequence[float] | Sequence[Sequence[float]]


def rounds(values: Samples) -> list[Sequence[float]]:
    """Without those that have no sample."""
    return [each for each in (one if isinstance(one, Sequence) else [one] for one in values) if len(each)]


def blocks(values: Sequence[float], size: int) -> list[Sequence[float]]:
    """Of samples that follow upon each other: neighbours are of a kind."""
    return [values[at : at + size] for at in range(0, len(values), size)]


def flat(values: Samples) -> list[float]:
    return [value for each in rounds(values) for value in each]


def quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(np.asarray(values), share))


def drawn(values: Samples, share: float, seed: int = 0) -> Any:
    """The quantile of `TIMES` samples whose rounds are drawn anew from these. One seed draws the same rounds of two."""
    rng = np.random.default_rng(seed)
    given = [np.asarray(each, dtype=float) for each in rounds(values)]
    if all(each.size == 1 for each in given):
        whole = np.concatenate(given)
        return np.array([np.quantile(whole[rng.integers(0, len(given), len(given))], share) for _ in range(TIMES)])
    draws = (rng.integers(0, len(given), len(given)) for _ in range(TIMES))
    return np.array([np.quantile(np.concatenate([given[n] for n in draw]), share) for draw in draws])


def interval(resampled: Any) -> tuple[float, float]:
    low, high = np.quantile(resampled, (MISSES, 1 - MISSES))
    return float(low), float(high)


def too_few(values: Samples, share: float) -> bool:
    """Even from the least to the largest of them it would be missed more often than an interval may miss it.

    Of n samples all lie below the quantile with a chance of share^n, and all above it with (1 - share)^n. Of rounds,
    whose number counts whatever is in them, half lie on either side.
    """
    many, independent = len(flat(values)), len(rounds(values))
    return max(share, 1 - share) ** many > MISSES or 0.5**independent > MISSES


def sampled(
    part: str, name: str, values: Samples, unit: str, share: float = 0.5, *, target: str = "", note: str = ""
) -> Figure:
    """A quantile of `values` (the median), with its interval; the largest, and the least, have none."""
    every = _some(part, name, values)
    note = note or _count(values)
    between = interval(drawn(values, share)) if 0 < share < 1 else None
    few = between is not None and too_few(values, share)
    return Figure(part, name, quantile(every, share), unit, between, target, note + FEW * few, thinned(every), few)


def added(
    part: str,
    name: str,
    values: Samples,
    beside: Samples,
    unit: str,
    share: float,
    *,
    target: str = "",
) -> Figure:
    """How much larger a quantile of `values` is than that of `beside`; where both are rounds, of the same rounds."""
    every, others = _some(part, name, values), _some(part, name, beside)
    paired = len(rounds(values)) == len(rounds(beside)) < len(every)
    between = interval(drawn(values, share) - drawn(beside, share, seed=0 if paired else 1))
    value, few = quantile(every, share) - quantile(others, share), too_few(values, share) or too_few(beside, share)
    note = f"{quantile(every, share):.3g} {unit} beside {quantile(others, share):.3g}; {_count(values)}"
    return Figure(part, name, value, unit, between, target, note + FEW * few, thinned(every), few)


FEW = "; too few for 95 %"


def _some(part: str, name: str, values: Samples) -> list[float]:
    every = flat(values)
    if not every:
        sys.exit(f"{part}: {name}: not one sample")
    return every


def _count(values: Samples) -> str:
    every, independent = len(flat(values)), len(rounds(values))
    return f"{every} samples" + (f" in {independent} rounds" if independent < every else "")


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
        "cores": len(os.sched_getaffinity(0)),  # that it may use
        "memory_gib": round(memory),
        "kernel": platform.release(),
        **versions,
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


OTHERS = "processors that others used meanwhile"


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
        return Figure(part, OTHERS, max(0.0, others / took), "", note=note)


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


def write(path: str | Path, figures: Iterable[Figure], of: dict[str, Any] | None = None) -> None:
    """`of`: the machine, where it was not this one."""
    rows = [asdict(one) for one in figures]
    text = json.dumps({"machine": machine() if of is None else of, "figures": rows}, indent=1) + "\n"
    beside = Path(f"{path}.part")  # nobody finds half of it
    beside.write_text(text)
    beside.replace(path)


class NoRun(ValueError):
    """A file that no run has written."""


def read(path: str | Path) -> list[Figure]:
    """NoRun: it is not what `write` writes. What a later version may have added is left out."""
    return _told(path)[1]


def machine_of(path: str | Path) -> dict[str, Any]:
    """Where its figures were measured; empty: it does not say so."""
    return _told(path)[0]


def _told(path: str | Path) -> tuple[dict[str, Any], list[Figure]]:
    try:
        told = json.loads(Path(path).read_text())
        return dict(told.get("machine", {})), [_figure(row) for row in told["figures"]]
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError) as why:
        raise NoRun(f"{path} has no figures of a run: {type(why).__name__}: {why}") from why


def _figure(row: dict[str, Any]) -> Figure:
    known = {name: row[name] for name in ("part", "name", "value", "unit", "target", "note", "few") if name in row}
    assert all(isinstance(known.get(name, ""), str) for name in ("part", "name", "unit", "target", "note")), row
    edges, samples = row.get("interval"), tuple(float(value) for value in row.get("samples", ()))
    between = None if edges is None else (float(edges[0]), float(edges[1]))
    if not isinstance(row["value"], int | float):
        raise TypeError(f"value {row['value']!r}")
    one = Figure(**known, interval=between, samples=samples)
    assert one.reached in (None, True, False)  # its target can be read
    return one


def _same(figures: Iterable[Figure]) -> dict[tuple[str, str, int], Figure]:
    """By part, name, and which of those of one name it is: parts that are merged have some in common."""
    seen: Counter[tuple[str, str]] = Counter()
    found = {}
    for one in figures:
        found[one.part, one.name, seen[one.part, one.name]] = one
        seen[one.part, one.name] += 1
    return found


def against(now: Sequence[Figure], before: Sequence[Figure]) -> list[str]:
    """A line for each figure whose interval has left that of an earlier run, and for each that only one of them has."""
    known, lines = _same(before), []
    for key, one in _same(now).items():
        old = known.pop(key, None)
        if old is None:
            lines.append(f"new: {one.part}, {one.name}: {short(one.value)} {one.unit}")
        elif apart(one, old) and one.name != OTHERS:
            worse = (one.value > old.value) == one.smaller_is_better
            what = ("WORSE" if worse else "better") if one.target else "changed"
            lines.append(f"{what}: {one.part}, {one.name}: {short(one.value)} {one.unit}, was {short(old.value)}")
    lines += [f"gone: {part}, {name}" for part, name, _ in known]
    return lines


def compared(now: Sequence[Figure], before: Sequence[Figure]) -> int:
    """How many figures both have."""
    return len(_same(now).keys() & _same(before).keys())


def apart(one: Figure, old: Figure) -> bool:
    """Their intervals do not meet; where there are none that count, they differ by more than a tenth."""
    if one.interval is None or old.interval is None or one.few or old.few:
        return abs(one.value - old.value) > 0.1 * max(abs(old.value), 1e-12)
    return one.interval[0] > old.interval[1] or one.interval[1] < old.interval[0]


# --- a part from the command line --------------------------------------------------------------------------------


def count(text: str) -> int:
    """An option that is a number of something to measure: one at least."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} would leave nothing to measure")
    return value


def rate(text: str) -> float:
    """An option that is so much a second, or so many seconds."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no positive number")
    return value


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
    if given.json:
        try:
            Path(given.json).parent.mkdir(parents=True, exist_ok=True)
            Path(f"{given.json}.part").touch()
            Path(f"{given.json}.part").unlink()
        except OSError as why:  # before it measures, not after
            parser.error(f"cannot write {given.json}: {why}")
    load = Load()
    found = measure(given)
    if found:
        found.append(load.others(found[0].part))
    if given.short:
        found = [evolve(one, target="") for one in found]
    print(table(found), flush=True)
    if given.json:
        write(given.json, found)
