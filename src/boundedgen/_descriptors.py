"""Descriptors with numbers that nobody takes for standard input, output or error."""

import contextlib
import fcntl
import os


def above_stdio(fd: int) -> int:
    """`fd`, or a duplicate in its stead if it is 0, 1 or 2, as where a daemon has closed those.

    A child has its own there; and what anybody of this process prints would go into a pipe or a file of ours.
    """
    if fd > 2:
        return fd
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, fd)
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
