"""Both lanes of benchmarks/incident.py beside each other, as one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from incident import END, PROBE_TIMEOUT, RESTART, ROLL, Told, clock

matplotlib.use("Agg")

from matplotlib import pyplot

TITLES = {"raw": "the raw loop: stops when the socket closes", "boundedgen": "boundedgen: leases and deadlines"}
WINDOW = 5.0  #: seconds over which completions are counted
NO_ANSWER = 2 * PROBE_TIMEOUT


def draw(told: dict[str, Told], path: Path) -> None:
    figure, axes = pyplot.subplots(3, len(told), sharex=True, sharey="row", figsize=(11, 7), layout="constrained")
    for column, (name, one) in enumerate(told.items()):
        axes[0][column].set_title(TITLES[name])
        probes(axes[0][column], one)
        goodput(axes[1][column], one)
        inside(axes[2][column], one)
        for row in axes:
            row[column].axvline(ROLL, color="0.4", linestyle=":")
            if name == "raw":
                row[column].axvline(RESTART, color="0.4", linestyle="--")
        full = range(2, int(END), 20)
        axes[2][column].set_xticks(list(full), [clock(at) for at in full])
        axes[2][column].set_xlabel("time of the day; a minute of it is a second here")
    axes[0][0].text(ROLL + 1, 0.002, "the clients\nvanish", fontsize=8, color="0.3")
    axes[0][0].text(RESTART - 1, 0.002, "restart\nby hand", fontsize=8, color="0.3", ha="right")
    figure.savefig(path, dpi=100, metadata={"Software": None})


def probes(axis: Any, told: Told) -> None:
    answered = [p for p in told.probes if p.took is not None]
    axis.plot([p.at for p in answered], [p.took for p in answered], ".", label="one-token request")
    silent = [p.at for p in told.probes if p.took is None and p.at < END - 2.0]
    axis.plot(silent, [NO_ANSWER] * len(silent), "x", color="tab:red", label="no answer")
    own = [p for p in told.own_probes if p.took is not None]
    if own:
        axis.plot([p.at for p in own], [p.took for p in own], "+", color="tab:green", label="pipeline.probe()")
    axis.set_yscale("log")
    axis.set_ylabel("seconds to one token")
    axis.legend(loc="center right", fontsize=8)


def goodput(axis: Any, told: Told) -> None:
    """Generations that came to their agents whole, and agents that were reaped, a minute."""
    seconds = range(int(END))
    for times, label, color in ((told.completed, "completed", "tab:green"), (told.reaped, "reaped", "tab:red")):
        counts = [sum(s - WINDOW < at <= s for at in times) * 60.0 / min(WINDOW, s + 1) for s in seconds]
        axis.plot(seconds, counts, color=color, label=label)
    axis.set_ylabel("generations, 1/min")
    axis.legend(loc="upper right", fontsize=8)


def inside(axis: Any, told: Told) -> None:
    at = [s["at"] for s in told.samples]
    for key, color in (("inside", "tab:blue"), ("waiting", "tab:orange"), ("orphans", "tab:red")):
        axis.plot(at, [s[key] for s in told.samples], color=color, label=key, drawstyle="steps-post")
    axis.set_ylabel("sequences")
    axis.legend(loc="upper right", fontsize=8)
