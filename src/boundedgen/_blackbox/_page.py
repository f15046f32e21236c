"""What is on the page of an incident, from its folder: one function a section."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from boundedgen._blackbox._scene import BLAMED, Plain

ROWS = 20
FRAMES = 3  #: of each Python stack but the one that counts
LINES = 8  #: of the output
WIDE = 400  #: characters of a line of the output
LAST_WORDS = 40  #: lines before a crash among which C++ says what was thrown
FILE_MOST = 64 << 20
ROW = ("id", "phase", "age_s", "prompt_tokens", "tokens", "max_new_tokens", "blocks", "answered")
KILL = 9
FULL = 0.98  #: of its limit: memory was at it


def page(folder: Path, told: Plain) -> Iterator[str]:
    yield from _what_happened(folder, told)
    yield from ("", *_step_in_flight(folder, told))
    yield from ("", *_sequences(told))
    yield from ("", *_stacks(folder))
    yield from ("", *_threads(folder))
    yield from ("", *_output(folder))
    yield from ("", *_machine(told))


def _what_happened(folder: Path, told: Plain) -> Iterator[str]:
    stats, facts, versions = told["stats"], told["facts"] or {}, told["versions"]
    death = "died" if told["cause"] == "died" else f"was given up ({told['cause']})"
    since = "before it was ready" if told["ready_s"] is None else f"{told['ready_s']:.1f} s after it became ready"
    evidence = told.get("evidence", {})
    yield f"Incident {folder.name}"
    yield f"  engine {told['incarnation']} (process {told['pid']}) {death} at {told['at']}, {since}"
    yield f"  model     {_model(told)}"
    yield f"  why       {told['detail']}"
    yield from (f"            {verdict}" for verdict in _who_killed_it(told))
    yield f"  inside    {counts(told)}"
    yield f"  so far    {told['restarts_total']} restarts; {_row_of_failures(folder, told)}"
    yield f"  before    engines lost: {_nonzero(stats['kills_total'])}; ended: {_nonzero(stats['finished_total'])}"
    yield f"  cache     {_cache(stats)}"
    yield f"  versions  {', '.join(f'{name} {version}' for name, version in versions.items())}"
    late = ", ".join(evidence.get("not_in_time", [])) or "nothing"
    yield f"  evidence  in {evidence.get('seconds', '?')} s; not in time: {late}"
    for finding in facts.get("findings") or ():
        yield f"  finding   {finding}"


def _model(told: Plain) -> str:
    asked, facts = told["configuration"], told["facts"]
    model = asked.get("models_path", "an engine of the caller's own")
    device = f"{asked.get('device', 'a device')}: it was never ready" if facts is None else facts["device"]
    adapters = ", ".join(f"{name} at {weight:g}" for name, weight in (facts or {}).get("adapters") or ())
    return f"{model} on {device}" + (f", with {adapters}" if adapters else "")


def _row_of_failures(folder: Path, told: Plain) -> str:
    first, count = told.get("first_of_row"), told["failures_in_a_row"]
    return f"{count} failures in a row" + (f", the first: {first}" if first and first != folder.name else "")


def _who_killed_it(told: Plain) -> Iterator[str]:
    """Of one that was killed by a signal that somebody sent, or the kernel."""
    machine = told.get("machine", {})
    before, now = machine.get("oom_kills_before"), machine.get("oom_kills")
    if told.get("exit_status") != -KILL:
        return
    named = any(f"killed process {told['pid']} " in line.lower() for line in machine.get("kernel_log", ()))
    if before is not None and now is not None and before == now:
        yield f"not the kernel for want of memory: its counter of that, oom_kill, has stayed at {now}"
    elif named:
        yield "the kernel did it, for want of memory: its log says so"
    elif before is not None and now is not None:
        yield f"most likely the kernel, for want of memory: its counter of that, oom_kill, went from {before} to {now}"
    else:
        yield "whether it was the kernel is not known: its counter of that, oom_kill, cannot be read"


def counts(told: Plain) -> str:
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
    blamed = tuple(name for name in (*BLAMED, "trial") if any(row.get(name) for row in rows))
    head = (*ROW, *blamed, "owner", "label")
    table = [head, *([_cell(row.get(name)) for name in head] for row in rows[:ROWS])]
    widths = [max(len(line[column]) for line in table) for column in range(len(head))]
    if rows:
        yield from (f"  {'  '.join(map(str.ljust, line, widths))}".rstrip() for line in table)
    if len(rows) > ROWS:
        yield f"  … and {len(rows) - ROWS} more in incident.json"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, list):
        return "+".join(map(str, value)) or "-"
    return "-" if value in (None, "") else str(value)[:40]


def _stacks(folder: Path) -> Iterator[str]:
    yield "Where the engine stood (stacks.txt)"
    text = _text_or_none(folder / "stacks.txt")
    yield from _dump([line for line in text.splitlines() if line.strip() and not line.startswith(("==", "\x00"))])


def _dump(lines: list[str]) -> Iterator[str]:
    """What faulthandler wrote: first and in full the thread that crashed, or else the main one, which comes last."""
    begins = [n for n, line in enumerate(lines) if re.match(r"(Current thread|Thread 0x)", line)] + [len(lines)]
    yield from (f"  {line}" for line in lines[: begins[0]])
    threads = [lines[begin:end] for begin, end in pairwise(begins)]
    current = [thread for thread in threads if thread[0].startswith("Current")] or threads[-1:]
    yield from (f"  {line}" for thread in current for line in thread)
    for thread in (thread for thread in threads if thread not in current):
        yield from (f"  {line}" for line in thread[: 1 + FRAMES])
        if len(thread) > 1 + FRAMES:
            yield f"    … {len(thread) - 1 - FRAMES} more lines"


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
    """The end or, of a crash, the last that was said before it, which has the cause, and then Python's stacks."""
    lines = [line[:WIDE] for line in _text_or_none(folder / "output.txt").splitlines() if line.strip()]
    crash = next((n for n in reversed(range(len(lines))) if lines[n].startswith("Fatal Python error")), len(lines))
    yield f"The last it said (output.txt, {len(lines)} lines)"
    yield from (f"  {line}" for line in _last_words(lines[:crash]))
    yield from _dump([line for line in lines[crash:] if not line.startswith("Extension modules:")])
    if not lines:
        yield "  nothing"


