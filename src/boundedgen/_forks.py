"""A fork of the user's process has none of our threads: what needs them is over there, and does the engine no harm."""

import os
import weakref
from typing import Protocol


class Threaded(Protocol):
    def disown(self, parent: int) -> None:
        """Called in a fork of the process `parent`."""


_watched: "weakref.WeakSet[Threaded]" = weakref.WeakSet()
watch = _watched.add


def _disown_all() -> None:
    parent = os.getppid()
    for threaded in list(_watched):
        threaded.disown(parent)


os.register_at_fork(after_in_child=_disown_all)
