"""A frame: lanes in, lines out, none wider than asked and no more of them. Nothing is read or printed here."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen
from rich.text import Text

from boundedgen._top._reading import Seen, count, counts, number, rows, table, text, true
from boundedgen._top._troubles import troubles
from boundedgen._top._words import UNKNOWN, bar, listed, percent, rate, size, span

WIDTH_LEAST, HEIGHT_LEAST = 40, 8
PAGE_LINES = 1000
BAR = 16
LANES_SHARE = 3  #: of several lanes, a third of the screen at most
TROUBLE_LINES = 3  #: of one
TROUBLES_MOST = 4
POOLS_MOST = 4
SOON = 5.0  #: seconds left of a sequence that are shown as few
UNREACHED = "no answer"
STATES = {
    "ready": "bold black on green",
    "starting": "bold black on cyan",
    "recovering": "bold black on yellow",
    "draining": "bold black on cyan",
    "stalled": "bold white on red",
    "failed": "bold white on red",
    UNREACHED: "bold white on red",
}
GRAVE, MINOR, FINE, ASIDE = "bold red", "yellow", "green", "dim"
BAD_ENDS = {"deadline", "engine_lost", "quarantined", "engine_failed", "cache_exhausted", "internal"}
Part = str | tuple[str, str]


@frozen
class Look:
    """How much is shown, and of what."""

    width: int = 80
    height: int = 24
    selected: int = 0
    clock: str = ""  #: the time, as it is to be shown
    keys: str = ""  #: what the keys do; empty: there are none


def frame(lanes: Sequence[Seen], look: Look) -> list[Text]:
    """At most `look.height` lines, each at most `look.width` wide (40 and 8 at least)."""
    width, height = max(WIDTH_LEAST, look.width), max(HEIGHT_LEAST, look.height)
    lines = [_title(lanes, look, width)]
    foot = [_line((look.keys, ASIDE))] if look.keys else []
    room = height - len(foot)
    if len(lanes) > 1:
        lines += _overview(lanes, look.selected, max(2, height // LANES_SHARE))
    if lanes:
        lane = lanes[min(look.selected, len(lanes) - 1)]
        lines += _details(lane, width, room - len(lines))
    lines += [Text() for _ in range(room - len(lines) if foot else 0)]  # the keys are at the bottom
    return [_fitted(line, width) for line in (*lines[:room], *foot)]


def page(lanes: Sequence[Seen], look: Look) -> list[Text]:
    """Everything of all lanes, however long: where nobody can press a key."""
    width = max(WIDTH_LEAST, look.width)
    lines = [_title(lanes, look, width)]
    if len(lanes) > 1:
        lines += _overview(lanes, -1, len(lanes) + 2)
    for index, lane in enumerate(lanes):
        lines += [*([Text()] if index else []), *_details(lane, width, PAGE_LINES)]
    return [_fitted(line, width) for line in lines]


def _line(*parts: Part) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis", end="")


def _fitted(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line


def _title(lanes: Sequence[Seen], look: Look, width: int) -> Text:
    ready = sum(not lane.problem and true(lane.health, "ready") for lane in lanes)
    left = " boundedgen top" if len(lanes) == 1 else f" boundedgen top   {ready} of {len(lanes)} lanes ready"
    return _line((f"{left}{look.clock:>{max(1, width - len(left) - 1)}} ", "reverse"))


# --- several lanes ---------------------------------------------------------------------------------------------------


def _overview(lanes: Sequence[Seen], selected: int, most: int) -> Iterator[Text]:
    """A line each; of too many those around the selected one."""
    most = max(1, most - 2)
    first = min(max(0, selected - most // 2), max(0, len(lanes) - most))
    head = f"   {'LANE':<12} {'STATE':<10} {'STEP':>11} {'RUN':>3} {'STOP':>4} {'WAIT':>4} {'FULL':>4}  WRONG"
    yield _line((head, ASIDE))
    for index in range(first, min(first + most, len(lanes))):
        yield _compact(lanes[index], index, selected=index == selected)
    yield Text()


def _compact(lane: Seen, index: int, *, selected: bool) -> Text:
    mark = f"{'>' if selected else ' '}{index + 1 if index < 9 else ' '} "
    stats, wrong = lane.stats, troubles(lane)
    step = f"{span(number(stats, 'step_current_s'))}/{span(number(stats, 'step_budget_s'))}"
    full = max((_share(pool) for pool in rows(stats, "pools")), default=None)
    inside = [_small(count(stats, name)) for name in ("running", "stopping", "waiting")]
    figures = f" {step:>11} {inside[0]:>3} {inside[1]:>4} {inside[2]:>4} {percent(full):>4}  "
    worst = (wrong[0].brief, GRAVE if wrong[0].grave else MINOR) if wrong else ("", "")
    name = (_cell(lane.name, 12), "bold" if selected else "")
    return _line(mark, name, " ", _state(lane, 10), (figures, _age_style(lane)), worst)


def _state(lane: Seen, width: int = 0) -> tuple[str, str]:
    state = UNREACHED if lane.problem or lane.document is None else text(lane.health, "state") or UNKNOWN
    shown = state.upper()[:10]
    return f"{shown:<{width}}", STATES.get(state, "bold reverse")


def _age_style(lane: Seen) -> str:
    """What is not of now is shown as such."""
    return ASIDE if lane.problem else ""


# --- one lane --------------------------------------------------------------------------------------------------------


def _details(lane: Seen, width: int, height: int) -> list[Text]:
    head = [_headline(lane), *_wrong(lane, width)]
    if lane.document is None:
        return head
    figures = [*_step(lane), *_slots(lane), *_pools(lane), *_tokens(lane), *_endings(lane), *_engines(lane)]
    sequences = _sequences(lane, max(0, height - len(head) - len(figures) - 1))
    lines = [*figures, Text(), *sequences]
    if lane.problem:
        for line in lines:
            line.stylize(ASIDE)
    return [*head, *lines]


def _headline(lane: Seen) -> Text:
    stats, health = lane.stats, lane.health
    state, style = _state(lane)
    parts: list[Part] = [(f" {state} ", style), f" {lane.name}  "]
    if lane.problem and lane.document is not None:
        was = text(health, "state").upper()
        parts.append((f"last answer {span(lane.answered_ago_s)} ago ({was}): what follows is of then", MINOR))
    elif lane.document is not None:
        pid, version = number(stats, "engine_pid"), text(lane.document, "version")
        told = (
            f"for {span(number(health, 'since_s'))}",
            f"engine {count(health, 'incarnation')}",
            "no process" if pid is None else f"pid {pid:.0f}",
            version and f"boundedgen {version}",
        )
        parts.append(("   ".join(part for part in told if part), ASIDE))
    return _line(*parts)


def _wrong(lane: Seen, width: int) -> Iterator[Text]:
    found = troubles(lane)
    for trouble in found[:TROUBLES_MOST]:
        style = GRAVE if trouble.grave else MINOR
        lines = textwrap.wrap(trouble.words, width - 5, max_lines=TROUBLE_LINES, placeholder=" …") or [""]
        yield _line((" !! " if trouble.grave else "  ! ", style), (lines[0], style))
        yield from (_line((f"    {line}", style)) for line in lines[1:])
    if len(found) > TROUBLES_MOST:
        yield _line((f"    and {len(found) - TROUBLES_MOST} more", ASIDE))
    if not found and true(lane.health, "ready"):
        yield _line(("    nothing is wrong that can be seen from here", FINE))
    findings = table(lane.document, "health").get("findings")
    said = [finding for finding in findings if isinstance(finding, str)] if isinstance(findings, list) else []
    if said:
        more = f" (and {len(said) - 1} more)" if len(said) > 1 else ""
        yield _row("found", text({"said": said[0]}, "said") + more)


def _row(label: str, *parts: Part) -> Text:
    return _line((f" {_cell(label, 8)}", ASIDE), " ", *parts)


def _cell(given: str, width: int) -> str:
    """As wide as that, in columns."""
    cell = Text(given)
    cell.truncate(width, overflow="ellipsis", pad=True)
    return cell.plain


def _drawn(share: float, style: str) -> tuple[Part, Part]:
    full, empty = bar(share, BAR)
    return (full, style), (empty, ASIDE)


def _step(lane: Seen) -> Iterator[Text]:
    stats = lane.stats
    age, budget = number(stats, "step_current_s") or 0.0, number(stats, "step_budget_s")
    share = age / budget if budget else 0.0
    style = GRAVE if share > 1 else MINOR if share > 0.5 else FINE
    current: Part = ("no step", ASIDE) if budget is None else f"{span(age)} of {span(budget)}"
    progress = number(stats, "last_progress_s")
    last = f"   last {span(number(stats, 'last_step_s'))}"
    parts = [current, last, f"   progress {span(progress)} ago" if progress is not None else "   no work"]
    yield _row("step", *_drawn(share, style), "  ", *parts)


def _slots(lane: Seen) -> Iterator[Text]:
    stats = lane.stats
    stopping, waiting = count(stats, "stopping"), count(stats, "waiting")
    parts: list[Part] = [f"{count(stats, 'running')} running"]
    parts.append((f"   {stopping} stopping", MINOR if stopping else ""))
    parts.append((f"   {waiting} waiting", MINOR if waiting else ""))
    oldest = number(stats, "oldest_waiting_s")
    parts.append("   nobody waits" if oldest is None else f"   the oldest waits for {span(oldest)}")
    yield _row("slots", *parts)


def _share(pool: Mapping[str, Any]) -> float:
    total, reserved = number(pool, "blocks_total"), number(pool, "blocks_reserved")
    return reserved / total if total and reserved else 0.0


def _pools(lane: Seen) -> Iterator[Text]:
    for pool in rows(lane.stats, "pools")[:POOLS_MOST]:
        share = _share(pool)
        style = MINOR if share > 0.9 else FINE
        figures = f"  {count(pool, 'blocks_reserved')} of {count(pool, 'blocks_total')} blocks reserved"
        name = text(pool, "name").replace("linear_attention", "linear")
        yield _row(name, *_drawn(share, style), figures, f"   {count(pool, 'blocks_free')} free")


def _tokens(lane: Seen) -> Iterator[Text]:
    stats = lane.stats
    used = f"   cache {percent(number(stats, 'cache_usage'))} used, {percent(number(stats, 'cache_usage_max'))} at most"
    late = number(stats, "driver_lag_s") or 0.0
    lag: Part = (f"   driver {span(late)} late", MINOR if late > 0.1 else "")
    yield _row("tokens", f"{rate(number(stats, 'tokens_per_s'))}/s", used, lag)


def _endings(lane: Seen) -> Iterator[Text]:
    lately, since = lane.lately("finished_total"), counts(lane.stats, "finished_total")
    if lane.before_s:
        recent: Part = (listed(lately) or "none", MINOR if BAD_ENDS & lately.keys() else "")
        yield _row("ended", f"last {span(lane.before_s)}: ", recent)
    yield _row("" if lane.before_s else "ended", f"since start: {listed(since) or 'none'}")
    if refused := counts(lane.stats, "rejected_total"):
        yield _row("refused", f"since start: {listed(refused)}")


def _engines(lane: Seen) -> Iterator[Text]:
    stats = lane.stats
    lost = counts(stats, "kills_total")
    parts: list[Part] = [f"{count(stats, 'restarts_total')} restarts   ", ("lost: ", ""), listed(lost) or "none"]
    if recycled := count(stats, "recycled_total"):
        parts.append(f"   {recycled} recycled")
    parts.append(f"   memory {size(number(stats, 'engine_rss_bytes'))}")
    yield _row("engines", *parts)
    verdict, age = text(stats, "last_probe"), number(stats, "last_probe_age_s")
    if not verdict:
        yield _row("probe", ("none yet", ASIDE))
    else:
        seconds = span(number(stats, "last_probe_s"))
        style = FINE if verdict == "ok" else GRAVE if verdict == "failed" else MINOR
        yield _row("probe", (verdict, style), f" after {seconds}, {span(age)} ago")


# --- sequences -------------------------------------------------------------------------------------------------------


def _sequences(lane: Seen, most: int) -> Iterator[Text]:
    """The oldest first."""
    found = sorted(rows(lane.stats, "sequences"), key=lambda row: -(number(row, "age_s") or 0.0))
    if most < 2:
        return
    if not found:
        yield _line((" nothing inside", ASIDE))
        return
    yield _line(
        (f" {'ID':>7} {'PHASE':<8} {'AGE':>6} {'TOKENS':>6} {'BLOCKS':>6} {'LEFT':>6} BOUND  OWNER, LABEL", ASIDE)
    )
    shown = len(found) if len(found) < most else most - 2
    for row in found[:shown]:
        yield _sequence(row, number(lane.document, "now"))
    if shown < len(found):
        yield _line((f" and {len(found) - shown} younger ones", ASIDE))


def _sequence(row: Mapping[str, Any], now: float | None) -> Text:
    phase, deadline = text(row, "phase"), number(row, "deadline")
    left = None if deadline is None or now is None else deadline - now
    blocks = sum(counts(row, "blocks").values())
    facts = f" {count(row, 'id') % 10**7:>7} {_cell(phase, 8)} {span(number(row, 'age_s')):>6} "
    owned = ", ".join(part for part in (text(row, "owner") or "(nobody)", text(row, "label")) if part)
    few = left is not None and left < SOON
    return _line(
        (facts, MINOR if phase == "stopping" else ""),
        f"{_small(count(row, 'tokens')):>6} {_small(blocks):>6} ",
        (f"{span(left):>6}", MINOR if few else ""),
        f" {_cell(text(row, 'bound') or UNKNOWN, 6)} ",
        owned,
    )


def _small(figure: int) -> str:
    return str(figure) if figure < 10_000 else f"{figure // 1000}k" if figure < 1_000_000 else "many"