def _last_words(lines: list[str]) -> list[str]:
    """From where C++ began to say what was thrown, however many lines that has."""
    thrown = [n for n, line in enumerate(lines) if "terminate called" in line and n >= len(lines) - LAST_WORDS]
    return lines[min([*thrown[-1:], max(0, len(lines) - LINES)]) :]


def _machine(told: Plain) -> Iterator[str]:
    yield "The machine (all of it: machine.txt)"
    machine = told.get("machine")
    if machine is None:
        yield "  not told here by the version that wrote this"
        return
    memory, before = machine.get("memory", {}), machine.get("oom_kills_before")
    used, most, limit = (memory.get(name) for name in ("used", "most", "limit"))
    full = "; it was at its limit" if limit and max(used or 0, most or 0) >= FULL * limit else ""
    yield f"  memory    of the control group: {_mb(used)} used, {_mb(most)} at most so far, limit {_mb(limit)}{full}"
    yield f"  oom_kill  {_known(before)} before, {_known(machine.get('oom_kills'))} now"
    log = machine.get("kernel_log")
    if log is None:
        yield f"  kernel    its log: {machine.get('kernel_log_not_readable', 'not read in time')}"
    else:
        yield f"  kernel    lines of its log since the engine started that name it: {len(log)}"
        yield from (f"    {line}" for line in log)


def _mb(amount: int | None) -> str:
    return "none or not known" if amount is None else f"{amount / 1e6:.0f} MB"


def _known(count: int | None) -> str:
    return "not known" if count is None else str(count)


def text_of(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(FILE_MOST)


def _text_or_none(path: Path) -> str:
    try:
        return text_of(path)
    except OSError:
        return ""
