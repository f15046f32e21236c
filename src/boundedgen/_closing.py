"""How a pipeline is closed: the driver first, then what serves its callers, and what shows it last."""

from __future__ import annotations

import contextlib
from datetime import timedelta

from boundedgen._driver import Driver
from boundedgen._making import CLOSING_SLACK, drain_seconds
from boundedgen._runtime import Runtime
from boundedgen._serving import Serving
from boundedgen._stats_socket import StatsSockets


class Closing:
    """What `BoundedPipeline.close` tells of."""

    def __init__(self, driver: Driver, serving: Serving, shown: StatsSockets, runtime: Runtime, reap: float) -> None:
        self._driver = driver
        self._serving = serving
        self._shown = shown
        self._runtime = runtime
        self._reap = reap

    def close(self, drain: float | timedelta) -> None:
        patience = self._begin(drain)
        if self._driver.foreign:
            return
        try:
            self._driver.join(patience)
        except BaseException:  # Ctrl-C, or what another signal's handler raised
            self._begin(0)
            raise
        finally:
            self._shown.close()  # a drain can be watched
        self._serving.close()

    async def aclose(self, drain: float | timedelta) -> None:
        patience = self._begin(drain)
        try:
            await self._driver.ended(patience)
        finally:
            await self._runtime.offload(self.close, 0)

    def abandon(self) -> None:
        """By whoever collects garbage: waits for nothing."""
        self._shown.hang_up()
        if not self._driver.over:
            with contextlib.suppress(Exception):
                self._driver.post("close", 0)
                self._serving.close()

    def _begin(self, drain: float | timedelta) -> float:
        """Seconds within which the driver has ended."""
        drain_s = drain_seconds(drain)
        if not self._driver.over:
            self._driver.post("close", drain_s)
        return drain_s + self._reap + CLOSING_SLACK
