"""Each line of the log has an event, and the fields that docs/on-call.md says that it has, and no others."""

import ast
import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import tenacity
from core.hand_engine import HandEngine, lane, until
from test_architecture import MODULES

import boundedgen as b
from boundedgen import _aside
from boundedgen._flow import Flow
from boundedgen._following import Tell
from boundedgen._journal import Journal
from boundedgen.systemd import Notifier
from boundedgen.testing import Fault, SimModel, Simulation

PAGE = Path(__file__).resolve().parents[2] / "docs" / "on-call.md"
ROW = re.compile(r"^\| (?P<line>.*) \| (?P<levels>[A-Z, ]+) \| `(?P<event>[a-z_]+)` \|(?P<fields>.*)\|$", re.MULTILINE)
PLAIN = vars(logging.makeLogRecord({})).keys() | {"message", "asctime", "taskName"}
NOW = b.RestartPolicy(wait=tenacity.wait_none(), resume="continue")
MODEL = SimModel(boot_s=1, step_s=0.5, token_s=0)
RATES = dict.fromkeys(("first_step", "new_shape", "step_per_token", "step_per_attention"), 0)


def documented() -> dict[str, tuple[set[str], set[str]]]:
    """Levels and fields, by event."""
    rows = ROW.finditer(PAGE.read_text(encoding="utf-8"))
    return {row["event"]: (set(row["levels"].split(", ")), set(re.findall(r"`(\w+)`", row["fields"]))) for row in rows}


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in PLAIN}


@pytest.fixture(autouse=True)
def _everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "boundedgen")


# --- every line ------------------------------------------------------------------------------------------------------


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Module, method and call of every line that is logged."""
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of = ast.unparse(node.func.value)
                if of == "logger" and node.func.attr != "getEffectiveLevel":
                    yield module, node.func.attr, node


def test_each_module_has_a_logger_of_its_own_name_and_every_line_has_fields() -> None:
    found = list(calls())
    assert len(found) > 10
    for module, _, call in found:
        assert "extra" in {keyword.arg for keyword in call.keywords}, f"{module}: {ast.unparse(call)}"
    for module in {module for module, _, _ in found}:
        text = MODULES[module].read_text(encoding="utf-8")
        assert "logger = logging.getLogger(__name__)\n" in text, module
    quiet = [module for module, path in MODULES.items() if "NullHandler" in path.read_text(encoding="utf-8")]
    assert quiet == ["boundedgen.__main__"], "what is lost is seen on stderr, unless a server says otherwise"


def test_the_page_names_every_event_and_no_other() -> None:
    told = set()
    for path in MODULES.values():
        text = path.read_text(encoding="utf-8")
        told |= set(re.findall(r'"event": "(\w+)"', text))
        told |= set(re.findall(r'log\(\s*(?:\*\()?logging\.[A-Z]+, "(\w+)"', text))
        told |= set(re.findall(r'"(\w+)" if orderly else "(\w+)"', text)[0]) if "if orderly else" in text else set()
    told |= {"lane_state"}
    assert told - {"event"} == documented().keys()


# --- what each of them has -------------------------------------------------------------------------------------------


def sequences() -> None:
    """Submitted, admitted, ended; the engine's start and end."""
    with Simulation(model=MODEL) as sim:
        sim.pipeline.generate("hello", max_new_tokens=3, label="a job", owner="me")


def losses() -> None:
    """An engine that hangs, and one that goes on; and the same sequence again."""
    with Simulation(model=MODEL, restart=NOW, faults={i: [Fault(kind="crash", at_step=2)] for i in (1, 2)}) as sim:
        culprit = sim.pipeline.submit("hello", max_new_tokens=5)
        with pytest.raises(b.GenerationQuarantined):
            culprit.result()


def probes() -> None:
    with Simulation(model=MODEL, limits=b.Limits(step=20, probe_idle=60, **RATES)) as sim:
        sim.inject(Fault(kind="slow", seconds=14))
        sim.advance(250)


