"""A real terminal: tmux, of which a test types into and sees one pane."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import final

import pytest

COLUMNS, LINES = 80, 24
PATIENCE_S = 20.0


@final
class Terminal:
    """Runs `python -m boundedgen top ARGUMENTS`; what is on the screen when it has left says how it left."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        if shutil.which("tmux") is None:
            pytest.skip("tmux is not installed: apt-get install tmux")
        self._socket = str(folder / "tmux")
        given = {"LC_ALL": "C.UTF-8", **environment}
        words = " ".join(f"'{word}'" for word in (sys.executable, "-W", "error", "-m", "boundedgen", "top", *arguments))
        settings = " ".join(f"{name}='{value}'" for name, value in given.items())
        after = "echo \"left with $?\"; stty -a | grep -o -- '-*icanon'; sleep 100"
        script = f"trap : INT; echo before; env {settings} {words}; {after}"
        # Whatever terminal the tests run in themselves is not to be seen by it.
        own = {
            name: value for name, value in os.environ.items() if name not in ("TMUX", "NO_COLOR", "COLUMNS", "LINES")
        }
        size = ("-x", str(COLUMNS), "-y", str(LINES))
        self._tmux("new-session", "-d", *size, "sh", "-c", script, environment={**own, "LC_ALL": "C.UTF-8"})

    def screen(self, *, escapes: bool = False) -> str:
        return self._tmux("capture-pane", "-p", *(("-e",) if escapes else ()))

    def shows(self, *expected: str) -> str:
        """The screen, once it has all of that."""
        return self.until(lambda screen: all(words in screen for words in expected), " and ".join(expected))

    def until(self, done: Callable[[str], bool], what: str) -> str:
        end = time.monotonic() + PATIENCE_S
        while not done(screen := self.screen()):
            assert time.monotonic() < end, f"the screen has no {what}:\n{screen}"
            time.sleep(0.02)
        return screen

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def close(self) -> None:
        self._tmux("kill-server")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _tmux(self, *words: str, environment: dict[str, str] | None = None) -> str:
        command = ["tmux", "-u", "-S", self._socket, "-f", "/dev/null", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", timeout=20, env=environment, check=True
        )
        return done.stdout
