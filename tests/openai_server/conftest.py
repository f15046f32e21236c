"""One server for all tests of this folder that break nothing, and one that is full at once."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator

import pytest

if any(importlib.util.find_spec(name) is None for name in ("openai", "uvicorn", "starlette", "prometheus_client")):
    pytest.skip("the server's tests want openai, uvicorn, starlette, prometheus-client", allow_module_level=True)

from openai_server.lanes import ADMIN, KEYS, OWNERS
from openai_server.served import PLAIN, Served, served


@pytest.fixture(scope="session")
def plain_server() -> Iterator[Served]:
    with served(limits={"lease_ttl_max": 30.0}) as server:
        yield server


@pytest.fixture
def server(plain_server: Served) -> Iterator[Served]:
    """Nothing is left in it by the test."""
    yield plain_server
    plain_server.at_rest()


@pytest.fixture(scope="session")
def narrow_server() -> Iterator[Served]:
    """One runs, one waits."""
    with served(limits={"running_max": 1, "waiting_max": 1}, scheduler={"max_num_seqs": 1}) as server:
        yield server


@pytest.fixture
def narrow(narrow_server: Served) -> Iterator[Served]:
    yield narrow_server
    narrow_server.at_rest()


@pytest.fixture(scope="session")
def open_lane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A hybrid lane of four slots with an admin token, whose engine tests stop and kill."""
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    keys.write_text(json.dumps(OWNERS))
    with served(
        PLAIN.with_name("hybrid"),
        scheduler={"max_num_seqs": 4},
        limits={"running_max": 4, "lease_ttl_max": 60.0},
        environment={KEYS: str(keys), "BOUNDEDGEN_ADMIN_TOKEN": ADMIN},
        faults=True,
    ) as server:
        yield server


@pytest.fixture
def lane(open_lane: Served) -> Iterator[Served]:
    """Ready and empty, before and after."""
    open_lane.wait("/readyz", 200)
    open_lane.at_rest()
    yield open_lane
    open_lane.wait("/readyz", 200)
    open_lane.at_rest()
