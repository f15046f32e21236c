"""The real `top` in a real terminal: keys, lanes that are not there, colours, and how it leaves."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from process.terminal import Terminal

from boundedgen.testing import Simulation

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "top.svg"
ON_GREEN = re.compile(r"\x1b\[(?:\d+;)*42m")


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Where a lane that is well serves."""
    with Simulation() as sim, sim.pipeline.serve_stats(folder / "lane", name="gpu-0") as at:
        yield at.path


def test_several_lanes_and_the_keys_that_choose_one(tmp_path: Path) -> None:
    addresses = [str(tmp_path / name) for name in ("one", "two", "dead")]
    with Simulation() as sim, socket.socket(socket.AF_UNIX) as hanging:
        inside = sim.pipeline.submit("x", max_new_tokens=5, owner="\x1b[2Jevil", label="[bold]שלום")
        sim.advance(0.01)
        sim.pipeline.serve_stats(addresses[0], name="gpu-0")
        sim.pipeline.serve_stats(addresses[1], name="gpu-1")
        hanging.bind(addresses[2])
        hanging.listen()
        with Terminal(tmp_path, *addresses, "--every", "0.2") as terminal:
            screen = terminal.shows("2 of 3 lanes ready", ">1 gpu-0", "silent for", "q quits")
            assert "\\x1b[2Jevil, [bold]\\u05e9" in screen
            assert screen.count("\n") == 24
            terminal.press("2")
            terminal.shows(">2 gpu-1", "READY  gpu-1")
            terminal.press("Down")
            terminal.shows("does not answer for", "no answer within 2 s")
            terminal.press("Tab")
            terminal.shows(">1 gpu-0")
            terminal.press("Up")
            terminal.shows(">3 ")
            terminal.press("q")
            assert "before" in terminal.shows("left with 2", "icanon")
            assert "-icanon" not in terminal.screen()
        inside.cancel()


def test_ctrl_c_gives_the_terminal_back(tmp_path: Path) -> None:
    with served(tmp_path) as path, Terminal(tmp_path, path) as terminal:
        terminal.shows("READY", "nothing is wrong that can be seen from here")
        assert ON_GREEN.search(terminal.screen(escapes=True))
        terminal.press("C-c")
        assert "before" in terminal.shows("left with 0", "icanon")
        assert "Traceback" not in terminal.screen()


def test_without_colour_all_is_said_in_words(tmp_path: Path) -> None:
    with served(tmp_path) as path, Terminal(tmp_path, path, NO_COLOR="1") as terminal:
        terminal.shows("READY", "nothing is wrong")
        assert not ON_GREEN.search(terminal.screen(escapes=True))
        terminal.press("q")
        terminal.shows("left with 0")


def test_a_terminal_that_cannot_move_its_cursor_gets_frame_after_frame(tmp_path: Path) -> None:
    with served(tmp_path) as path, Terminal(tmp_path, path, "--every", "0.1", TERM="dumb") as terminal:
        terminal.resize(80, 60)  # several have room
        terminal.until(lambda screen: screen.count("READY") >= 2, "two frames, one below the other")
        terminal.press("C-c")
        terminal.shows("left with 0")


def test_sigterm_ends_it_in_order(tmp_path: Path) -> None:
    """Without a terminal at all, as in a pipe."""
    with served(tmp_path) as path:
        command = [sys.executable, "-u", "-W", "error", "-m", "boundedgen", "top", path]
        environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment) as watching:
            assert watching.stdout is not None
            try:
                assert b"READY" in watching.stdout.readline() + watching.stdout.readline()
                watching.send_signal(signal.SIGTERM)
                assert watching.wait(10) == 0
            finally:
                watching.kill()


def test_the_picture_in_the_docs_is_what_it_shows(tmp_path: Path) -> None:
    """By its words: how they are drawn is rich's."""
    command = [sys.executable, str(ROOT / "docs" / "top_picture.py"), str(tmp_path / "top.svg")]
    subprocess.run(command, timeout=60, check=True)
    drawn, shown = (re.findall(r">([^<]+)</text>", path.read_text("utf-8")) for path in (tmp_path / "top.svg", PICTURE))
    assert drawn == shown, "draw it anew: python docs/top_picture.py"
    assert any("a&#160;step&#160;hangs" in words for words in shown)
