"""The alert rules: each fires in time in the runs in which it should, and in no other; each has its runbook."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from boundedgen.exporters._metrics import Metric, told
from deploy import dashboard, expected
from deploy.scenarios import SCENARIOS

ROOT = Path(__file__).resolve().parents[2]
RULES = expected.rules()
FILES = [(name, every) for name in SCENARIOS for every in expected.INTERVALS]
EXPRESSIONS = [*(rule["expr"] for rule in RULES), *(query.expr for _, query in dashboard.queries())]
OF_PROMETHEUS = {"pipeline", "instance", "le"}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not there: it is in Debian's package prometheus"
)


def promtool(*arguments: object) -> tuple[int, str]:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


# --- what they say ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_what_is_the_matter_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    said = rule["annotations"]
    assert said.keys() == {"summary", "description", "runbook_url"}
    assert "{{ $labels.pipeline }}" in said["summary"]
    page = (ROOT / said["runbook_url"]).read_text(encoding="utf-8")
    assert page.startswith(f"# {rule['alert']}\n")
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert headings == ["What it means", "Look at", "Do", "Do not"]


def test_every_runbook_belongs_to_an_alert_and_is_listed() -> None:
    pages = {f"docs/runbooks/{path.name}" for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert pages == {rule["annotations"]["runbook_url"] for rule in RULES}
    listed = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    assert all(f"(runbooks/{Path(page).name})" in listed for page in pages)


def test_what_a_runbook_names_in_quotes_is_a_panel() -> None:
    """What begins with a small letter is a line of the log."""
    titles = [panel.title for row in dashboard.ROWS for panel in row.panels]
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "runbooks").glob("*.md")]
    looks = [page.partition("## Look at")[2].partition("\n## ")[0] for page in pages]
    named = {" ".join(name.split()) for look in looks for name in re.findall(r'"([A-Z][^"]*)"', look)}
    assert len(named) > 10
    assert [name for name in named if not any(title.startswith(name) for title in titles)] == []


# --- what they read --------------------------------------------------------------------------------------------------


def exported(name: str) -> Metric | None:
    for metric, _, _ in told():
        forms = {metric.name}
        if metric.kind == "histogram":
            forms = {f"{metric.name}_{form}" for form in ("bucket", "count", "sum")}
        if name in forms:
            return metric
    return None


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_rules_and_dashboard_read_what_is_exported(expression: str) -> None:
    assert expected.selectors(expression)
    for selector in expected.selectors(expression):
        metric = exported(selector.partition("{")[0])
        assert metric is not None, f"{selector} is no metric of boundedgen.exporters.prometheus"
        labels = set(re.findall(r"(\w+)(?:=|!~)", selector.partition("{")[2]))
        assert labels <= {metric.label, *OF_PROMETHEUS}, f"{metric.name} has no such label: {selector}"


def test_a_metric_that_is_not_there_is_noticed() -> None:
    (selector,) = expected.selectors('sum by (boundedgen_health) (boundedgen_nothing{pipeline="a"}) > 1')
    assert selector == 'boundedgen_nothing{pipeline="a"}'
    assert exported("boundedgen_nothing") is None
    assert exported("boundedgen_step_seconds") is None  # a histogram has no series of its own name


# --- when they fire --------------------------------------------------------------------------------------------------


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    assert promtool("check", "rules", expected.RULES)[0] == 0


@needs_promtool
@pytest.mark.parametrize(("name", "every"), FILES)
def test_alerts_fire_on_the_recorded_run_when_the_file_says(name: str, every: int) -> None:
    status, said = promtool("test", "rules", expected.path(name, every))
    assert status == 0, f"{said}\nif the rules are meant to be so: python -m deploy.record --rules"


@pytest.mark.parametrize(("name", "every"), FILES)
def test_of_a_recorded_run_those_alerts_fire_that_should(name: str, every: int) -> None:
    """Every 15 seconds, what heals sooner can be missed; never is there one that should not be."""
    found = expected.fires(name, every).keys()
    assert found == SCENARIOS[name].fires if every == min(expected.INTERVALS) else found <= SCENARIOS[name].fires


def test_every_alert_was_seen_to_fire_and_there_is_no_run_without_a_file() -> None:
    assert set().union(*(scenario.fires for scenario in SCENARIOS.values())) == {rule["alert"] for rule in RULES}
    assert {path.name for path in expected.TESTS.glob("*.yml")} == {expected.path(*file).name for file in FILES}


@needs_promtool
def test_a_rule_that_no_longer_fires_is_noticed(tmp_path: Path) -> None:
    text = expected.RULES.read_text(encoding="utf-8")
    blunt = text.replace("boundedgen_live == 0", "boundedgen_live == 2")
    assert blunt != text
    (tmp_path / "boundedgen.rules.yml").write_text(blunt, encoding="utf-8")
    (tmp_path / "tests").mkdir()
    file = shutil.copy(expected.path("restart_loop", 5), tmp_path / "tests")
    status, said = promtool("test", "rules", file)
    assert status != 0
    assert "BoundedgenLaneFailed" in said


def test_series_are_written_as_promtool_reads_them() -> None:
    assert expected.spelled([1, 1, 1, None, 2.5, None, None, 0]) == "1x2 _ 2.5 _x2 0"
    one = {"input_series": [{"values": "1x2 _ 2.5 _x2 0"}, {"values": "3"}]}
    assert expected.length(one) == 8


def test_of_a_recorded_run_the_scrape_before_the_event_is_kept() -> None:
    """So that what is told of how long an alert takes is the worst of all offsets."""
    assert expected.thinned(list(range(20)), event=7, every=5) == [2, 7, 12, 17]
