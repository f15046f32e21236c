"""A script through the seam that the driver uses: `GenAIHost` and its link, a process and its pipes, step by step."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from conformance.gated_child import MODULE
from conformance.scripts import Admit, Command, Script
from conformance.traces import Loads, Trace, record

from boundedgen._bounds import Limits
from boundedgen._core._events import EngineFacts, Exited, Progress, Ready, Report
from boundedgen._engine._host import GenAIHost
from boundedgen.abc import EngineLink, Request, Tokenizer

_PATIENCE_S = 60.0


def _no_tokenizer() -> Tokenizer:
    raise AssertionError("an engine needs no tokenizer of its parent")


class WholeChild:
    """One real engine process. Times are real here, and not to be compared."""

    def __init__(self, link: EngineLink, gate: int) -> None:
        self._link, self._gate = link, gate
        self._loads, self._trace = Loads(), Trace()
        self._at_rest = True
        self._opened = 0

    def ready(self) -> EngineFacts:
        while True:
            for report in self._heard():
                if isinstance(report, Ready):
                    return report.facts
                assert not isinstance(report, Exited), report

    def run(self, script: Script) -> Trace:
        """Until it is at rest. An instant of the script is a number of steps here."""
        instant = 0
        while instant <= script.last or not self._at_rest:
            commands = script.at(instant)
            if self._at_rest:
                with self._asleep():
                    self._send(commands)
            else:
                self._send(commands)
                self._let_it_step()
            if commands or not self._at_rest:
                self._until_it_steps_or_rests()
            instant += 1
        return self._trace

    def _send(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Admit):
                ids, fields = command.ids(), command.fields()
                self._link.admit(Request(command.stay, ids, fields, command.deadline, claim=command.claim))
                self._at_rest = False
            else:
                self._link.stop(command.stay)
        self._link.flush()
        assert self._link.fileno_to_write() is None, "the pipe takes a round's commands at once"

    @contextlib.contextmanager
    def _asleep(self) -> Iterator[None]:
        """It finds all that is sent in here in one round, although nothing but commands keeps it waiting."""
        assert self._link.pid is not None
        os.kill(self._link.pid, signal.SIGSTOP)
        while psutil.Process(self._link.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)
        yield
        os.kill(self._link.pid, signal.SIGCONT)

    def _let_it_step(self) -> None:
        """The step that waits at the gate; what was sent before is taken after it."""
        assert self._link.pulse().in_step
        os.write(self._gate, b".")
        self._opened += 1

    def _until_it_steps_or_rests(self) -> None:
        """It has said what its last step brought, and waits at the gate or for commands."""
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            for report in self._heard():
                assert isinstance(report, Progress), report
                self._trace.append(record(report, self._loads.of(report)))
                self._at_rest = report.held == () and not report.released
            pulse = self._link.pulse()
            self._loads.see(pulse)
            told = self._trace[-1]["steps"] if self._trace else 0
            if told == self._opened and (pulse.steps_begun > self._opened or self._at_rest):
                return
        raise AssertionError(f"neither a step nor rest; last: {self._trace[-2:]}, {self._link.pulse()}")

    def _heard(self) -> list[Report]:
        select.select(self._link.filenos(), [], [], 0.001)
        self._link.flush()
        return self._link.receive()


@contextlib.contextmanager
def whole_child(spec: Mapping[str, Any]) -> Iterator[WholeChild]:
    """Of the same spec as a laboratory's engine. Nothing of it is left behind."""
    with tempfile.TemporaryDirectory() as folder:
        gate = Path(folder, "gate")
        os.mkfifo(gate)
        hole = os.open(gate, os.O_RDWR)
        link = _host(spec, gate).spawn(1)
        try:
            yield WholeChild(link, hole)
        finally:
            link.kill()
            until = time.monotonic() + 10.0
            while time.monotonic() < until and not any(isinstance(said, Exited) for said in link.receive()):
                select.select(link.filenos(), [], [], 0.05)
            link.dispose()
            os.close(hole)


def _host(spec: Mapping[str, Any], gate: Path) -> GenAIHost:
    return GenAIHost(
        spec["models_path"],
        spec["scheduler"],
        spec["device"],
        spec["properties"],
        tokenizer_properties={},
        limits=Limits(),
        tokenizer=_no_tokenizer,
        module=MODULE,
        fault={"gate": str(gate)},
    )
