"""Draws docs/top.svg: `top` over three lanes, one of which hangs. The lanes are simulated, the screen is the real one.

python docs/top_picture.py [FILE]            # or: nox -s top_picture
"""

import io
import logging
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

import boundedgen as b
from boundedgen._top._reading import COUNTERS, Seen
from boundedgen._top._view import Look, frame
from boundedgen.testing import Fault, SimModel, Simulation

WIDTH, HEIGHT = 80, 24
USERS = ("ann", "bob", "carol", "dave", "eve")
#: That of rich without its frame and without fonts from elsewhere.
FORMAT = """<svg viewBox="-12 -8 1000 602" xmlns="http://www.w3.org/2000/svg">
<style>.{unique_id}-matrix {{ font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: {char_height}px; \
line-height: {line_height}px; }} {styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" \
height="{terminal_height}"/></clipPath>{lines}</defs>
<rect fill="#292929" x="-12" y="-8" width="1000" height="602"/>
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g>
</svg>
"""


class Day:
    """A lane, and what was counted a minute before the picture."""

    def __init__(self, name: str, pid: int) -> None:
        model = SimModel(rss_bytes=5_400_000_000, boot_s=20.0)
        self._name, self._pid = name, pid
        self._sim = Simulation(model=model, limits=b.Limits(running_max=6))
        self._sim.pipeline.wait_ready()
        self._before: dict[str, Any] = {}
        self._inside: list[b.Generation] = []

    def traffic(self, seconds: int, a_second: int = 2) -> None:
        """Chats and jobs of five users, and a client that gives up now and then."""
        for turn in range(seconds * a_second):
            user = USERS[turn % len(USERS)]
            generation = self._sim.pipeline.submit(
                "x" * (60 + turn % 190),
                max_new_tokens=40 + turn % 50,
                owner=user,
                label=f"chat {turn}",
                bounds=b.Bounds(total=11 if user == "bob" else 60),
            )
            if turn % 17 == 5:
                generation.cancel()
            self._inside.append(generation)
            self._sim.advance(1 / a_second)

    def look_back(self) -> None:
        self._before = {name: self._document()["stats"][name] for name in COUNTERS}

    def hang(self, seconds: float) -> None:
        self._sim.inject(Fault(kind="wedge"))
        self._sim.advance(seconds)

    def seen(self) -> Seen:
        return Seen("lane.sock", self._document(), answered_ago_s=0.4, before=self._before, before_s=60.0)

    def close(self) -> None:
        for generation in self._inside:
            generation.cancel()
        self._sim.close()

    def _document(self) -> dict[str, Any]:
        """A simulated engine has no process."""
        document = self._sim.pipeline.stats_document(self._name)
        document["stats"]["engine_pid"] = document["stats"]["engine_pid"] or self._pid
        return document


def lanes() -> list[Seen]:
    well, hangs, lost = Day("gpu-0", 4711), Day("gpu-1", 4712), Day("gpu-2", 4713)
    for day in (well, hangs, lost):
        day.traffic(30)
        day.look_back()
        day.traffic(57)
    hangs.hang(0.1)
    hangs.traffic(6)
    lost.hang(13)
    found = [day.seen() for day in (well, hangs, lost)]
    for day in (well, hangs, lost):
        day.close()
    return found


def picture(seen: list[Seen], selected: int) -> str:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    keys = " q quits   1-9, arrows or tab: another lane"
    lines = frame(seen, Look(width=WIDTH, height=HEIGHT, selected=selected, clock="03:07:12", keys=keys))
    for line in lines:
        console.print(line, no_wrap=True, highlight=False)
    return console.export_svg(title="", code_format=FORMAT, unique_id="top")


def main(file: str = str(Path(__file__).with_name("top.svg"))) -> None:
    logging.getLogger("boundedgen").addHandler(logging.NullHandler())
    Path(file).write_text(picture(lanes(), selected=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
