"""What the doctor makes of a model that was tried: findings, settings to use, a page and JSON. No engine runs here."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from adapter_files import LORA_A, LORA_B
from attrs import evolve
from core.patients import CPU, GPU, PLAIN, STEPS, facts, hybrid_facts, look, machine, survey, trial, wish

import boundedgen as b
from boundedgen._core._admission import Capacity, Ledger
from boundedgen._core._events import Cause, PoolFacts
from boundedgen._doctor._advice import LEAST, advice, decoding, newness, rounded
from boundedgen._doctor._asked import USUAL_TOKENS, Asked, asked
from boundedgen._doctor._finding import Finding, Level
from boundedgen._doctor._machine_checks import Case
from boundedgen._doctor._model_checks import AFTER, BEFORE, Tried
from boundedgen._doctor._page import WIDTH, Report, as_json, as_python, page
from boundedgen._doctor._trial import Outcome, Rate, Step, Trial, how_many, longest, rate_of
from boundedgen._scheduler_config import scheduler_fields
from boundedgen._stats import ProbeResult, ProbeVerdict

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM


def tried(of: Trial | None = None, *, grammar: str | None = None, changes: Any = None, **options: Any) -> Tried:
    return Tried(wish(**options), machine(**(changes or {})), of or trial(), grammar)


def failed(error: b.BoundedGenError, cause: Cause | None = Cause.BOOT, output: str = "") -> Trial:
    return Trial(error=error, cause=cause, output=output)


REFUSED = "openvino_model.bin is cut short. Copy or export the model again. The engine said: Incorrect weights"
HUNG = b.EngineFailed("boot: not ready within 2 s")
CRASHED = b.EngineFailed("died: killed by signal 11, not by us")
FAILED_PROBE = ProbeResult(verdict=ProbeVerdict.FAILED, seconds=30.0, reason="no token within 30.0 s")
NO_PROBE = ProbeResult(verdict=ProbeVerdict.NOT_RUN, seconds=0.0, reason="no block could be set aside for it")
#: check, the trial, what is asked for, the worst level, and words of what was seen and of what to do
CASES: list[tuple[str, Trial, dict[str, Any], Level, str, str]] = [
    ("load", trial(), {}, OK, "ready after 4 s, 800 MB resident", ""),
    ("load", failed(b.ModelLoadFailed(REFUSED)), {}, PROBLEM, "refused: Incorrect weights", "Copy or export"),
    ("load", failed(HUNG), {}, PROBLEM, "not ready within 2 s", "--boot SECONDS"),
    ("load", failed(CRASHED, Cause.DIED, "a\nb\nterminate called"), {}, PROBLEM, "b / terminate called", "signal 9"),
    ("load", failed(b.DeviceUnavailable("device_lock is held"), None), {}, PROBLEM, "device_lock is held", "Mend"),
    (
        *("load", failed(b.DeviceUnavailable("There is no GPU. Install it. The engine said: none")), {}),
        *(PROBLEM, "the device cannot be used. none", "Install it."),
    ),
    ("settings", trial(facts(findings=("prefix caching was turned off",))), {}, WARNING, "prefix caching", "health()"),
    ("pools", trial(), {}, OK, "kv: 64 blocks, 32 tokens each, 2,048 tokens in all", ""),
    ("pools", trial(hybrid_facts()), {}, OK, "linear_attention: 8 blocks, one a sequence", ""),
    ("fit", trial(), {"tokens": 512}, OK, "4 sequences of 512 tokens", ""),
    ("fit", trial(facts(running_max=2)), {"tokens": 512}, OK, "as many as max_num_seqs lets in (2)", ""),
    ("fit", trial(), {"tokens": 4096}, PROBLEM, "the longest that fits has 2,049", "num_kv_blocks=128"),
    ("fit", trial(), {"tokens": 512, "sequences": 6}, WARNING, "6 are wanted", "num_kv_blocks=96, max_num_seqs=6"),
    ("fit", trial(), {"tokens": 1 << 22}, PROBLEM, "0 sequences", "only 16 GB are free"),
    ("fit", trial(hybrid_facts(linear=2, span=256)), {"tokens": 2000}, PROBLEM, "0 sequences", "attention_blocks=8"),
    ("probe", trial(), {}, OK, "one token after 20 ms", ""),
    ("probe", trial(probe=FAILED_PROBE), {}, PROBLEM, "no token within 30.0 s", "dmesg"),
    ("probe", trial(probe=NO_PROBE), {}, WARNING, "cannot be used", "num_kv_blocks"),
    ("speed", trial(), {}, OK, "4 at once: 60 tokens/s, the first after 300 ms", ""),
    ("speed", trial(rates=(Rate(1, 0.0, 0.0),)), {}, WARNING, "not two tokens", "something else"),
    ("speed", trial(error=b.EngineLost("died: signal 11")), {}, PROBLEM, "lost while it was tried", "black_box"),
    ("grammar", trial(), {}, OK, "the tokenizer loads", ""),
]


@pytest.mark.parametrize(("check", "of", "options", "level", "seen", "do"), CASES)
def test_a_model_that_was_tried_is_told_what_is_wrong_with_it_and_what_to_do(
    check: str, of: Trial, options: dict[str, Any], level: Level, seen: str, do: str
) -> None:
    findings = look(AFTER, tried(of, **options), check)
    assert max((one.level for one in findings), key=list(Level).index) is level
    assert any(seen in one.seen and do in one.do for one in findings if one.level is level), findings
    assert all(one.do for one in findings if one.level in (WARNING, PROBLEM))


@pytest.mark.parametrize(
    ("words", "level"),
    [
        ("could not be checked: it died", PROBLEM),
        ("took longer than 30 s to compile (Limits.grammar_s)", WARNING),
        (None, OK),
    ],
)
def test_a_tokenizer_that_cannot_be_loaded_is_a_problem_and_one_without_grammars_a_warning(
    words: str | None, level: Level
) -> None:
    (finding,) = look(AFTER, tried(grammar=words), "grammar")
    assert finding.level is level
    assert (words or "the tokenizer loads") in finding.seen


def test_of_an_engine_that_never_was_ready_only_that_is_told() -> None:
    case = tried(failed(HUNG), grammar="could not be checked")
    assert [check.name for check in AFTER if look(AFTER, case, check.name)] == ["load"]


@pytest.mark.parametrize(
    ("path", "options", "changes", "check", "level", "seen"),
    [
        (PLAIN, {}, {}, "model", OK, "is an OpenVINO model, "),
        ("/nowhere", {}, {}, "model", PROBLEM, "/nowhere does not exist."),
        (PLAIN, {}, {}, "room", OK, "fit into the 16 GB of memory that are free"),
        (PLAIN, {}, {"memory": 1000}, "room", WARNING, "may not fit into the 1 KB of memory"),
        (PLAIN, {"scheduler": '{"cache_size": 40}'}, {}, "room", WARNING, "42.9 GB of cache may not fit"),
        (
            *(PLAIN, {"device": "GPU"}, {"survey": survey(CPU, evolve(GPU, memory_bytes=1000))}),
            *("room", WARNING, "may not fit into the 1 KB of GPU"),
        ),
        (PLAIN, {}, {"engines": (7,)}, "lane", WARNING, "was not loaded"),
    ],
)
def test_before_a_model_is_loaded_its_files_and_the_room_for_it_are_looked_at(
    path: Any, options: dict[str, Any], changes: dict[str, Any], check: str, level: Level, seen: str
) -> None:
    findings = look(BEFORE, Case(wish(path, **options), machine(**changes)), check)
    assert any(one.level is level and seen in one.seen for one in findings), findings


def test_a_gguf_file_that_was_cut_short_is_told_before_it_is_loaded(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 60)
    (finding,) = look(BEFORE, Case(wish(cut), machine()), "model")
    assert finding.level is PROBLEM
    assert "ends within its head" in finding.seen
    assert finding.do == "Copy or download it again."


# --- what fits -------------------------------------------------------------------------------------------------------


def test_what_is_said_to_fit_is_what_the_lane_itself_lets_in() -> None:
    draw = random.Random(4)
    for _ in range(300):
        pools = (
            PoolFacts("kv", draw.randint(0, 90), draw.choice([16, 32])),
            PoolFacts("linear_attention", draw.randint(0, 20), draw.choice([None, 128])),
        )
        capacity = Capacity(pools[: draw.randint(1, 2)], draw.randint(1, 12))
        ledger, tokens = Ledger(), draw.randint(2, 900)
        ledger.open(capacity)
        prompt = draw.randint(1, tokens - 1)
        needs, inside = capacity.needs(prompt, tokens - prompt, 1), 0
        while ledger.fits(needs):
            ledger.reserve(needs)
            inside += 1
        assert how_many(capacity, tokens) == inside
        most = longest(capacity)
        assert most < 2 or how_many(capacity, most) >= 1
        assert how_many(capacity, max(2, most + 1)) == 0


def test_a_rate_counts_each_from_its_first_token() -> None:
    assert rate_of([Outcome(11, 1.0, 2.0), Outcome(21, 1.5, 2.5)]) == Rate(2, 30.0, 1.5)
    assert rate_of([Outcome(1, 1.0, 1.0), Outcome(0, None, 2.0)]) == Rate(2, 0.0, 1.0)


# --- what is recommended ---------------------------------------------------------------------------------------------


def recommended(of: Trial | None = None, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    given = advice(wish(**options), of or trial())
    assert given is not None
    scheduler, limits = ({name: one.value for name, one in part.items()} for part in (given.scheduler, given.limits))
    assert scheduler_fields(scheduler).fields == {k: v for k, v in scheduler.items() if k != "unsafe_prefix_caching"}
    b.Limits(**limits)
    return scheduler, limits


def test_as_many_are_let_in_as_fit_and_the_cache_stays_as_large_as_it_was() -> None:
    scheduler, limits = recommended(tokens=512)
    assert scheduler == {"num_kv_blocks": 64, "max_num_seqs": 4}
    assert limits["running_max"] == 4


def test_a_small_model_in_a_large_cache_is_not_given_hundreds_at_once_unless_they_are_asked_for() -> None:
    of = trial(facts(kv=4096))
    assert recommended(of, tokens=64)[1]["running_max"] == 16
    assert recommended(of, tokens=64, sequences=100)[1]["running_max"] == 100


def test_where_more_are_wanted_than_fit_the_cache_is_made_larger() -> None:
    scheduler, limits = recommended(tokens=1025, sequences=4)
    assert scheduler == {"num_kv_blocks": 128, "max_num_seqs": 4}
    assert limits["running_max"] == 4


def test_a_cache_that_nobody_gave_a_size_is_as_large_as_is_needed() -> None:
    assert recommended(scheduler=None, tokens=512, sequences=3)[0] == {"num_kv_blocks": 48, "max_num_seqs": 3}
    assert recommended(scheduler="{}", tokens=512)[0] == {"num_kv_blocks": 64, "max_num_seqs": 4}


def test_other_settings_are_kept_and_a_size_in_bytes_becomes_one_in_blocks() -> None:
    given = '{"cache_size": 2, "max_num_batched_tokens": 512, "enable_prefix_caching": true}'
    scheduler, _ = recommended(scheduler=given, tokens=512, sequences=3)
    assert scheduler == {
        "num_kv_blocks": 64,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 512,
        "enable_prefix_caching": True,
    }


def test_a_hybrid_model_has_prefix_caching_off_and_a_block_of_linear_attention_a_sequence() -> None:
    given = '{"num_kv_blocks": 64, "num_linear_attention_blocks": 8, "enable_prefix_caching": true}'
    scheduler, _ = recommended(trial(hybrid_facts()), scheduler=given, tokens=512)
    assert scheduler == {"num_kv_blocks": 64, "max_num_seqs": 4, "enable_prefix_caching": False}


def test_a_hybrid_model_whose_caching_was_insisted_on_keeps_it_and_has_blocks_for_it() -> None:
    given = '{"num_kv_blocks": 64, "enable_prefix_caching": true, "unsafe_prefix_caching": true}'
    scheduler, _ = recommended(trial(hybrid_facts(span=256)), scheduler=given, tokens=1000, sequences=4)
    assert scheduler["enable_prefix_caching"]
    assert scheduler["unsafe_prefix_caching"]
    assert (scheduler["num_kv_blocks"], scheduler["num_linear_attention_blocks"]) == (128, 16)


def test_the_limits_follow_from_what_was_measured() -> None:
    _, limits = recommended(trial(load_s=20.0, steps=(Step(256, 9.0), Step(4, 3.0), Step(4, 3.0))), tokens=512)
    assert limits["boot"] == 100  # 5 times the load
    assert limits["first_step"] == 90  # 10 times the longest of the first three
    assert limits["step"] == 30  # 10 times a step that decodes
    assert limits["step_max"] == 90  # 10 times the longest


def test_a_quick_model_on_a_processor_has_the_least_limits() -> None:
    _, limits = recommended(trial(load_s=0.4, steps=(Step(4, 0.001),) * 9), tokens=512)
    assert {name: limits[name] for name in LEAST} == LEAST


def test_on_a_gpu_what_kernels_may_take_is_never_lowered() -> None:
    _, limits = recommended(trial(load_s=0.4), device="GPU", tokens=512)
    defaults = b.Limits()
    assert [limits[name] for name in ("boot", "first_step", "new_shape")] == [
        *(defaults.boot, defaults.first_step, defaults.new_shape)
    ]
    assert recommended(trial(load_s=100.0), device="GPU", tokens=512)[1]["boot"] == 500


def test_the_cap_of_a_step_leaves_room_for_the_fullest_one_in_the_longest_context() -> None:
    _, limits = recommended(scheduler='{"num_kv_blocks": 64, "max_num_batched_tokens": 4096}', tokens=100_000)
    assert limits["step_max"] >= 10 + 0.02 * 4096 + 2e-6 * 4096 * 100_000


def test_first_steps_are_told_from_those_that_follow() -> None:
    assert newness(STEPS) == pytest.approx(1.0)  # of 256 tokens: 2 s, then 1 s
    assert decoding(STEPS) == pytest.approx(0.05)
    assert (newness(()), decoding(())) == (0.0, 0.0)
    assert [rounded(seconds) for seconds in (0.0, 0.1, 5.0, 17.2, 101.0)] == [0.0, 5.0, 5.0, 20.0, 110.0]


def test_nothing_is_recommended_of_an_engine_that_never_was_ready() -> None:
    assert advice(wish(), failed(HUNG)) is None


# --- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"scheduler": '{"nonsense": 1}'}, "nonsense"),
        ({"scheduler": '{"num_kv_blocks": "many"}'}, "num_kv_blocks"),
        ({"scheduler": "{"}, "--scheduler is not JSON"),
        ({"scheduler": "/nowhere.json"}, "nor a file"),
        ({"scheduler": str(PLAIN / "config.json")}, "scheduler_config has no field"),
        ({"properties": "[1]"}, "nor a file"),
        ({"tokens": 1}, "--max-tokens is 1"),
        ({"sequences": 0}, "--sequences is 0"),
        ({"device": ""}, "--device"),
        ({"boot": -1.0}, "Limits.boot"),
    ],
)
def test_what_is_asked_wrongly_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises((TypeError, ValueError), match=named):
        asked(str(PLAIN), **options)


def test_settings_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    file.write_text('{"num_kv_blocks": 7}')
    assert asked(str(PLAIN), scheduler=str(file)).scheduler.fields == {"num_kv_blocks": 7}
    file.write_text("[7]")
    with pytest.raises(ValueError, match="must be a JSON object"):
        asked(str(PLAIN), scheduler=str(file))


def test_a_sequence_is_no_longer_than_the_model_was_made_for(tmp_path: Path) -> None:
    assert asked(None).tokens == asked(str(tmp_path)).tokens == USUAL_TOKENS
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')
    assert asked(str(tmp_path)).tokens == 512
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 100000}}')
    assert asked(str(tmp_path)).tokens == USUAL_TOKENS
    assert asked(str(tmp_path), tokens=100_000).tokens == 100_000
    for garbage in ('{"max_position_embeddings": 1e999}', '{"max_position_embeddings": [7]}', "[" * 100_000, "[7]"):
        (tmp_path / "config.json").write_text(garbage)
        assert asked(str(tmp_path)).tokens == USUAL_TOKENS


# --- how it is shown -------------------------------------------------------------------------------------------------


def report(request: Asked | None = None, of: Trial | None = None, **options: Any) -> Report:
    request, of = request or wish(**options), of or trial()
    machine_of, model_of = (Finding(OK, "fine", "", "python"),), tuple(look(AFTER, tried(of), "fit"))
    return Report(asked=request, machine=machine_of, model=model_of, trial=of, recommended=advice(request, of))


LONG = " ".join(["a sentence that goes on"] * 20)


def test_a_page_has_80_columns_whatever_is_said() -> None:
    findings = tuple(Finding(level, LONG, LONG, "processors") for level in Level)
    shown = page(evolve(report(tokens=512), machine=findings, model=findings))
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert shown.count("→") == 8
    assert "WARNING  processors" in shown


def test_a_path_that_is_longer_than_a_line_stays_whole() -> None:
    path = "/" + "x" * 100
    assert path in page(evolve(report(), machine=(Finding(OK, f"{path} is there", "", "temp"),)))


def test_the_page_says_whether_the_lane_can_be_used_and_so_does_the_status() -> None:
    whole = evolve(report(tokens=512), model=())
    assert page(whole).endswith("\nUsable: all is well.\n")
    assert page(evolve(whole, trial=None)).endswith("\nNot tried: all is well.\n")
    warned = evolve(whole, machine=(Finding(WARNING, "hm", "do", "temp"),))
    assert (page(warned).splitlines()[-1], warned.status) == ("Usable: 1 warning.", 0)
    broken = evolve(warned, model=(Finding(PROBLEM, "no", "do", "load"),) * 2)
    assert (page(broken).splitlines()[-1], broken.status) == ("Not usable: 2 problems, 1 warning.", 1)


def test_without_a_model_the_page_is_about_the_machine() -> None:
    shown = page(Report(asked=wish(None), machine=(Finding(OK, "fine", "", "python"),)))
    assert "device CPU" in shown
    assert "The model" not in shown
    assert "Recommended" not in shown


@pytest.mark.parametrize("of", [trial(), trial(hybrid_facts())], ids=["plain", "hybrid"])
def test_what_is_recommended_can_be_pasted(of: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    monkeypatch.setattr(b, "BoundedPipeline", lambda *args, **kwargs: made.append((args, kwargs)))
    request = wish(
        tokens=512, properties='{"CACHE_DIR": "/c"}', device_lock="/run/lock", adapters='{"a.safetensors": 0.5}'
    )
    given = advice(request, of)
    assert given is not None
    text = as_python(request, given)
    exec(compile(text, "pasted", "exec"), {})
    ((args, kwargs),) = made
    assert args == (str(PLAIN), {name: one.value for name, one in given.scheduler.items()}, "CPU", {"CACHE_DIR": "/c"})
    assert kwargs["limits"] == b.Limits(**{name: one.value for name, one in given.limits.items()})
    assert (kwargs["device_lock"], kwargs["adapters"]) == ("/run/lock", {"a.safetensors": 0.5})
    assert max(map(len, text.splitlines())) <= WIDTH + 20  # the path of the model is as long as it is


def test_a_secret_among_the_properties_is_not_shown() -> None:
    shown = json.dumps(as_json(report(properties='{"MODEL_KEY": "hunter2"}'))) + page(
        report(properties='{"MODEL_KEY": "hunter2"}')
    )
    assert "hunter2" not in shown


NAMES = {"schema", "boundedgen", "model", "device", "status", "findings", "measured", "recommended"}
MEASURED = {
    *("load_s", "hybrid", "block_size", "pools", "cache_bytes", "engine_rss_bytes", "tokens", "sequences_that_fit"),
    *("longest_tokens", "probe_s", "rates", "steps", "longest_step_s"),
}


def test_the_json_has_the_names_that_are_documented() -> None:
    told = json.loads(json.dumps(as_json(report(tokens=512)), allow_nan=False))
    assert told["schema"] == 1
    assert set(told) == NAMES
    assert set(told["measured"]) == MEASURED
    assert set(told["measured"]["pools"][0]) == {"name", "blocks_total", "tokens_per_block"}
    assert set(told["measured"]["rates"][0]) == {"sequences", "tokens_per_s", "first_token_s"}
    assert set(told["recommended"]) == {"scheduler_config", "limits", "why", "python"}
    assert all(set(one) == {"check", "level", "seen", "do"} for one in told["findings"])
    text = (Path(__file__).resolve().parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    names = {*NAMES, *MEASURED, *told["measured"]["pools"][0], *told["recommended"], *told["findings"][0]}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_the_json_of_what_was_not_measured_says_so_with_null() -> None:
    alone = as_json(Report(asked=wish(None), machine=()))
    assert (alone["model"], alone["measured"], alone["recommended"], alone["status"]) == (None, None, None, 0)
    assert as_json(report(of=failed(HUNG)))["measured"] is None


@pytest.mark.parametrize(
    ("given", "level", "seen"),
    [
        (LORA_A, OK, "lora_a.safetensors at 1"),
        (json.dumps({LORA_A: 0.8, LORA_B: -1}), OK, "lora_a.safetensors at 0.8, lora_b.safetensors at -1"),
        ("/nowhere.safetensors", PROBLEM, "adapter /nowhere.safetensors cannot be read"),
        (json.dumps({LORA_A: 0}), PROBLEM, "it changes nothing"),
        (json.dumps({LORA_A: "much"}), PROBLEM, "must be a number"),
    ],
)
def test_adapters_are_looked_at_before_anything_is_loaded(given: str, level: Level, seen: str) -> None:
    (finding,) = look(BEFORE, Case(wish(adapters=given), machine()), "adapters")
    assert (finding.level, seen in finding.seen) == (level, True), finding


def test_without_adapters_nothing_is_said_of_them() -> None:
    assert look(BEFORE, Case(wish(), machine()), "adapters") == []
