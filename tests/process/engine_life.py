"""A real engine process in a test: spawn it, wait for what it reports, and leave nothing of it behind."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from boundedgen._bounds import Limits
from boundedgen._core._events import BootFailed, EngineFacts, Exited, Finish, Progress, Ready, Report
from boundedgen._engine._host import ChildLink, GenAIHost
from boundedgen.abc import Request, Tokenizer
from boundedgen.testing._faulty_child import MODULE

MODELS = Path(__file__).parents[1] / "models"
F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
PATIENCE_S = 30.0

R = TypeVar("R", bound=Report)


def _no_tokenizer() -> Tokenizer:
    raise AssertionError("an engine process needs no tokenizer of the parent")


def simulated(fault: Mapping[str, Any] | None = None, limits: Limits | None = None, **scheduler: Any) -> GenAIHost:
    """No model: ready as soon as Python is."""
    return GenAIHost(
        None,
        {"num_kv_blocks": 4096, "max_num_seqs": 16, **scheduler},
        "CPU",
        {},
        tokenizer_properties={},
        limits=limits or Limits(),
        tokenizer=_no_tokenizer,
        module=MODULE,
        fault=fault,
    )


def real(
    model: str = "plain", *, device: str = "CPU", fault: Mapping[str, Any] | None = None, **scheduler: Any
) -> GenAIHost:
    """One of the test models, in f32."""
    settings = scheduler if "cache_size" in scheduler else {"num_kv_blocks": 64, **scheduler}
    return GenAIHost(
        str(MODELS / model),
        settings,
        device,
        F32,
        tokenizer_properties={},
        limits=Limits(),
        tokenizer=_no_tokenizer,
        module="boundedgen._engine" if fault is None else MODULE,
        fault=fault,
    )


class Life:
    """One incarnation. `reports` is all that it ever said."""

    def __init__(self, link: ChildLink) -> None:
        self.link = link
        self.reports: list[Report] = []
        self._stays = 0

    @property
    def pid(self) -> int:
        assert self.link.pid is not None
        return self.link.pid

    @property
    def facts(self) -> EngineFacts:
        return self.all(Ready)[0].facts

    def all(self, kind: type[R]) -> list[R]:
        return [report for report in self.reports if isinstance(report, kind)]

    def admit(self, prompt: list[int], *, deadline_in: float = 600.0, stay: int | None = None, **config: Any) -> int:
        self._stays += 1
        number = self._stays if stay is None else stay
        fields = {"max_new_tokens": 8, "ignore_eos": True, "rng_seed": 1, **config}
        self.link.admit(Request(number, prompt, fields, time.monotonic() + deadline_in))
        self.link.flush()
        return number

    def turn(self, timeout: float = 0.05) -> list[Report]:
        """What the driver does: wait for the descriptors, write what can be written, take what came."""
        writable = self.link.fileno_to_write()
        select.select(self.link.filenos(), [] if writable is None else [writable], [], timeout)
        self.link.flush()
        fresh = self.link.receive()
        self.reports += fresh
        return fresh

    def until(self, done: Callable[[Report], bool], timeout: float = PATIENCE_S) -> Report:
        """The first fresh report for which `done`. The engine's end, or silence, is a failure of the test."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            fresh = self.turn()
            for report in fresh:
                if done(report):
                    return report
            assert not any(isinstance(report, Exited) for report in fresh), fresh
        raise AssertionError(f"nothing of the kind in {timeout} s; last: {self.reports[-3:]}")

    def ready(self) -> EngineFacts:
        report = self.until(lambda report: isinstance(report, Ready | BootFailed))
        assert isinstance(report, Ready), report
        return report.facts

    def released(self, *stays: int) -> None:
        end = time.monotonic() + PATIENCE_S
        while set(stays) - self.releases().keys():
            assert time.monotonic() < end, self.reports[-3:]
            assert not any(isinstance(report, Exited) for report in self.turn()), self.reports[-3:]

    def at_rest(self) -> Progress:
        """The last word of an engine that has nothing inside and says nothing more."""
        end = time.monotonic() + PATIENCE_S
        while self.turn(0.1) or not self.all(Progress) or self.all(Progress)[-1].held != ():
            assert time.monotonic() < end, self.reports[-3:]
        return self.all(Progress)[-1]

    def exited(self, timeout: float = 5.0) -> Exited:
        report = self.until(lambda report: isinstance(report, Exited), timeout)
        assert isinstance(report, Exited)
        return report

    def tokens(self, stay: int) -> tuple[int, ...]:
        outputs = (o for report in self.all(Progress) for o in report.all_outputs if o.stay == stay)
        return tuple(token for output in outputs for token in output.token_ids)

    def finish(self, stay: int) -> Finish | None:
        found = [f for report in self.all(Progress) for f in report.finished if f.stay == stay]
        assert len(found) <= 1
        return found[0] if found else None

    def releases(self) -> dict[int, Any]:
        return {release.stay: release for report in self.all(Progress) for release in report.released}

    def close(self) -> None:
        self.link.kill()
        end = time.monotonic() + 5.0
        while time.monotonic() < end and not self.all(Exited):
            self.turn()
        self.link.dispose()


@contextlib.contextmanager
def alive(host: GenAIHost, incarnation: int = 1, *, ready: bool = True) -> Iterator[Life]:
    life = Life(host.spawn(incarnation))
    try:
        if ready:
            life.ready()
        yield life
    finally:
        life.close()


def gone(pid: int, timeout: float) -> bool:
    """The process, zombie or not, has left within `timeout`."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False