def recycling() -> None:
    limits = b.Limits(engine_age=60, recycle_drain=5)
    with Simulation(model=MODEL, limits=limits, bounds=b.Bounds(total=10_000)) as sim:
        long = sim.pipeline.submit("hello", max_new_tokens=1000)
        sim.advance(130)
        long.cancel()
        sim.advance(5)


def journal() -> None:
    """What takes a machine that stands still, or handlers that do."""
    written = Journal(lambda work: work(), "model")
    written.was_ready = True
    written.woke(1.0, 3.0)
    taken = iter([False, True, True])

    def run(work: Callable[[], None]) -> bool:
        work()
        return next(taken)

    slow = Journal(run, "model")
    slow.spawned(1, None)
    slow.spawned(2, None)


def findings() -> None:
    engine = HandEngine()
    engine.facts = attrs.evolve(engine.facts, findings=("prefix caching is off",))
    with lane(engine):
        pass


def failed_driver() -> None:
    with lane() as (pipeline, _):
        generation = pipeline.submit("x", max_new_tokens=8)
        pipeline._driver.governor.tick = lambda now: 1 / 0  # type: ignore[assignment, method-assign]
        with pytest.raises(b.GenerationInternalError):
            generation.result(10)


def foreign_code() -> None:
    """A strategy, a follower and what is done beside the driver, all of which raise."""

    def broken(_: object) -> float:
        raise ZeroDivisionError("a strategy")

    def follower(flow: Flow) -> Tell:
        raise ZeroDivisionError("a follower")

    with lane(restart=b.RestartPolicy(wait=broken)) as (pipeline, engine):
        pipeline._serving.follow(follower)
        pipeline.submit("x", max_new_tokens=8)
        pipeline._driver.beside(lambda: 1 / 0)
        engine.die()
        until(lambda: len(engine.links) == 2)
        pipeline.wait_ready(20)


def untold_systemd() -> None:
    os.environ["NOTIFY_SOCKET"] = "nowhere"
    try:
        with lane() as (pipeline, _):
            Notifier(pipeline)
    finally:
        del os.environ["NOTIFY_SOCKET"]


SCENES = (sequences, losses, probes, recycling, journal, findings, failed_driver, foreign_code, untold_systemd)
#: They have no `model`.
OF_NO_LANE = {"systemd_untold", "work_failed", "follower_failed"}
#: Tested where what they tell of is: tests/core/test_black_box.py, tests/core/test_lexicon.py, tests/exporters.
ELSEWHERE = {
    "incident_kept",
    "incident_lost",
    "black_box_failed",
    "tokenizer_untried",
    "metrics_failed",
    "stats_failed",
}


def test_the_fields_of_every_line_are_those_of_the_page(caplog: pytest.LogCaptureFixture) -> None:
    known, seen = documented(), set()
    for scene in SCENES:
        scene()
    for record in caplog.records:
        if not record.name.startswith("boundedgen"):
            continue
        told = fields(record)
        event = told.pop("event")
        levels, names = known[event]
        assert record.levelname in levels, record.getMessage()
        assert told.keys() - {"model"} == names, event
        assert ("model" in told) == (event not in OF_NO_LANE), event
        seen.add(event)
    assert seen == known.keys() - ELSEWHERE


