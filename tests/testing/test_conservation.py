"""What comes in is ended, waits or runs: in every snapshot of random runs, under load and faults."""

import itertools
from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from boundedgen.testing import BoundedMachine

SNAPSHOTS = 10_000
QUICK = settings(
    max_examples=10,
    stateful_step_count=30,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


class Conserving(BoundedMachine):
    """Looks at every event. The machine's own oracle looks at the times there, too."""

    looks: ClassVar[Counter[str]] = Counter()

    def check(self) -> None:
        stats = self.simulation.pipeline.stats()
        assert stats.submitted_total == sum(stats.finished_total.values()) + stats.waiting + stats.running
        assert min(stats.waiting, stats.running, stats.stopping, stats.leases) >= 0
        self.looks["all"] += 1
        self.looks["waiting"] += stats.waiting > 0
        self.looks["running"] += stats.running > 0
        self.looks["stopping"] += stats.stopping > 0
        self.looks["after a fault"] += any(stats.kills_total.values())
        self.looks["while there is no engine"] += not self.simulation.pipeline.health().ready


def test_nothing_is_lost_in_any_snapshot() -> None:
    rounds = itertools.count()
    while Conserving.looks["all"] < SNAPSHOTS:
        run_state_machine_as_test(seed(next(rounds))(Conserving), settings=QUICK)
    print(dict(Conserving.looks))
    assert min(Conserving.looks.values()) > SNAPSHOTS / 100, "all of it was met"
