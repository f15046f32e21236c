"""A scrape of a lane whose engine stands still, on the real engine: at once, and true."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest
from process.lanes import engine_pid, kill, many, percentile, plain_lane, pulse, until
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from boundedgen import BoundedPipeline, Limits
from boundedgen.exporters.prometheus import PipelineCollector

pytestmark = pytest.mark.timeout(60)

AT_ONCE_S = 0.05  #: at the median; on a quiet machine it is 4 ms, most of which the client library takes for its text
BUDGET = 3.0
LIMITS = Limits(step=BUDGET, first_step=0.0, new_shape=0.0, ack=BUDGET, progress=BUDGET, reclaim=BUDGET)
RUNNING, TOKENS = 3, 4000  #: so many that none ends meanwhile


class Scraper:
    """A server's registry, looked at as Prometheus does."""

    def __init__(self, lane: BoundedPipeline) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(PipelineCollector({"it": lane}))
        self.took: list[float] = []

    def scrape(self) -> dict[str, float]:
        """Metrics without another label than the pipeline's, by name."""
        began = time.perf_counter()
        text = generate_latest(self._registry).decode()
        self.took.append(time.perf_counter() - began)
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return {sample.name: sample.value for sample in samples if sample.labels == {"pipeline": "it"}}

    def about(self) -> dict[str, str]:
        """The labels of `boundedgen_info`."""
        families = text_string_to_metric_families(generate_latest(self._registry).decode())
        return next(family.samples[0].labels for family in families if family.name == "boundedgen_info")


@contextlib.contextmanager
def stopped_in_a_step(lane: BoundedPipeline) -> Iterator[None]:
    pid = engine_pid(lane)

    def caught() -> bool:
        os.kill(pid, signal.SIGSTOP)
        inside = pulse(lane).in_step
        if not inside:
            os.kill(pid, signal.SIGCONT)
        return inside

    until(caught, what="an engine that stands still inside of a step")
    try:
        yield
    finally:
        kill(pid, signal.SIGCONT)


def test_a_scrape_of_a_stopped_engine_answers_at_once_and_tells_what_is_true() -> None:
    with plain_lane(limits=LIMITS, num_kv_blocks=512) as lane:
        scraper, generations = Scraper(lane), many(lane, RUNNING, tokens=TOKENS)
        until(lambda: all(generation.partial.token_ids for generation in generations))
        with stopped_in_a_step(lane):
            stopped_at = time.monotonic()
            first = scraper.scrape()
            seen, began = [first["boundedgen_step_current_seconds"]], time.monotonic()
            for _ in range(5):
                time.sleep(0.01)
                last_began = time.monotonic()
                seen.append(scraper.scrape()["boundedgen_step_current_seconds"])
            assert seen == sorted(set(seen)), "it grows"
            assert last_began - began <= seen[-1] - seen[0] <= time.monotonic() - stopped_at, "by the second"
            assert first["boundedgen_ready"] == 1.0
            assert first["boundedgen_running_sequences"] == RUNNING
            reserved = first["boundedgen_kv_reserved_blocks"]
            assert reserved == RUNNING * -(-(2 + TOKENS - 1) // first["boundedgen_kv_block_size_tokens"])
            assert first["boundedgen_kv_free_blocks"] == first["boundedgen_kv_blocks"] - reserved > 0
            until(lambda: not scraper.scrape()["boundedgen_ready"], 2 * BUDGET, "not ready")
            unready_after = time.monotonic() - stopped_at
            assert 0.5 * BUDGET < unready_after < BUDGET + 2.0
            until(lambda: lane.stats().kills_total["step"] == 1, BUDGET, "a kill")
            assert scraper.scrape()["boundedgen_live"] == 1.0
        about = scraper.about()
        assert (about["model"], about["device"], about["admission"]) == ("plain", "CPU", "reserve")
        assert about["openvino_genai"]
        assert about["openvino"] == lane._driver.snapshot.facts.versions["openvino"]  # type: ignore[union-attr]
    median = percentile(scraper.took, 0.5)
    print(f"{len(scraper.took)} scrapes: {1e3 * median:.2f} ms at the median; not ready after {unready_after:.2f} s")
    assert median < AT_ONCE_S