def test_an_incident_is_named_by_a_field(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with lane(black_box=tmp_path, restart=NOW) as (pipeline, engine):
        engine.die()
        until(lambda: len(engine.links) == 2)
        pipeline.wait_ready(20)
        until(lambda: "what is known" in caplog.text)
    (kept,) = (fields(record) for record in caplog.records if record.__dict__.get("event") == "incident_kept")
    assert Path(kept.pop("incident")).parent == tmp_path
    assert kept == {"event": "incident_kept", "incarnation": 1, "model": ""}
    assert documented()["incident_kept"] == ({"WARNING"}, {"incarnation", "incident"})


# --- what the numbers are --------------------------------------------------------------------------------------------


def test_a_kill_carries_what_stood_inside_before_it(caplog: pytest.LogCaptureFixture) -> None:
    limits = b.Limits(step=2, running_max=2, **RATES)
    with contextlib.closing(Simulation(model=MODEL, limits=limits, restart=NOW)) as sim:
        sim.pipeline.wait_ready()
        held = [sim.pipeline.submit("hello", max_new_tokens=100) for _ in range(3)]
        sim.advance(3)
        before = sim.pipeline.stats()
        sim.inject(Fault(kind="wedge"))
        sim.run_until(lambda: sim.pipeline.stats().incarnation == 2)
        del held
    (lost,) = (record for record in caplog.records if record.__dict__.get("event") == "engine_lost")
    told = fields(lost)
    assert (told["incarnation"], told["cause"], told["engine_pid"]) == (1, "step", None)
    snapshot = told["snapshot"]
    assert (snapshot["running"], snapshot["waiting"], snapshot["stopping"]) == (2, 1, 0)
    assert snapshot["step_current_s"] == pytest.approx(snapshot["step_budget_s"]) == 2.5
    assert snapshot["oldest_waiting_s"] >= 3
    assert snapshot["submitted_total"] == 3
    assert snapshot.keys() <= {field.name for field in attrs.fields(b.SchedulerStats)}, "under the same names"
    free = f"blocks_free {before.blocks_free}, blocks_total {before.blocks_total}"
    assert f"; before that: running 2, stopping 0, waiting 1, {free}" in lost.getMessage()


def test_the_end_of_a_sequence_has_the_numbers_of_its_completion(caplog: pytest.LogCaptureFixture) -> None:
    with Simulation(model=MODEL) as sim:
        answer = sim.pipeline.generate("hello", max_new_tokens=3, label="a job", owner="me")
        with pytest.raises(b.DeadlineExceeded):
            sim.pipeline.generate("hello", max_new_tokens=30, bounds=b.Bounds(total=2))
        sim.pipeline.probe()
    first, second = (fields(r) for r in caplog.records if r.__dict__.get("event") == "generation_ended")
    assert first == {
        "event": "generation_ended",
        "model": "",
        "generation": answer.id,
        "label": "a job",
        "owner": "me",
        "reason": "length",
        "bound": "",
        "detail": "",
        "prompt_tokens": answer.prompt_tokens,
        "output_tokens": 3,
        "queued_s": answer.queued_s,
        "first_token_s": answer.first_token_s,
        "total_s": answer.total_s,
        "incarnations": (1,),
        "resumed": 0,
    }
    assert (second["reason"], second["bound"]) == ("deadline", "total")
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert lines[2] == "generation 1 ('a job') ended length after 1.500 s, with 3 new tokens"


def test_with_debug_off_a_sequence_costs_three_looks_and_no_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at its submission, one at its admission, one at its end; none at a token."""
    caplog.set_level(logging.INFO, "boundedgen")
    looks = []
    logger = logging.getLogger("boundedgen._journal")

    def level() -> int:
        looks.append(1)
        return logging.INFO

    with Simulation(model=MODEL) as sim:
        sim.advance(1)
        monkeypatch.setattr(logger, "getEffectiveLevel", level)
        sim.pipeline.generate("hello", max_new_tokens=40)
        monkeypatch.undo()
    assert len(looks) == 3
    assert "generation" not in caplog.text


def test_lines_that_find_too_many_before_them_are_dropped_and_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_aside, "WAITING_MOST", 10)
    with lane() as (pipeline, _):
        blocked = [False]

        def block() -> None:
            blocked[0] = True
            until(lambda: not blocked[0])

        pipeline._driver.beside(block)
        until(lambda: blocked[0])
        for _ in range(20):
            pipeline.submit("x", max_new_tokens=8).cancel()
        until(lambda: pipeline.stats().finished_total["cancelled"] == 20)
        blocked[0] = False
        until(lambda: pipeline._driver.beside(bool))
        pipeline.submit("x", max_new_tokens=8).cancel()
        until(lambda: "lines_dropped" in {record.__dict__.get("event") for record in caplog.records})
    counts = [fields(record)["count"] for record in caplog.records if record.__dict__.get("event") == "lines_dropped"]
    assert counts[0] >= 30, "two or three lines for each of them"
