"""The doctor's round: the machine first, then the model, as far as there is a point in going on."""

from __future__ import annotations

from collections.abc import Callable

from boundedgen._bounds import Limits
from boundedgen._doctor._advice import advice
from boundedgen._doctor._asked import Asked
from boundedgen._doctor._finding import Finding, Level, found
from boundedgen._doctor._machine import Machine, machine_of
from boundedgen._doctor._machine_checks import CHECKS, Case, may_load
from boundedgen._doctor._model_checks import AFTER, BEFORE, Tried
from boundedgen._doctor._page import Report
from boundedgen._doctor._trial import Trial, host_of, tried
from boundedgen._grammar import GrammarChecker
from boundedgen.abc import EngineHost

_IN_VAIN = (
    "versions",
    "kernel",
    "device",
    "cache",
    "model",
    "adapters",
)  #: checks with a problem of which nothing can be loaded
_GRAMMAR, _GRAMMAR_S = ("regex", "[ab]"), 30.0  # a small one: how fast it is, is not the question


def examination(
    asked: Asked,
    *,
    machine: Machine | None = None,
    host: EngineHost | None = None,
    grammar: Callable[[Asked], str | None] | None = None,
    tell: Callable[[str], object] = bool,
) -> Report:
    """All that can be found out. `machine`, `host`, `grammar`: instead of the real ones. `tell`: of what takes long."""
    tell("looking at the machine and its devices")
    case = Case(asked, machine or machine_of(asked))
    of_machine = tuple(found(CHECKS, case))
    if asked.model is None:
        return Report(asked=asked, machine=of_machine)
    before = tuple(found(BEFORE, case))
    hopeless = any(one.level is Level.PROBLEM and one.check in _IN_VAIN for one in of_machine + before)
    if hopeless:
        before += (Finding(Level.NOTE, "not tried, because of the problems above", check="load"),)
    if hopeless or not may_load(case):
        return Report(asked=asked, machine=of_machine, model=before)
    tell(f"loading the model, at most {asked.boot_s:g} s, then measuring for some seconds")
    trial = _trial(case, host or host_of(asked))
    words = (grammar or compiled)(asked) if trial.load_s is not None else None
    after = tuple(found(AFTER, Tried(asked, case.machine, trial, words)))
    return Report(asked=asked, machine=of_machine, model=before + after, trial=trial, recommended=advice(asked, trial))


def _trial(case: Case, host: EngineHost) -> Trial:
    """The lock of the device is held meanwhile, unless somebody else has it and the doctor was told to go on."""
    free = case.machine.holder is None and not case.machine.lock_failed
    return tried(case.asked, host, lock=case.asked.device_lock if free else None)


def compiled(asked: Asked) -> str | None:
    """Why a small grammar does not compile with the model's tokenizer; None: it does."""
    assert asked.model is not None
    checker = GrammarChecker(asked.model, {}, Limits(boot=asked.boot_s, grammar_s=_GRAMMAR_S))
    try:
        return checker.check(*_GRAMMAR)
    finally:
        checker.close()
