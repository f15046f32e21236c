"""Somebody who follows the generations of a pipeline: hears of each when it is submitted, and beside when it has ended.

The first is in the caller's thread, which has a context of its own; the second in a thread that may take its time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import final

from boundedgen._aside import Aside
from boundedgen._door import Count
from boundedgen._flow import Ending, Flow

logger = logging.getLogger(__name__)

Tell = Callable[[Ending], object]  #: what is to be done once it has ended
Follower = Callable[[Flow], Tell | None]  #: None: nothing is to be done


@final
class Following:
    """One follower of a pipeline. Whatever it does, no generation is slower for it and none fails."""

    def __init__(self, follower: Follower, aside: Aside) -> None:
        self.dropped = Count()  #: ends that it was not told of
        self.aside = aside
        self._follower = follower
        self._awake = False

    def begin(self, flow: Flow) -> None:
        """In the caller's thread, before the driver has it."""
        try:
            tell = self._follower(flow)
        except Exception:
            logger.exception("a follower of generations failed", extra={"event": "follower_failed"})
            return
        if tell is None:
            return
        if not self._awake:  # its thread is started here: the driver would wait until it runs
            self._awake = self.aside.run(bool)
        flow.on_end = partial(self._ended, tell)

    def _ended(self, tell: Tell, ending: Ending) -> None:
        """By the driver's thread, mostly."""
        try:
            taken = self.aside.run(partial(tell, ending))
        except Exception:  # no memory, for one
            taken = False
        if not taken:
            self.dropped.add()

    def close(self) -> None:
        """It hears of nothing new; what is on its way still comes to it."""
        self._follower = _deaf
        self.aside.close()


def _deaf(flow: Flow) -> None:
    """Nothing is to be done."""
