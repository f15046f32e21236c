"""A server without standard descriptors, as some daemons are: pipes and files of ours get other numbers than theirs."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

import pytest
from process.lanes import script

from boundedgen._descriptors import above_stdio

pytestmark = pytest.mark.timeout(60)

DAEMON = textwrap.dedent(
    """
    import contextlib, os, sys
    told, lock, *closed = sys.argv[1:]
    from process.lanes import engine_pid, kill, simulated_lane, until
    from boundedgen import RestartPolicy
    out = os.open(told, os.O_WRONLY | os.O_CREAT)
    assert out > 2
    for number in closed:
        os.close(int(number))
    with simulated_lane(device_lock=lock, restart=RestartPolicy(wait=lambda _: 0.0)) as lane:
        kill(engine_pid(lane))
        until(lambda: lane.stats().incarnation == 2 and lane.health().ready)
        assert lane.generate([5], max_new_tokens=3, ignore_eos=True).completion_tokens == 3
        for number in map(int, closed):  # what somebody prints goes nowhere
            with contextlib.suppress(OSError):
                os.write(number, b"printed" * 10)
        assert lane.generate([5], max_new_tokens=3, ignore_eos=True).completion_tokens == 3
    os.write(out, b"served")
    """
)


@pytest.mark.parametrize("closed", [(0, 1, 2), (1,)], ids=str)
def test_a_server_that_has_closed_its_standard_descriptors_serves_and_recovers(
    closed: tuple[int, ...], tmp_path: Path
) -> None:
    told, lock = tmp_path / "told", tmp_path / "gpu0.lock"
    with script(DAEMON, told, lock, *closed, stderr=subprocess.PIPE) as daemon:
        assert daemon.stderr is not None
        errors = daemon.stderr.read() if 2 not in closed else ""
        daemon.wait(40)
        assert told.read_text() == "served", errors
    assert "printed" not in lock.read_text()


def test_a_descriptor_is_moved_only_out_of_the_way_of_the_standard_ones() -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    try:
        assert above_stdio(fd) == fd
    finally:
        os.close(fd)
