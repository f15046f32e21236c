"""The file of a stats socket, and others who make one in the same folder at the same time."""

import contextlib
import errno
import fcntl
import os
import socket
import threading
from pathlib import Path

import pytest

from boundedgen import _stats_listener
from boundedgen._stats_listener import Listener


def test_of_two_that_open_it_at_once_one_serves_and_the_other_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers of a server: one that is bound and does not listen yet looks dead to the other."""
    path = tmp_path / "lane.sock"
    found, ended = _stats_listener._identity, list[Listener | BaseException]()

    def second() -> None:
        try:
            ended.append(Listener(str(path)))
        except OSError as error:
            ended.append(error)

    other = threading.Thread(target=second)

    def meanwhile(where: str) -> tuple[int, int] | None:
        monkeypatch.setattr(_stats_listener, "_identity", found)
        other.start()
        other.join(0.1)
        return found(where)

    monkeypatch.setattr(_stats_listener, "_identity", meanwhile)
    with contextlib.closing(Listener(str(path))):
        other.join(10.0)
        assert [getattr(one, "errno", one) for one in ended] == [errno.EADDRINUSE]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_a_folder_that_somebody_else_keeps_locked_is_served_in_all_the_same(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        Listener(str(tmp_path / "lane.sock")).close()
    finally:
        os.close(fd)
