"""The file of a Unix socket: made for its owner alone, taken over from the dead, never from the living, and removed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from typing import final

from boundedgen import _forks
from boundedgen._arguments import kind_of, plain_str, short
from boundedgen._descriptors import above_stdio

BYTES_MOST = 107  #: of a path: Linux has room for 108, of which one ends it
ALONE = 0.5  #: seconds that it waits for others which make a socket in the same folder
WAITING_MOST = 128  #: connections that wait to be accepted; more are refused by the system
STATS_KIND = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC

Identity = tuple[int, int]


@final
class StatsSocketError(OSError):
    """`serve_stats` cannot open its socket there. The text says why, and what to do; `errno` and `filename` are set.

    ENAMETOOLONG: the path has more than 107 bytes. EEXIST: something else is there. EADDRINUSE: a living process serves
    there. Others are the system's own, such as EACCES and ENOENT.
    """


class Listener:
    """A Unix socket that listens, and all connections that came of it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.connections: set[socket.socket] = set()
        self._identity: Identity | None = None
        with contextlib.ExitStack() as undo:
            self.socket = _made()
            undo.callback(self.socket.close)
            os.fchmod(self.socket.fileno(), 0o600)  # what `bind` makes has these rights at once, less the umask's
            with _alone_in(os.path.dirname(path)):
                self._bind()
                self._identity = _identity(path)
                undo.callback(self.remove)
                self.socket.listen(WAITING_MOST)
            undo.pop_all()
        _forks.watch(self)

    def accept(self) -> socket.socket | None:
        """None: nobody is there any more."""
        try:
            connection, _ = self.socket.accept()
        except (BlockingIOError, ConnectionError):
            return None
        connection.setblocking(False)
        self.connections.add(connection)
        return connection

    def drop(self, connection: socket.socket) -> None:
        self.connections.discard(connection)
        connection.close()

    def close(self) -> None:
        """Whoever is connected is cut off. Idempotent."""
        self.remove()
        self.socket.close()
        for connection in list(self.connections):
            self.drop(connection)

    def remove(self) -> None:
        """The file, unless it is another one by now. Idempotent."""
        identity, self._identity = self._identity, None
        if identity is not None and identity == _identity(self.path):
            with contextlib.suppress(OSError):
                os.unlink(self.path)

    def disown(self, parent: int) -> None:
        """In a fork of the process `parent`: what is open here would keep a dead server's socket alive."""
        self._identity = None
        self.close()

    def _bind(self) -> None:
        try:
            self.socket.bind(self.path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _refusal(error.errno or errno.EINVAL, self.path) from error
            _remove_stale(self.path)
            try:
                self.socket.bind(self.path)
            except OSError as again:
                raise _refusal(again.errno or errno.EINVAL, self.path) from again


def path_of(path: object) -> str:
    """Absolute, so that it can be removed from wherever this process is then. Raises what is wrong with it."""
    given = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(given, str):
        raise TypeError(f"path must be that of a socket, a str or a Path, not {kind_of(path)}")
    given = plain_str(given)
    if not given or "\0" in given:
        raise ValueError(f"path is {short(given)}; give one that a file can have")
    absolute = os.path.abspath(given)
    if len(os.fsencode(absolute)) > BYTES_MOST:
        raise _refusal(errno.ENAMETOOLONG, absolute)
    return absolute


def _made() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, STATS_KIND)
    high = above_stdio(made.fileno())
    if high == made.fileno():
        return made
    made.detach()
    return socket.socket(fileno=high)


@contextlib.contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """While a socket is made there: one that does not listen yet is dead to whoever comes meanwhile, and removed.

    Where the folder cannot be locked, or others hold it for long, it is made all the same.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield
        return
    try:
        until = time.monotonic() + ALONE
        while not _locked(fd) and time.monotonic() < until:
            time.sleep(0.001)
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno != errno.EWOULDBLOCK  # else there are no locks on this file system
    return True


def _identity(path: str) -> Identity | None:
    """Of the file that is there now; None: none is."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _remove_stale(path: str) -> None:
    """The file of a socket that nobody listens on. Raises if it is anything else."""
    before = _identity(path)
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise _refusal(errno.EEXIST, path)
        if (code := _answered(path)) != errno.ECONNREFUSED:
            raise _refusal(code, path)
        if _identity(path) == before:
            os.unlink(path)


def _answered(path: str) -> int:
    """What connecting to it says; that somebody is there is EADDRINUSE."""
    with socket.socket(socket.AF_UNIX, STATS_KIND) as asking:
        code = asking.connect_ex(path)
    return errno.EADDRINUSE if code in (0, errno.EAGAIN, errno.EPROTOTYPE) else code


def _refusal(code: int, path: str) -> StatsSocketError:
    remedies = {
        errno.ENAMETOOLONG: f"a socket's path has at most {BYTES_MOST} bytes, this one has {len(os.fsencode(path))}; "
        "use a shorter one, such as /run/NAME.sock",
        errno.EEXIST: "something that is no socket is there, and is left alone; remove it, or use another path",
        errno.EADDRINUSE: "a living process serves there ('ss -xlp' shows which); give each pipeline a path of its own",
        errno.ENOENT: "its folder does not exist; make it first",
        errno.EACCES: "this user may not make a socket there; use a folder of its own, such as RuntimeDirectory= gives",
    }
    return StatsSocketError(code, remedies.get(code, os.strerror(code)), path)
