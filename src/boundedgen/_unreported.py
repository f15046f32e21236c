"""Imports of OpenVINO that tell nobody.

`import openvino` sends a report of itself (package openvino_telemetry, unless somebody said no or CI is set): from a
thread, by a fork of this very process. In a server the copy holds all descriptors, listening sockets too, may stand
still at a lock that nobody lets go of in it, and passes over SIGTERM if the server has a handler for that: so it can
outlive the server, with its port. OpenVINO has a stub for where the package is not installed, and here it seems so.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

_REPORTS = "openvino_telemetry"


@contextlib.contextmanager
def unreported() -> Iterator[None]:
    """Around the first import. A process that has imported OpenVINO, or the reports, by itself has its own way."""
    if "openvino" in sys.modules or _REPORTS in sys.modules:
        yield
        return
    sys.modules[_REPORTS] = None  # type: ignore[assignment]  # what Python takes for "there is none"
    try:
        yield
    finally:
        sys.modules.pop(_REPORTS, None)
