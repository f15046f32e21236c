"""Lanes that the tests of a module share."""

from collections.abc import Iterator

import pytest
from genai.lanes import lane

import boundedgen as bg


@pytest.fixture(scope="module")
def one_slot() -> Iterator[bg.BoundedPipeline]:
    with lane(limits=bg.Limits(running_max=1)) as opened:
        yield opened


@pytest.fixture(scope="module")
def pipeline() -> Iterator[bg.BoundedPipeline]:
    with lane(scheduler={"num_kv_blocks": 128}, limits=bg.Limits(running_max=6)) as opened:
        yield opened
