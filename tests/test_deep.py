"""The long runs of deep/, a little of each: they are to work on the day that somebody needs them."""

import pytest

from deep import crashes, soak
from deep.soak import Sample


@pytest.mark.slow
def test_a_few_faults_of_every_sort_break_no_promise() -> None:
    findings = crashes.run(4, seed=3)
    assert findings.broken == []
    assert sum(findings.seen.values()) == 4
    assert max(findings.late) < 0.5, "a promise of 0.1 s on a machine that does nothing else"


@pytest.mark.slow
def test_a_short_soak_ends_at_rest_and_samples_what_has_to_stay_flat() -> None:
    run = soak.Soak(seed=3)
    run.run(6.0, kill_every=3.0)
    assert run.kills >= 1
    assert len(run.samples) >= 2
    assert {sample.rows for sample in run.samples} == {0}


def test_what_grows_is_told_from_what_does_not() -> None:
    flat = [Sample(n, 100.0, 200.0, 15, 4, 0, 50_000 + n % 7) for n in range(40)]
    assert soak.grown(flat) == {}
    leaking = [Sample(n, 100.0 + n, 200.0, 15 + n // 10, 4, 0, 50_000) for n in range(40)]
    assert set(soak.grown(leaking)) == {"parent_mib", "descriptors"}
