"""The real clock."""

import time
from typing import final


@final
class MonotonicClock:
    """`time.monotonic()`: never set back; stands still while the machine is suspended, and so do deadlines."""

    now = staticmethod(time.monotonic)
