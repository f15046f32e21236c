"""The dashboard: the file is what its panels say, and Grafana can lay it out."""

import itertools
import json
from typing import Any

from deploy import dashboard, expected


def panels() -> list[dict[str, Any]]:
    return list(json.loads(dashboard.FILE.read_text(encoding="utf-8"))["panels"])


def test_the_file_is_up_to_date() -> None:
    assert dashboard.FILE.read_text(encoding="utf-8") == dashboard.text(), "run: python -m deploy.dashboard"


def test_every_panel_says_what_it_shows_and_has_its_own_place() -> None:
    drawn = [panel for panel in panels() if panel["type"] != "row"]
    assert all(panel["description"] and panel["title"] for panel in drawn)
    assert len({panel["title"] for panel in drawn}) == len(drawn)
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for one, other in itertools.combinations((panel["gridPos"] for panel in panels()), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels())


def test_every_query_goes_to_the_chosen_source_and_to_the_chosen_pipelines() -> None:
    found = json.loads(dashboard.FILE.read_text(encoding="utf-8"))
    assert [variable["name"] for variable in found["templating"]["list"]] == ["datasource", "pipeline", "instance"]
    for panel, query in dashboard.queries():
        assert all(dashboard.CHOSEN in selector for selector in expected.selectors(query.expr)), panel.title
    targets = [target for panel in panels() for target in panel.get("targets", ())]
    assert len(targets) == len(list(dashboard.queries()))
    assert all(target["datasource"] == dashboard.DATASOURCE for target in targets)
