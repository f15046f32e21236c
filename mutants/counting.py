"""A pytest plugin for runs against a mutant: whose code is tested, no shrinking, and how many runs of the machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

PHASES = (Phase.explicit, Phase.generate)  # that it fails is enough; the smallest failure is not needed

_begun = [0]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuses to test anything but the copy that stands first on PYTHONPATH."""
    import boundedgen

    wanted = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])
    if wanted not in Path(boundedgen.__file__).parents:
        pytest.exit(f"boundedgen comes from {boundedgen.__file__}, not from {wanted}", returncode=3)
    settings.register_profile("mutants", settings.get_profile("boundedgen"), phases=PHASES)
    settings.load_profile("mutants")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases: set[Any] = {getattr(item, "cls", None) for item in items}
    for case in cases:
        machine = getattr(getattr(case, "runTest", None), "_hypothesis_state_machine_class", None)
        if machine is not None:
            case.settings = settings(case.settings, phases=PHASES)
            _count(machine)


def _count(machine: Any) -> None:
    begin = machine.__init__

    def counted(self: Any, *arguments: Any) -> None:
        _begun[0] += 1
        begin(self, *arguments)

    machine.__init__ = counted


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """The failing run of a machine is made twice: once to find it, once to show it."""
    if _begun[0]:
        terminalreporter.write_line(f"examples: {_begun[0] - (exitstatus != 0)}")
