"""A pipeline that cannot work says what is wrong with its arguments, and does not blame the engine."""

import contextlib
import logging
from pathlib import Path

import pytest
from process.lanes import Traces, no_more_than, until

import boundedgen as b


def test_a_wrong_path_is_named_and_the_log_speaks_of_no_kill(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    before = Traces.now()
    caplog.set_level(logging.INFO, "boundedgen")
    with contextlib.closing(b.BoundedPipeline(tmp_path / "nowhere", None, "CPU")) as pipeline:
        until(lambda: pipeline.health().state is b.HealthState.FAILED)
        error = pipeline.health().error
        assert isinstance(error, b.ModelLoadFailed)
        assert f"models_path {tmp_path / 'nowhere'} does not exist" in str(error)
        with pytest.raises(b.ModelLoadFailed, match="models_path"):
            pipeline.submit("x")
    until(lambda: "is closed" in caplog.text)
    assert "did not become ready: models_path" in caplog.text
    assert "killed" not in caplog.text
    no_more_than(before)
