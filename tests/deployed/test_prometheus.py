"""Every query of the dashboard and of the rules, one by one, at a real Prometheus that has scraped a real lane."""

import os
import re
import signal
import time
from collections.abc import Iterator

import pytest
from attrs import frozen

import boundedgen as b
from deploy import dashboard, expected
from deploy.dashboard import Query
from deploy.scenarios import clients, engine_of, plain, until
from deploy.scraped import free_port, served
from deploy.server import Prometheus, QueryError, is_there, prometheus

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not is_there(), reason="prometheus is not there: Debian's package has this name"),
]
QUERIES = [pytest.param(query, id=f"{panel.title}: {query.legend}") for panel, query in dashboard.queries()]
SELECTORS = sorted(set().union(*(expected.selectors(rule["expr"]) for rule in expected.rules())))
LINGER_S = 1.5


@frozen
class Scraped:
    server: Prometheus
    since: float
    until: float

    def range(self, expression: str) -> list[list[tuple[float, str]]]:
        return [series["values"] for series in self.server.range(expression, self.since, self.until, 0.5)]


@pytest.fixture(scope="module")
def scraped() -> Iterator[Scraped]:
    """Of some seconds in which much happens: full, a probe, a lease that ends, an engine that is lost and replaced."""
    port, began = free_port(), time.time()
    with (
        prometheus(f"127.0.0.1:{port}") as server,
        plain(restart=b.RestartPolicy(wait=lambda state: 0.0)) as pipeline,
        served(pipeline, port),
    ):
        with clients(pipeline, 8, tokens=400, total=2.0):
            assert pipeline.probe(5).ok
            lease = pipeline.lease("somebody", ttl=0.3)
            kept = pipeline.submit([5], lease=lease, max_new_tokens=6000, ignore_eos=True)
            time.sleep(LINGER_S)
            assert kept.finish_reason is b.FinishReason.LEASE
            os.kill(engine_of(pipeline), signal.SIGKILL)
            until(lambda: pipeline.stats().restarts_total, 20)
            time.sleep(LINGER_S)
        yield Scraped(server, began, time.time())


def bound(expression: str) -> str:
    """As Grafana sends it."""
    for variable, value in (("$pipeline", ".+"), ("$instance", ".+"), ("$__rate_interval", "2s")):
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return expression


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_the_dashboard_has_an_answer_with_the_labels_of_its_legend(scraped: Scraped, query: Query) -> None:
    found = scraped.server.range(bound(query.expr), scraped.since, scraped.until, 0.5)
    assert found or not query.always
    for label in re.findall(r"{{(\w+)}}", query.legend):
        assert all(series["metric"].get(label) for series in found), label
    numbers = [float(value) for series in found for _, value in series["values"]]
    assert all(number >= 0 or number != number for number in numbers)


def test_the_variables_of_the_dashboard_find_the_lane(scraped: Scraped) -> None:
    (found,) = scraped.server.query("boundedgen_ready")
    assert found["metric"]["pipeline"] == "lane"
    assert found["metric"]["instance"].startswith("127.0.0.1:")


def test_the_state_that_is_drawn_is_the_state_that_was(scraped: Scraped) -> None:
    (query,) = (query for panel, query in dashboard.queries() if panel.title == "Lane health")
    (values,) = scraped.range(bound(query.expr))
    states = list(b.HealthState)
    told = [states[int(float(value))] for _, value in values]
    assert set(told) <= {b.HealthState.READY, b.HealthState.RECOVERING}
    assert told[-1] is b.HealthState.READY
    assert b.HealthState.RECOVERING in told


@pytest.mark.parametrize("selector", SELECTORS)
def test_what_a_rule_reads_is_there_under_this_label(scraped: Scraped, selector: str) -> None:
    assert scraped.server.query(f"last_over_time({selector}[1m])") or "stopping" in selector


def test_prometheus_evaluates_every_rule_and_none_fails(scraped: Scraped) -> None:
    until(lambda: all(rule["lastEvaluation"] for rule in scraped.server.rules()), 5)
    found = {rule["name"]: (rule["health"], rule.get("lastError", "")) for rule in scraped.server.rules()}
    assert found == {rule["alert"]: ("ok", "") for rule in expected.rules()}
    (lost,) = (rule for rule in scraped.server.rules() if rule["name"] == "BoundedgenEngineLost")
    assert [alert["labels"]["cause"] for alert in lost["alerts"]] == ["died"]


def test_a_query_that_cannot_be_answered_is_an_error(scraped: Scraped) -> None:
    with pytest.raises(QueryError, match="parse error"):
        scraped.server.query("sum by (")
