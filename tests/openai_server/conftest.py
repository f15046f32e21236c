"""One server for all tests of this folder that break nothing, and one that is full at once."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

if any(importlib.util.find_spec(name) is None for name in ("openai", "uvicorn", "starlette", "prometheus_client")):
    pytest.skip("the server's tests want openai, uvicorn, starlette, prometheus-client", allow_module_level=True)

from openai_server.served import Served, served


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
