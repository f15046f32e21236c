"""Recorded series as files for `promtool test rules`, and when each alert fires by them.

A file has the run twice: scraped, and the rules evaluated, every 5 and every 15 seconds. What is expected in it is what
promtool says itself, written down; a test compares the alerts with those that the scenario should have.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from attrs import frozen

from deploy.scenarios import SCENARIOS, Scenario
from deploy.scraped import Recording, Series

HERE = Path(__file__).resolve().parent
RULES = HERE / "prometheus" / "boundedgen.rules.yml"
TESTS = HERE / "prometheus" / "tests"
INTERVALS = (5, 15)  #: seconds between two scrapes, and between two evaluations
AROUND_S = 300  #: seconds that are kept before and after the event
INSTANCE = {"instance": "lane:9464", "job": "lanes"}
_SELECTOR = re.compile(r"\bboundedgen_\w+\b(?:\{[^}]*\})?")


def rules() -> list[dict[str, Any]]:
    loaded = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def selectors(expression: str) -> set[str]:
    """What an expression reads: metrics, with their matchers; not the label of a state set, which has its name too."""
    bare = re.sub(r"\b(ignoring|without|by|on)\s*\([^)]*\)", "", expression)
    return set(_SELECTOR.findall(bare))


def names(expression: str) -> set[str]:
    return {selector.partition("{")[0] for selector in selectors(expression)}


def reads(selector: str, series: Series) -> bool:
    """The matchers that rules and dashboard have: `=` and `=~`."""
    name, _, matchers = selector.partition("{")
    labels = dict(series[1])
    wanted = re.findall(r'(\w+)=(~?)"([^"]*)"', matchers)
    fits = (re.fullmatch(v if like else re.escape(v), labels.get(label, "")) for label, like, v in wanted)
    return name == series[0] and all(fits)


# --- series ----------------------------------------------------------------------------------------------------------


def columns(rows: list[dict[Series, float]], scenario: Scenario) -> dict[Series, list[float | None]]:
    """A value a row of each series that the rules read; None: not there at that time."""
    wanted = set().union(*(selectors(rule["expr"]) for rule in rules()))
    every = {series for row in rows for series in row}
    found = sorted(series for series in every if any(reads(selector, series) for selector in wanted))
    return {series: repeated(series, [row.get(series) for row in rows], scenario) for series in found}


def repeated(series: Series, values: list[float | None], scenario: Scenario) -> list[float | None]:
    """A counter goes on where it was."""
    known = [value for value in values if value is not None]
    grown = known[-1] - known[0] if series[0].endswith("_total") and known else 0.0
    return [v if v is None else v + n * grown for n in range(scenario.repeated) for v in values]


def thinned(values: Sequence[float | None], event: int, every: int) -> list[float | None]:
    """Every so many, so that one of them is the last before the event: the worst that can be."""
    return list(values[event % every :: every])


def spelled(values: Sequence[float | None]) -> str:
    """As promtool writes series: `5x3` is four times 5, `_x3` three times nothing."""
    words = []
    for value, run in itertools.groupby(values):
        count = len(list(run))
        if value is None:
            words.append("_" if count == 1 else f"_x{count}")
        else:
            words.append(number(value) if count == 1 else f"{number(value)}x{count - 1}")
    return " ".join(words)


def number(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) else f"{value:.4g}"


def labelled(series: Series) -> str:
    labels = {**dict(series[1]), **INSTANCE}
    return series[0] + "{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"


# --- a file ----------------------------------------------------------------------------------------------------------


@frozen
class Fired:
    """An alert, as promtool sees it."""

    alert: str
    at: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def group(series: Mapping[Series, list[float | None]], event: int, every: int, row: int) -> dict[str, Any]:
    """Nothing is expected yet."""
    thin = {labelled(one): thinned(values, event, every // row) for one, values in series.items()}
    rows = [{"series": name, "values": spelled(v)} for name, v in thin.items() if any(x is not None for x in v)]
    return {"interval": f"{every}s", "input_series": rows, "alert_rule_test": []}


def length(one: dict[str, Any]) -> int:
    """How many samples its longest series has."""
    return max(sum(map(run_of, row["values"].split())) for row in one["input_series"])


def run_of(word: str) -> int:
    return int(word.partition("x")[2] or 0) + (not word.startswith("_x"))


def write(name: str, recording: Recording) -> None:
    scenario = SCENARIOS[name]
    event = int(recording.event / scenario.every)
    first = max(0, event - AROUND_S // scenario.row)
    rows = recording.rows[first : event + AROUND_S // scenario.row]
    series, event = columns(rows, scenario), event - first
    groups = [group(series, event, every, scenario.row) for every in INTERVALS]
    for every, one in zip(INTERVALS, groups, strict=True):
        expect(one, every)
    save(name, event * scenario.row, groups)


def save(name: str, event: int, groups: list[dict[str, Any]]) -> None:
    """A file for each interval: that of the rules' evaluation is the whole file's."""
    TESTS.mkdir(exist_ok=True)
    for every, one in zip(INTERVALS, groups, strict=True):
        at = event // every * every
        head = f"# Recorded: {SCENARIOS[name].what} ({SCENARIOS[name].engine} engine).\n"
        head += f"# The event is in the {every} s after second {at}.\n"
        body: dict[str, Any] = {
            "rule_files": ["../boundedgen.rules.yml"],
            "evaluation_interval": f"{every}s",
            "tests": [one],
        }
        text = yaml.safe_dump(body, sort_keys=False, width=116, allow_unicode=True)
        path(name, every).write_text(head + text, encoding="utf-8")


def path(name: str, every: int) -> Path:
    return TESTS / f"{name}_{every}s.yml"


def expect(one: dict[str, Any], every: int) -> None:
    """When each alert begins and ends, as promtool finds it now, becomes what is expected."""
    seen = list(fired(one, every))
    times = range(0, length(one) * every, every)
    tests: list[dict[str, Any]] = []
    for alert in sorted({f.alert for f in seen}):
        mine = {at: [f for f in seen if (f.alert, f.at) == (alert, at)] for at in times}
        for at in times:
            before = at - every
            if len(mine[at]) != len(mine.get(before, ())):
                known = [expected(found) for found in mine[at]]
                if known and before >= 0:
                    earlier = [expected(found) for found in mine[before]]
                    tests.append({"eval_time": f"{before}s", "alertname": alert, "exp_alerts": earlier})
                tests.append({"eval_time": f"{at}s", "alertname": alert, "exp_alerts": known})
    last = times[-1]
    silent = [rule["alert"] for rule in rules() if rule["alert"] not in {f.alert for f in seen}]
    one["alert_rule_test"] = tests + [{"eval_time": f"{last}s", "alertname": name, "exp_alerts": []} for name in silent]


def expected(found: Fired) -> dict[str, Any]:
    labels = {name: value for name, value in found.labels.items() if name != "alertname"}
    return {"exp_labels": labels, "exp_annotations": dict(found.annotations)}


# --- promtool --------------------------------------------------------------------------------------------------------

_CASE = re.compile(r"alertname: ?(\w+), time: ?(\w+),(.*?)(?=alertname:|\Z)", re.DOTALL)
_SETS = re.compile(r"Labels:\{(.*?)\}\n?\s*Annotations:\{(.*?)\}\s*(?:\n|\])", re.DOTALL)
_PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')


def fired(one: dict[str, Any], every: int) -> Iterator[Fired]:
    """Every alert at every evaluation: promtool is asked whether there is none, and says what there is."""
    times = range(0, length(one) * every, every)
    asked = [{"eval_time": f"{at}s", "alertname": rule["alert"], "exp_alerts": []} for at in times for rule in rules()]
    body: dict[str, Any] = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{every}s",
        "tests": [{**one, "alert_rule_test": asked}],
    }
    file = TESTS / "asked.yml"
    file.write_text(json.dumps(body), encoding="utf-8")
    try:
        said = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=60)
    finally:
        file.unlink()
    for alert, at, rest in _CASE.findall(said.stdout + said.stderr):
        got = rest.partition("got:")[2]
        for labels, said_of_it in _SETS.findall(got):
            yield Fired(alert, in_seconds(at), pairs(labels), pairs(said_of_it))


def pairs(text: str) -> dict[str, str]:
    return {name: json.loads(value) for name, value in _PAIR.findall(text)}


def in_seconds(text: str) -> int:
    """Of a duration as promtool writes it, such as 1m5s."""
    factors = {"h": 3600, "m": 60, "s": 1}
    return sum(int(n) * factors[unit] for n, unit in re.findall(r"(\d+)([hms])", text))


# --- what the files say ----------------------------------------------------------------------------------------------


def fires(name: str, every: int) -> dict[str, int]:
    """After how many seconds each alert fires, at the latest, by the file of this scenario; negative: never.

    From the scrape before the event on, so that it is the worst of all offsets.
    """
    text = path(name, every).read_text(encoding="utf-8")
    match = re.search(r"after second (\d+)", text)
    assert match is not None
    first: dict[str, int] = {}
    for test in yaml.safe_load(text)["tests"][0]["alert_rule_test"]:
        if test["exp_alerts"]:
            first.setdefault(test["alertname"], in_seconds(test["eval_time"]) - int(match[1]))
    return first
