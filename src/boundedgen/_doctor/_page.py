"""What was found, as a page of 80 columns, as JSON, and as Python to be pasted."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, final

from attrs import asdict, frozen

from boundedgen import __version__
from boundedgen._doctor._advice import Choice, Recommendation
from boundedgen._doctor._asked import Asked
from boundedgen._doctor._finding import Finding, Level
from boundedgen._doctor._trial import Trial, how_many, longest
from boundedgen._making import without_secrets

SCHEMA: Final = 1  #: of the JSON; another number if a name goes, or means something else
WIDTH: Final = 80
USABLE, PROBLEM = 0, 1  #: exit statuses; the doctor called wrongly is 2
_SIGNS: Final = {Level.OK: "ok", Level.NOTE: "note", Level.WARNING: "WARNING", Level.PROBLEM: "PROBLEM"}
_LEVEL, _CHECK = 9, 12  # columns


@final
@frozen(kw_only=True)
class Report:
    """All of an examination. `model` and what follows: empty and None where no model was asked for, or loaded."""

    asked: Asked
    machine: tuple[Finding, ...]
    model: tuple[Finding, ...] = ()
    trial: Trial | None = None
    recommended: Recommendation | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.machine + self.model

    @property
    def status(self) -> int:
        """Warnings do not count: it can be used."""
        return PROBLEM if any(one.level is Level.PROBLEM for one in self.findings) else USABLE


# --- for people ------------------------------------------------------------------------------------------------------


def page(report: Report) -> str:
    parts = [_head(report.asked), _part("This machine", report.machine)]
    if report.asked.model is not None:
        parts.append(_part("The model", report.model))
    if report.recommended is not None:
        parts.append(f"Recommended\n\n{textwrap.indent(as_python(report.asked, report.recommended), '    ')}")
    return "\n".join([*parts, f"{_verdict(report)}\n"])


def _head(asked: Asked) -> str:
    what = f"device {asked.device}" if asked.model is None else f"{asked.model} on {asked.device}"
    return _wrapped(f"boundedgen {__version__} doctor: ", what) + "\n"


def _part(title: str, findings: tuple[Finding, ...]) -> str:
    return "\n".join([title, *map(_row, findings)]) + "\n"


def _row(finding: Finding) -> str:
    seen = _wrapped(f"  {_SIGNS[finding.level]:{_LEVEL}}{finding.check:{_CHECK}}", finding.seen)
    return f"{seen}\n{_wrapped(' ' * (_LEVEL + _CHECK) + '→ ', finding.do)}" if finding.do else seen


def _wrapped(head: str, text: str) -> str:
    """Words stay whole: paths and commands can be copied."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _verdict(report: Report) -> str:
    counts = {level: sum(one.level is level for one in report.findings) for level in (Level.PROBLEM, Level.WARNING)}
    told = ", ".join(f"{number} {level}{'s' * (number != 1)}" for level, number in counts.items() if number)
    if report.status != USABLE:
        return f"Not usable: {told}."
    tried = report.asked.model is None or report.trial is not None
    return f"{'Usable' if tried else 'Not tried'}: {told or 'all is well'}."


# --- as Python -------------------------------------------------------------------------------------------------------


def as_python(asked: Asked, given: Recommendation) -> str:
    """To be pasted. Of properties that look like secrets the value is left out."""
    lines = [
        "import boundedgen as b",
        "",
        "pipeline = b.BoundedPipeline(",
        f"    {_quoted(asked.model)},",
        "    {",
        *_entries(given.scheduler, lambda name: f'"{name}": '),
        "    },",
        f"    {_quoted(asked.device)},",
        *_properties(asked),
        *([f"    adapters={dict(asked.adapters)!r},"] if asked.adapters else []),
        "    limits=b.Limits(",
        *_entries(given.limits, lambda name: f"{name}="),
        "    ),",
        *([f"    device_lock={_quoted(asked.device_lock)},"] if asked.device_lock else []),
        ")",
    ]
    return "\n".join(lines) + "\n"


def _properties(asked: Asked) -> Iterator[str]:
    if properties := without_secrets(asked.properties):
        yield "    {"
        yield from (f"        {_quoted(name)}: {value!r}," for name, value in properties.items())
        yield "    },"


def _quoted(text: str | None) -> str:
    return json.dumps(text, ensure_ascii=False)


def _entries(choices: Mapping[str, Choice], key: Callable[[str], str]) -> Iterator[str]:
    """Each below its reason."""
    for name, choice in choices.items():
        yield from textwrap.wrap(
            choice.why, WIDTH - 14, initial_indent=" " * 8 + "# ", subsequent_indent=" " * 8 + "# "
        )
        yield f"        {key(name)}{_plain(choice.value)!r},"


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# --- for scripts -----------------------------------------------------------------------------------------------------


def as_json(report: Report) -> dict[str, Any]:
    """Plain data; docs/doctor.md says what each name means."""
    return {
        "schema": SCHEMA,
        "boundedgen": __version__,
        "model": report.asked.model,
        "device": report.asked.device,
        "status": report.status,
        "findings": [_finding(one) for one in report.findings],
        "measured": None if report.trial is None else _measured(report.asked, report.trial),
        "recommended": None if report.recommended is None else _recommended(report.asked, report.recommended),
    }


def _finding(one: Finding) -> dict[str, str]:
    return {"check": one.check, "level": one.level.value, "seen": one.seen, "do": one.do}


def _measured(asked: Asked, trial: Trial) -> dict[str, Any] | None:
    """None: the engine did not become ready."""
    facts, capacity = trial.facts, trial.capacity
    if facts is None or capacity is None:
        return None
    seconds = [step.seconds for step in trial.steps]
    return {
        "load_s": trial.load_s,
        "hybrid": facts.hybrid,
        "block_size": facts.block_size,
        "pools": [
            {"name": pool.name, "blocks_total": pool.blocks, "tokens_per_block": pool.tokens_per_block}
            for pool in capacity.pools
        ],
        "cache_bytes": trial.cache_bytes,
        "engine_rss_bytes": trial.rss_bytes,
        "tokens": asked.tokens,
        "sequences_that_fit": how_many(capacity, asked.tokens),
        "longest_tokens": longest(capacity),
        "probe_s": None if trial.probe is None or not trial.probe.ok else trial.probe.seconds,
        "rates": [asdict(rate) for rate in trial.rates],
        "steps": len(seconds),
        "longest_step_s": max(seconds, default=None),
    }


def _recommended(asked: Asked, given: Recommendation) -> dict[str, Any]:
    return {
        "scheduler_config": {name: choice.value for name, choice in given.scheduler.items()},
        "limits": {name: choice.value for name, choice in given.limits.items()},
        "why": {name: choice.why for name, choice in (*given.scheduler.items(), *given.limits.items())},
        "python": as_python(asked, given),
    }
