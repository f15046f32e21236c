"""An optional lock file for a device: who starts there sees an engine that lost its server, or that of another server.

flock(2) belongs to an open file, not to a process. The engine inherits it, and so the device stays locked for as long
as that process exists, be it stuck in the kernel where nothing can kill it, with its server long gone. The file is
never deleted: one process could hold the lock of the deleted file, and the next one that of its successor. What is
written in it is a hint for whoever is refused, and is believed of processes only that are there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from attrs import frozen

from boundedgen import _forks
from boundedgen._arguments import kind_of, plain_str, reading, short
from boundedgen._descriptors import above_stdio
from boundedgen._errors import DeviceUnavailable

if TYPE_CHECKING:
    from boundedgen._driver import Driver
    from boundedgen.abc import EngineHost

_TEXT_MOST = 4096


@final
class DeviceLock:
    """Held from here until `close`, and longer by every process that inherited it."""

    _fd = -1

    def __init__(self, path: str) -> None:
        """Raises DeviceUnavailable if somebody holds it, ValueError if it cannot be had at all. Waits for nobody."""
        self._fd = _open(path)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(self._fd, _TEXT_MOST, 0)
            self.close()
            raise DeviceUnavailable(f"device_lock {path} is held {_holder(text, path)}") from None
        except OSError as error:
            self.close()
            raise ValueError(f"device_lock is {short(path)}, which cannot be locked: {error.strerror}") from error
        _forks.watch(self)
        _write(self._fd, {"server": _identity(os.getpid())})

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        """Close only: to unlock would unlock it for the engine too."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close

    def disown(self, parent: int) -> None:
        """A fork of the user's process is not to keep the device."""
        self.close()


def lock_of(device_lock: object) -> DeviceLock | None:
    """None: there is to be none. TypeError and ValueError name `device_lock`."""
    if device_lock is None:
        return None
    if not isinstance(device_lock, str | os.PathLike):
        raise TypeError(f"device_lock must be the path of a file, not {kind_of(device_lock)}")
    with reading("device_lock", TypeError):
        path = os.fspath(device_lock)
    if not isinstance(path, str) or not (plain := plain_str(path)) or "\0" in plain:
        raise ValueError(f"device_lock is {short(path)}; give the path of a file, as a str")
    return DeviceLock(os.path.abspath(plain))


def entrust(lock: DeviceLock | None, host: EngineHost, driver: Driver) -> None:
    """Before the driver is started: every engine inherits the lock, and it is let go of when the last one is gone.

    An engine of the user's own inherits nothing; then this process alone holds it.
    """
    if lock is not None:
        from boundedgen._engine._host import GenAIHost

        if isinstance(host, GenAIHost):
            host.lock = lock.fileno()
        driver.at_the_end.append(lock.close)


def inherit(fd: int | None) -> None:
    """In the engine: hold it, alone of all that this process may start, and say so."""
    if fd is not None:
        os.set_inheritable(fd, False)
        _write(fd, {"server": _identity(os.getppid()), "engine": _identity(os.getpid())})


def _open(path: str) -> int:
    try:
        if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError(
                f"device_lock is {short(path)}, which is no plain file; give one of its own to each device"
            )
        return above_stdio(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
    except OSError as error:
        raise ValueError(f"device_lock is {short(path)}, which cannot be opened: {error.strerror}") from error
    except UnicodeError:
        raise ValueError(f"device_lock is {short(path)}, which no file can be called") from None


# --- who holds it ----------------------------------------------------------------------------------------------------


def _identity(pid: int) -> dict[str, int]:
    return {"pid": pid, "started": _started(pid) or 0}


def _started(pid: int) -> int | None:
    """When it began, in ticks since boot, which tells a process from a later one of the same pid. None: it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _write(fd: int, holders: dict[str, dict[str, int]]) -> None:
    line = (json.dumps(holders) + "\n").encode()
    with contextlib.suppress(OSError):  # the lock is held, whatever is written
        os.pwrite(fd, line, 0)
        os.ftruncate(fd, len(line))


@final
@frozen
class Holder:
    """Of a lock: the processes that wrote themselves down and are there, and in words what to do about them."""

    path: str
    server: int | None = None
    engine: int | None = None

    @property
    def runs(self) -> bool:
        """A lane with its server, as far as is known. Else what holds the lock is left over, or unknown."""
        return self.server is not None

    @property
    def who(self) -> str:
        match self.server, self.engine:
            case None, None:
                return "by an unknown process"
            case None, engine:
                return f"by engine process {engine}, whose server is gone"
            case server, _ if server == os.getpid():
                return "by another pipeline of this process"
            case server, None:
                return f"by server process {server}"
        return f"by server process {self.server} and its engine, process {self.engine}"

    @property
    def remedy(self) -> str:
        if self.server == os.getpid():
            return (
                "close that one first, or give each device a lock of its own; if it is closed, its engine "
                f"(process {self.engine or 'unknown'}) has not left"
            )
        if self.server is not None:
            return "stop that server, or use another device"
        if self.engine is not None:
            return (
                f"end it (kill -9 {self.engine}); if it does not leave, it is stuck in the device's driver: reset the "
                "device, or reboot"
            )
        return f"find it with 'fuser -v {self.path}' or 'lsof {self.path}', also outside of this container"

    def __str__(self) -> str:
        return f"{self.who}: {self.remedy}"


def holder_of(path: str) -> Holder | None:
    """Who holds the lock `path` now; None: nobody. Takes a shared one for an instant, and makes no file.

    Raises OSError where that cannot be looked at.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(os.pread(fd, _TEXT_MOST, 0), path)
    finally:
        os.close(fd)
    return None


def _holder(text: bytes, path: str) -> Holder:
    return Holder(path, _there(text, "server"), _there(text, "engine"))


def _there(text: bytes, role: str) -> int | None:
    """The pid that the text names for `role`; None: it names none, or one that is gone."""
    try:
        holder: dict[str, Any] = json.loads(text)[role]
        pid, started = int(holder["pid"]), int(holder["started"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return pid if pid > 0 and _started(pid) == started else None
