"""The pytest plugin of boundedgen; a module of its own, so that test runs that do not use it import nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from boundedgen.testing import Simulation

MARK = "bounded_simulation(**arguments): the arguments of boundedgen.testing.Simulation for the fixture of that name"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)


@pytest.fixture
def bounded_simulation(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    """A `boundedgen.testing.Simulation` that is ready, and closed afterwards.

    Its arguments come from `@pytest.mark.bounded_simulation(…)`; marks nearer to the test go over the others.
    """
    from boundedgen.testing import Simulation

    marks = reversed(list(request.node.iter_markers("bounded_simulation")))
    arguments = {name: value for mark in marks for name, value in mark.kwargs.items()}
    with Simulation(**arguments) as simulation:
        yield simulation
