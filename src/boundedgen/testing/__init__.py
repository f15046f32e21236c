"""What happens to your server when an engine hangs: tests without a model, a child process or real time.

`Simulation` is a real `BoundedPipeline` over a simulated engine that misbehaves on request, in simulated time.
`strategies` are for Hypothesis, `BoundedMachine` is a state machine to build on; both want `boundedgen[testing]`.
Pytest finds the fixture `bounded_simulation` by itself.
"""

from typing import TYPE_CHECKING

from boundedgen.testing._clock import VirtualClock
from boundedgen.testing._faults import Fault, FaultKind
from boundedgen.testing._sim import SimEngine
from boundedgen.testing._sim_host import SimHost, SimTokenizer
from boundedgen.testing._sim_model import SimModel
from boundedgen.testing._simulation import Simulation
from boundedgen.testing._stalled import SimulationStalled

if TYPE_CHECKING:
    from boundedgen.testing import strategies
    from boundedgen.testing._machine import BoundedMachine

__all__ = [
    "BoundedMachine",
    "Fault",
    "FaultKind",
    "SimEngine",
    "SimHost",
    "SimModel",
    "SimTokenizer",
    "Simulation",
    "SimulationStalled",
    "VirtualClock",
    "strategies",
]


if not TYPE_CHECKING:  # mypy would believe that there is every name

    def __getattr__(name):
        """What wants Hypothesis is imported when it is asked for."""
        import importlib

        if name == "strategies":
            return importlib.import_module("boundedgen.testing.strategies")
        if name == "BoundedMachine":
            return importlib.import_module("boundedgen.testing._machine").BoundedMachine
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
