"""Ray Serve on a small local cluster. `nox -s ray` runs these; they are skipped where Ray is not installed."""

from collections.abc import Iterator
from typing import Any

import pytest
from ray_serve.cluster import cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of Ray's own code are none of ours."""
    for item in items:
        if "ray_serve" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed: nox -s ray installs it")
    with cluster() as started:
        yield started
