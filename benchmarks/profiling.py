"""Which functions of a process take its time: samples of py-spy, where it is installed, from outside."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Self, final

from figures import Figure

PART = "profile"
RATE = 500  #: samples a second
SHOWN = 14  #: functions


@final
class Profile:
    """Of the process `pid` while the block runs, which takes `seconds` at least."""

    def __init__(self, pid: int, seconds: float) -> None:
        self._pid, self._seconds = pid, seconds
        self._spy: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        self._file = Path(self._folder.name, "samples")
        if (spy := shutil.which("py-spy")) is not None:
            command = [spy, "record", "--nonblocking", "-f", "raw", "-r", str(RATE), "-o", str(self._file)]
            command += ["-d", str(max(1, round(self._seconds))), "-p", str(self._pid)]
            self._spy = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._spy is not None:
            self._spy.wait(60)
        self._stacks = self._file.read_text().splitlines() if self._file.exists() else []
        self._folder.cleanup()

    def figures(self, what: str, count: int) -> list[Figure]:
        """Microseconds of each of `count`, by function, without those that it calls. Empty: py-spy is not there."""
        own: Counter[str] = Counter()
        for line in self._stacks:
            stack, samples = line.rsplit(" ", 1)
            own[_function(stack.rsplit(";", 1)[-1])] += int(samples)
        each = 1e6 / RATE / max(1, count)
        return [
            Figure(PART, f"{what}: {name}", samples * each, "us", note=f"{samples / own.total():.0%} of its samples")
            for name, samples in own.most_common(SHOWN)
        ]


def _function(frame: str) -> str:
    """`name (file)` of `name (file:line)`."""
    return frame.rsplit(":", 1)[0] + ")" if ":" in frame else frame
