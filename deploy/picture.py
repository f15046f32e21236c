"""`python -m deploy.picture [FILE]` draws the dashboard's panels (docs/dashboard.png) from a run; wants prometheus.

A lane of the small hybrid model with clients that hold leases. At 20 s all of them vanish and others come; at 45 s the
engine is stopped in the middle of a step.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

import boundedgen as b
from deploy.dashboard import COLOURS, COLUMNS, ROWS, Panel
from deploy.scenarios import ROOT, stop_in_a_step
from deploy.scraped import free_port, served
from deploy.server import Prometheus, prometheus

matplotlib.use("Agg")

from matplotlib import pyplot

STATES = list(b.HealthState)
SECONDS, VANISH, STOP = 75.0, 20.0, 45.0
HYBRID = ROOT / "tests" / "models" / "hybrid"
STEP_S = 0.5
UNITS = {"short": "", "cps": "1/s", "percentunit": "share"}
PENS = {"light-blue": "tab:cyan", "dark-orange": "tab:orange", "yellow": "gold", "gray": "0.5"}


def client(pipeline: b.BoundedPipeline, gone: threading.Event, seed: int) -> None:
    """One that holds a lease and renews it; once it is gone, its generation goes on without it."""
    draw = random.Random(seed)
    while not gone.is_set():
        tokens, total = draw.randint(100, 2000), draw.choice([0.5, 4.0, 20.0])
        with contextlib.suppress(b.BoundedGenError):
            lease = pipeline.lease(f"client {seed}", ttl=1.0)
            bounds = b.Bounds(total=total)
            generation = pipeline.submit([5] * 40, lease=lease, max_new_tokens=tokens, ignore_eos=True, bounds=bounds)
            while generation.finish_reason is None and not gone.wait(0.2):
                lease.renew()
            if gone.is_set():
                with contextlib.suppress(b.GenerationError):
                    generation.result()  # as its proxy does, which reads on
            else:
                lease.revoke()
        gone.wait(draw.expovariate(2.0))


@contextlib.contextmanager
def crowd(pipeline: b.BoundedPipeline, seeds: range) -> Iterator[threading.Event]:
    gone = threading.Event()
    threads = [threading.Thread(target=client, args=(pipeline, gone, seed), daemon=True) for seed in seeds]
    for thread in threads:
        thread.start()
    try:
        yield gone
    finally:
        gone.set()
        for thread in threads:
            thread.join(30)


def play(pipeline: b.BoundedPipeline) -> None:
    began = time.monotonic()

    def until(at: float) -> None:
        while time.monotonic() < began + at:
            pipeline.probe(5)
            time.sleep(min(1.0, max(0.0, began + at - time.monotonic())))

    with crowd(pipeline, range(8)):
        until(VANISH)
    with crowd(pipeline, range(8, 16)):
        until(STOP)
        stop_in_a_step(pipeline)
        until(SECONDS)


def main() -> int:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "dashboard.png"
    scheduler = {"num_kv_blocks": 512, "max_num_seqs": 4, "max_num_batched_tokens": 256}
    port = free_port()
    with (
        prometheus(f"127.0.0.1:{port}", every="1s") as server,
        b.BoundedPipeline(HYBRID, scheduler, "CPU") as pipeline,
        served(pipeline, port),
    ):
        began = time.time()
        play(pipeline)
        draw(server, began, file)
    return 0


# --- the picture -----------------------------------------------------------------------------------------------------


def draw(server: Prometheus, began: float, file: Path) -> None:
    heights = [-(-len(row.panels) // COLUMNS) for row in ROWS]
    size = (COLUMNS * 4.6, sum(heights) * 2.5)
    figure, axes = pyplot.subplots(sum(heights), COLUMNS, figsize=size, layout="constrained", squeeze=False)
    line = 0
    for row, height in zip(ROWS, heights, strict=True):
        places = [axis for axis_row in axes[line : line + height] for axis in axis_row]
        for axis, panel in zip(places, row.panels, strict=False):
            show(axis, panel, server, began)
        for axis in places[len(row.panels) :]:
            axis.set_axis_off()
        line += height
    figure.savefig(file, dpi=80, metadata={"Software": None})


def show(axis: Any, panel: Panel, server: Prometheus, began: float) -> None:
    unit = UNITS.get(panel.unit, panel.unit)
    axis.set_title(f"{panel.title} ({unit})" if unit else panel.title, fontsize=9, loc="left")
    lines = list(found(panel, server, began))
    if panel.kind == "state-timeline":
        states(axis, lines)
    elif panel.stacked:
        stack(axis, lines)
    else:
        for legend, points in lines:
            axis.plot(*zip(*broken(points), strict=True), label=legend, linewidth=1)
        axis.set_ylim(bottom=0)
    axis.set_xlim(0, SECONDS)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.3)
    if lines and panel.kind != "state-timeline":
        axis.legend(fontsize=6, loc="upper left", ncols=2)


Line = tuple[str, list[tuple[float, float]]]


def found(panel: Panel, server: Prometheus, began: float) -> Iterator[Line]:
    for query in panel.queries:
        expression = query.expr
        for variable, value in (("$pipeline", ".+"), ("$instance", ".+"), ("$__rate_interval", "4s")):
            expression = expression.replace(variable, value)
        for series in server.range(expression, began, began + SECONDS, STEP_S):
            legend = query.legend
            for label, value in series["metric"].items():
                legend = legend.replace(f"{{{{{label}}}}}", "" if label in ("pipeline", "instance") else value)
            points = [(float(at) - began, float(value)) for at, value in series["values"]]
            if any(value for _, value in points) or not panel.stacked:
                yield legend.strip() or panel.title.lower(), points


def broken(points: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """No line where there was nothing."""
    for one, following in itertools.zip_longest(points, points[1:]):
        yield one
        if following is not None and following[0] - one[0] > 1.5 * STEP_S:
            yield one[0], math.nan


def states(axis: Any, lines: list[Line]) -> None:
    for _, points in lines:
        for state in STATES:
            when = [at for at, value in points if STATES[int(value)] is state]
            colour = PENS.get(COLOURS[state], COLOURS[state])
            axis.broken_barh([(at, STEP_S) for at in when], (0, 1), color=colour, label=state.value if when else None)
    axis.set_yticks([])
    axis.legend(fontsize=7, loc="lower left")


def stack(axis: Any, lines: list[Line]) -> None:
    grid = sorted({at for _, points in lines for at, _ in points})
    rows = [[dict(points).get(at, 0.0) for at in grid] for _, points in lines]
    if rows:
        axis.stackplot(grid, rows, labels=[legend for legend, _ in lines], step="post", alpha=0.7)


if __name__ == "__main__":
    sys.exit(main())
