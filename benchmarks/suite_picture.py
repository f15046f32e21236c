"""The figures of benchmarks/suite.py as one picture: the ratios in full, and the others beside their targets.

What is to be zero, such as the status of a part, is in the table only: there is no share of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from figures import Figure, short

matplotlib.use("Agg")

from matplotlib import pyplot

GOOD, BAD = "tab:green", "tab:red"
LEAST = 1e-3  #: share of a target below which there is nothing to see


def draw(found: Sequence[Figure], path: Path) -> None:
    ratios = [one for one in found if one.unit == "ratio" and one.samples]
    others = [one for one in found if one.smaller_is_better and one.unit != "ratio" and _bar(one) > 0]
    heights = [max(1, len(ratios)), max(1, len(others))]
    size = (10, 2 + 0.3 * sum(heights))
    figure, (above, below) = pyplot.subplots(2, figsize=size, layout="constrained", height_ratios=heights)
    _ratios(above, ratios)
    _targets(below, others)
    figure.savefig(path, dpi=100, metadata={"Software": None})
    pyplot.close(figure)


def _bar(one: Figure) -> float:
    return float(one.target.split()[1])


def _ratios(axis: Any, ratios: Sequence[Figure]) -> None:
    """Every pair as a box, the target as a mark."""
    axis.set_title("throughput: ratio of each pair, and the target")
    if ratios:
        places = range(len(ratios), 0, -1)
        axis.boxplot([one.samples for one in ratios], positions=list(places), orientation="horizontal", widths=0.6)
        axis.set_yticks(list(places), [one.name for one in ratios], fontsize=8)
        for one, place in zip(ratios, places, strict=True):
            if one.target:
                color = GOOD if one.reached else BAD
                axis.plot([float(one.target.split()[1])] * 2, [place - 0.4, place + 0.4], color=color, linewidth=2)
    axis.axvline(1.0, color="0.6", linestyle=":")


def _targets(axis: Any, others: Sequence[Figure]) -> None:
    """As a share of the target: what is left of the line has reached it. All of these are the smaller the better."""
    axis.set_title("the others, as a share of their targets" if others else "no other has a target")
    for place, one in zip(range(len(others), 0, -1), others, strict=True):
        bar = _bar(one)
        color = GOOD if one.reached else BAD
        axis.plot(max(one.value / bar, LEAST), place, "o", color=color)
        if one.interval is not None:
            axis.plot([max(edge / bar, LEAST) for edge in one.interval], [place] * 2, color=color)
    names = [f"{one.part}: {one.name}, {short(one.value)} {one.unit} ({one.target})" for one in others]
    axis.set_yticks(list(range(len(others), 0, -1)), names, fontsize=7)
    axis.set_xscale("log")
    axis.axvline(1.0, color="0.4", linestyle="--")
    axis.set_xlabel("of the target")
