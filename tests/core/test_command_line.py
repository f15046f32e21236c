"""`python -m boundedgen`, whoever reads it or interrupts it."""

import subprocess
import sys
from types import ModuleType

import pytest

from boundedgen import __main__ as command_line
from boundedgen._top import _command

SHOW = "import sys; from boundedgen._output import show; show('x' * 200_000); sys.exit(7)"


def test_whoever_has_read_enough_gets_the_exit_status_and_no_traceback() -> None:
    """`doctor MODEL | head -1`, in a script with pipefail."""
    shown = subprocess.Popen([sys.executable, "-c", SHOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert shown.stdout is not None
    assert shown.stderr is not None
    shown.stdout.close()
    with shown.stderr as said:
        assert (said.read(), shown.wait(30.0)) == (b"", 7)


def test_where_nobody_reads_the_exit_status_is_all() -> None:
    """`doctor MODEL >&-`."""
    without = ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, SHOW]
    ended = subprocess.run(without, stderr=subprocess.PIPE, timeout=30.0)
    assert (ended.stderr, ended.returncode) == (b"", 7)


@pytest.mark.parametrize(
    ("arguments", "module", "name"),
    [
        (["incident", "x"], command_line, "incident"),
        (["doctor"], command_line, "doctor"),
        (["top", "x", "--once"], _command, "top"),
    ],
)
def test_whatever_is_interrupted_says_so_by_its_status(
    arguments: list[str], module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, name, interrupted)
    assert command_line.main(arguments) == 130
