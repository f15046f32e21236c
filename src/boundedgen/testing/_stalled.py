"""The error of a simulation that cannot go on."""

from typing import final

__all__ = ["SimulationStalled"]


@final
class SimulationStalled(RuntimeError):
    """Somebody waits in a simulation for what will never happen, however long it goes on; it says where all stands."""
