"""Both lanes of benchmarks/proxy_incident.py beside each other, as one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from proxy_incident import WITHOUT, Plan, Told, figures_of, most

matplotlib.use("Agg")

from matplotlib import pyplot


def draw(plan: Plan, told: dict[str, Told], path: Path) -> None:
    figure, axes = pyplot.subplots(2, len(told), sharex=True, sharey="row", figsize=(11, 5.5), layout="constrained")
    for column, (name, one) in enumerate(told.items()):
        bound = most(plan, figures_of(one))
        axes[0][column].set_title(name)
        probes(axes[0][column], one, None if name == WITHOUT else bound)
        inside(axes[1][column], one)
        for row in axes:
            row[column].axvline(one.vanished, color="0.4", linestyle=":")
            if name == WITHOUT:
                row[column].axvline(one.vanished + plan.hold, color="0.4", linestyle="--")
        axes[1][column].set_xlabel("seconds")
    top = axes[0][0].get_ylim()[1]
    axes[0][0].text(plan.before + 0.3, top / 2, "the clients\nvanish", fontsize=8, color="0.3", va="top")
    axes[0][0].text(
        plan.before + plan.hold - 0.3, top / 2, "the proxy\ngives up", fontsize=8, color="0.3", ha="right", va="top"
    )
    figure.savefig(path, dpi=100, metadata={"Software": None})


def probes(axis: Any, told: Told, bound: float | None) -> None:
    answered = [p for p in told.probes if p.took is not None]
    axis.plot([p.at for p in answered], [p.took for p in answered], ".", label="request for one token")
    if bound is not None:
        axis.axhline(bound, color="tab:green", linewidth=1, label="ttl + 2 steps + an ordinary one")
    axis.set_yscale("log")
    axis.set_ylabel("seconds to its answer")
    axis.legend(loc="upper right", fontsize=8)


def inside(axis: Any, told: Told) -> None:
    at = [s["at"] for s in told.samples]
    for key, color in (("running", "tab:blue"), ("waiting", "tab:orange"), ("orphans", "tab:red")):
        axis.plot(at, [s[key] for s in told.samples], color=color, label=key, drawstyle="steps-post")
    axis.set_ylabel("sequences")
    axis.legend(loc="upper right", fontsize=8)
