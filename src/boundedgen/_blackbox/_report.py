"""An incident's folder as a page for somebody on call: what happened, what was inside, where the engine stood."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from boundedgen._blackbox._scene import SCHEMA, Plain
from boundedgen._blackbox._witness import NAME

FILES = ("incident.json", "steps.jsonl", "inputs.jsonl", "output.txt", "stacks.txt", "threads.txt", "machine.txt")
ROWS = 20
FRAMES = 6  #: of each Python stack
LINES = 8  #: of the output
FILE_MOST = 64 << 20


class NoIncidentError(ValueError):
    """There is no incident there, or it cannot be read; the message says what is wrong."""


def newest(where: Path) -> Path:
    """`where` itself if it is an incident, else the newest one in it."""
    if not where.is_dir():
        raise NoIncidentError(f"{where} is not a folder")
    if (where / "incident.json").exists() or NAME.fullmatch(where.name):
        return where
    found = sorted(inner for inner in where.iterdir() if NAME.fullmatch(inner.name) and inner.is_dir())
    if not found:
        raise NoIncidentError(f"{where} is no incident, and there is none in it")
    return found[-1]


def report(where: Path) -> tuple[str, list[str]]:
    """The page, and the files that are missing. Raises NoIncidentError."""
    folder = newest(where)
    told = _told(folder)
    missing = [name for name in FILES if not (folder / name).is_file()]
    try:
        lines = [*_page(folder, told)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NoIncidentError(f"{folder / 'incident.json'} is not what this version writes: {error!r}") from error
    if missing:
        lines += ["", f"missing: {', '.join(missing)}"]
    return _printable("\n".join(lines)) + "\n", missing


def _told(folder: Path) -> Plain:
    try:
        told = json.loads(_text(folder / "incident.json"))
    except OSError as error:
        raise NoIncidentError(f"{folder} is no whole incident: incident.json: {error.strerror}") from error
    except ValueError as error:
        raise NoIncidentError(f"{folder / 'incident.json'} cannot be read: {error}") from error
    if not isinstance(told, dict) or not isinstance(told.get("schema"), int):
        raise NoIncidentError(f"{folder / 'incident.json'} is not one of boundedgen's")
    if told["schema"] > SCHEMA:
        raise NoIncidentError(
            f"{folder} has schema {told['schema']}; this version knows up to {SCHEMA}: use a newer one"
        )
    return told


def _page(folder: Path, told: Plain) -> Iterator[str]:
    yield from _what_happened(folder, told)
    yield from ("", *_step_in_flight(folder, told))
    yield from ("", *_sequences(told))
    yield from ("", *_stacks(folder))
    yield from ("", *_threads(folder))
    yield from ("", *_output(folder))


def _what_happened(folder: Path, told: Plain) -> Iterator[str]:
    stats, facts, versions = told["stats"], told["facts"] or {}, told["versions"]
    death = "died" if told["cause"] == "died" else f"was given up ({told['cause']})"
    since = "before it was ready" if told["ready_s"] is None else f"{told['ready_s']:.1f} s after it became ready"
    evidence = told.get("evidence", {})
    yield f"Incident {folder.name}"
    yield f"  engine {told['incarnation']} (process {told['pid']}) {death} at {told['at']}, {since}"
    yield f"  why       {told['detail']}"
    yield f"  inside    {_counts(told)}"
    yield f"  so far    {told['restarts_total']} restarts; {told['failures_in_a_row']} failures in a row"
    yield f"  before    engines lost: {_nonzero(stats['kills_total'])}; ended: {_nonzero(stats['finished_total'])}"
    yield f"  cache     {_cache(stats)}"
    yield f"  device    {facts.get('device', 'not known: it was never ready')}"
    yield f"  versions  {', '.join(f'{name} {version}' for name, version in versions.items())}"
    late = ", ".join(evidence.get("not_in_time", [])) or "nothing"
    yield f"  evidence  in {evidence.get('seconds', '?')} s; not in time: {late}"
    for finding in facts.get("findings") or ():
        yield f"  finding   {finding}"


def _counts(told: Plain) -> str:
    phases = [row["phase"] for row in told["sequences"]]
    more = f" (and {told['sequences_left_out']} more that are not listed)" if told["sequences_left_out"] else ""
    return ", ".join(f"{phases.count(phase)} {phase}" for phase in ("running", "stopping", "waiting")) + more


def _nonzero(counts: Plain) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"


def _cache(stats: Plain) -> str:
    if stats["blocks_total"] is None:
        return "not known yet"
    usage = "not known" if stats["cache_usage"] is None else f"{stats['cache_usage']:.0%}"
    return f"{stats['blocks_reserved']} of {stats['blocks_total']} blocks reserved; used, as the engine says: {usage}"


def _step_in_flight(folder: Path, told: Plain) -> Iterator[str]:
    step = told["step_in_flight"]
    if step is None:
        yield "No step was in flight"
    else:
        yield (
            f"Step {step['step']} was in flight for {step['age_s']:.3f} s of {step['budget_s']:g} s; "
            f"{step['tokens_at_most']} tokens at most, attention {step['attention']}"
        )
    yield from (f"  before it: {line}" for line in _steps(folder)[-3:])


def _steps(folder: Path) -> list[str]:
    found = []
    for line in _text_or_none(folder / "steps.jsonl").splitlines():
        step = json.loads(line)
        if "seconds" in step:
            found.append(
                f"step {step['step']}: {step['seconds'] * 1e3:.1f} ms, {step['scheduled']} scheduled, "
                f"{step['live']} held, cache {step['usage']:.0%}"
            )
    return found


def _sequences(told: Plain) -> Iterator[str]:
    rows = told["sequences"]
    yield f"Sequences ({len(rows)})"
    head = ("id", "phase", "age_s", "prompt_tokens", "tokens", "max_new_tokens", "blocks", "answered", "owner", "label")
    table = [head, *([_cell(row.get(name)) for name in head] for row in rows[:ROWS])]
    widths = [max(len(line[column]) for line in table) for column in range(len(head))]
    if rows:
        yield from (f"  {'  '.join(map(str.ljust, line, widths))}".rstrip() for line in table)
    if len(rows) > ROWS:
        yield f"  … and {len(rows) - ROWS} more in incident.json"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, list):
        return "+".join(map(str, value)) or "-"
    return "-" if value in (None, "") else str(value)[:40]


def _stacks(folder: Path) -> Iterator[str]:
    yield "Where the engine stood (stacks.txt)"
    shown = 0
    for line in _text_or_none(folder / "stacks.txt").splitlines():
        if line.startswith(("==", "\x00")) or not line.strip():
            continue
        shown = shown + 1 if line.startswith("  File ") else 0
        if shown <= FRAMES:
            yield f"  {line}"


def _threads(folder: Path) -> Iterator[str]:
    """The main thread, and those that the kernel holds."""
    yield "Its threads, as the kernel saw them (threads.txt)"
    for block in re.split(r"\n(?=thread )", _text_or_none(folder / "threads.txt").partition("\n== ")[0]):
        head = block.splitlines()[0] if block else ""
        if head.startswith("thread ") and (" main" in head or head.endswith(": D")):
            yield from (f"  {line}" for line in block.strip().splitlines()[:6])
        elif not head.startswith(("thread ", "==")) and head:
            yield f"  {head}"


def _output(folder: Path) -> Iterator[str]:
    """The end, or the beginning of what Python wrote when it crashed."""
    lines = [line for line in _text_or_none(folder / "output.txt").splitlines() if line.strip()]
    crashes = [number for number, line in enumerate(lines) if line.startswith("Fatal Python error")]
    begin = crashes[-1] if crashes else max(0, len(lines) - LINES)
    yield f"The last it said (output.txt, {len(lines)} lines)"
    yield from (f"  {line[:200]}" for line in lines[begin : begin + LINES] or ["nothing"])


def _text(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(FILE_MOST)


def _text_or_none(path: Path) -> str:
    try:
        return _text(path)
    except OSError:
        return ""


def _printable(text: str) -> str:
    """An engine's output must not move the reader's cursor."""
    return "".join(c if c == "\n" or c.isprintable() else "\ufffd" for c in text)
