"""The doctor on the real engine and this machine: as a command, on plain and hybrid models, whole and broken ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from core.patients import levels, machine, of, wish
from genai.lanes import HYBRID, PLAIN, lane
from process.lanes import engine_pid

import boundedgen as b
from boundedgen.__main__ import main
from boundedgen._doctor import _examination
from boundedgen._doctor._examination import compiled, examination
from boundedgen._doctor._finding import Level
from boundedgen._doctor._page import WIDTH, Report, as_python
from boundedgen._doctor._trial import how_many
from boundedgen._engine._devices import Host
from boundedgen._engine._neighbours import engines

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM


def doctor(*arguments: str) -> tuple[int, str, str]:
    """Exit status, output, errors. `--beside`: the engines of other tests are no lanes."""
    command = [sys.executable, "-m", "boundedgen", "doctor", "--beside", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def round_of(model: str | Path, **options: Any) -> Report:
    """A real load and real measurements, on a machine that is made up: asking this one takes seconds."""
    return examination(wish(model, **{"tokens": 200, **options}), machine=machine(), grammar=lambda asked: None)


def test_the_command_loads_a_model_and_prints_a_page_whose_last_part_can_be_pasted() -> None:
    status, shown, errors = doctor(
        PLAIN, "--device", "CPU", "--scheduler", '{"num_kv_blocks": 64}', "--max-tokens", "200"
    )
    assert (status, errors) == (0, "")
    assert [line for line in shown.splitlines() if len(line) > WIDTH and "/" not in line] == []
    for words in ("ready after", "kv: 64 blocks, 32 tokens each", "9 sequences of 200 tokens", "one token after"):
        assert words in " ".join(shown.split()), shown
    pasted = shown[shown.index("    import boundedgen as b") : shown.rindex("    )\n") + len("    )\n")]
    compile("\n".join(line[4:] for line in pasted.splitlines()), "pasted", "exec")


def test_the_machine_alone_is_told_as_json() -> None:
    status, shown, errors = doctor("--device", "CPU", "--json")
    told = json.loads(shown)
    assert (status, told["status"], errors) == (0, 0, "")
    assert (told["model"], told["measured"]) == (None, None)
    checks = {one["check"]: one["level"] for one in told["findings"]}
    assert (checks["versions"], checks["kernel"], checks["device"]) == ("ok", "ok", "ok")


@pytest.mark.skipif(bool(Host().render_nodes()), reason="this machine has a render node")
def test_a_gpu_that_is_not_there_is_a_problem_with_a_remedy() -> None:
    status, shown, _ = doctor("--json")
    (first, *_) = (one for one in json.loads(shown)["findings"] if one["check"] == "device")
    assert (status, first["level"]) == (1, "problem")
    assert "The GPU cannot be used" in first["seen"]
    assert "--device CPU" in first["do"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--scheduler", '{"nonsense": 1}'],
        ["--scheduler", "{"],
        ["--max-tokens", "1"],
        ["--sequences", "many"],
        ["one", "two"],
        ["--nonsense"],
    ],
)
def test_a_doctor_that_is_called_wrongly_says_so_and_looks_at_nothing(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        sys.exit(main(["doctor", *arguments]))
    assert caught.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "boundedgen" in shown.err


def test_a_doctor_that_is_interrupted_says_so_by_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_examination, "examination", interrupted)
    assert main(["doctor", "--device", "CPU"]) == 130


def test_a_hybrid_model_is_tried_with_both_its_pools_and_advised_without_prefix_caching() -> None:
    given = '{"num_kv_blocks": 64, "max_num_seqs": 4, "enable_prefix_caching": true}'
    report = round_of(HYBRID, scheduler=given)
    assert report.status == 0
    assert [one.seen.partition(":")[0] for one in of(report.model, "pools")[:2]] == ["kv", "linear_attention"]
    assert "turned off" in of(report.model, "settings")[0].seen
    assert report.trial is not None
    assert report.trial.facts is not None
    assert report.trial.facts.hybrid
    assert report.recommended is not None
    assert {name: one.value for name, one in report.recommended.scheduler.items()} == {
        "num_kv_blocks": 64,
        "max_num_seqs": 4,
        "enable_prefix_caching": False,
    }


def test_what_the_doctor_recommends_makes_a_lane_that_holds_what_it_said() -> None:
    report = round_of(PLAIN, sequences=12)
    trial, given = report.trial, report.recommended
    assert trial is not None
    assert trial.capacity is not None
    assert given is not None
    assert how_many(trial.capacity, 200) == 9
    assert levels(report.model, "fit") == [WARNING]
    scope: dict[str, Any] = {}
    exec(as_python(report.asked, given), scope)
    with scope["pipeline"] as pipeline:
        assert pipeline.stats().blocks_total == 12 * 7  # of 199 tokens, which is what prompt and answer compute
        generations = [pipeline.submit([5] * 100, max_new_tokens=100, ignore_eos=True) for _ in range(12)]
        assert [generation.result(30).completion_tokens for generation in generations] == [100] * 12
        assert pipeline.health().findings == ()


def test_a_model_that_cannot_fit_is_a_problem_that_says_what_it_takes() -> None:
    report = round_of(PLAIN, scheduler='{"num_kv_blocks": 2}', tokens=4096)
    (finding,) = of(report.model, "fit")
    assert (finding.level, report.status) == (PROBLEM, 1)
    assert "the longest that fits has 65" in finding.seen
    assert "num_kv_blocks=128" in finding.do


def test_a_model_that_was_cut_short_is_a_problem_in_the_engines_words(tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(PLAIN, cut)
    weights = cut / "openvino_model.bin"
    weights.write_bytes(weights.read_bytes()[:1000])
    report = round_of(cut)
    (finding,) = of(report.model, "load")
    assert (finding.level, report.status) == (PROBLEM, 1)
    assert "cut short" in finding.do
    assert "ncorrect weights" in finding.seen


def test_the_tokenizer_is_tried_in_a_process_of_its_own(tmp_path: Path) -> None:
    assert compiled(wish(PLAIN)) is None
    broken = tmp_path / "broken"
    shutil.copytree(PLAIN, broken)
    (broken / "openvino_tokenizer.xml").write_text("<net")
    words = compiled(wish(broken))
    assert words is not None
    assert words.startswith("could not be checked")


def test_an_engine_that_runs_is_seen_in_the_list_of_processes() -> None:
    with lane(PLAIN) as pipeline:
        assert engine_pid(pipeline) in engines()
    assert isinstance(pipeline, b.BoundedPipeline)
