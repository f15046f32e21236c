"""Generation configurations: what a caller may ask, and what goes to the engine."""

import json
import sys
from collections.abc import Mapping
from fractions import Fraction
from subprocess import run
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boundedgen import _generation_fields
from boundedgen._bounds import Limits
from boundedgen._core._sequences import Resume
from boundedgen._engine._releases import Release
from boundedgen._errors import InvalidRequest
from boundedgen._generation_config import (
    generation_fields,
    messages,
    results_of,
    resume_of,
    sequences_of,
    streams,
    token_ids,
    wants_chat_template,
)

MODEL = {
    "_from_model_config": True,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "transformers_version": "4",
}
VOCABULARY = 259
LIMITS = Limits(max_new_tokens=1000)
SECRET = "correct horse battery staple"


def fields(
    config: object = None,
    *,
    defaults: Mapping[str, Any] = MODEL,
    limits: Limits = LIMITS,
    prompt_tokens: int = 10,
    seed: int = 77,
    **keywords: Any,
) -> dict[str, Any]:
    return generation_fields(
        config,
        keywords,
        defaults=defaults,
        limits=limits,
        prompt_tokens=prompt_tokens,
        vocab_size=VOCABULARY,
        draw_seed=lambda: seed,
    )


def test_importing_the_door_does_not_import_the_engine() -> None:
    modules = ("_text", "_prompt", "_generation_config", "_generation_fields", "_scheduler_config", "_grammar")
    code = "; ".join(f"import boundedgen.{m}" for m in modules)
    code += "; import sys; sys.exit(any(m.startswith('openvino') for m in sys.modules))"
    assert run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


# --- length ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "length"),
    [
        ({}, 512),
        ({"max_new_tokens": None}, 512),
        ({"max_new_tokens": 7}, 7),
        ({"max_new_tokens": 5000}, 1000),
        ({"max_new_tokens": 2**63 - 1}, 1000),
        ({"max_length": 15}, 5),
        ({"max_length": 5000}, 1000),
        ({"max_length": 15, "max_new_tokens": 7}, 7),
    ],
)
def test_the_length_is_always_set_and_never_above_the_limit(given: Mapping[str, Any], length: int) -> None:
    assert fields(given)["max_new_tokens"] == length
    assert fields(**given)["max_new_tokens"] == length
    assert "max_length" not in fields(given)


def test_a_nearer_max_length_wins_over_a_farther_max_new_tokens() -> None:
    assert fields({"max_new_tokens": 7}, max_length=13)["max_new_tokens"] == 3
    assert fields({"max_length": 13}, max_new_tokens=7)["max_new_tokens"] == 7


@pytest.mark.parametrize("whole", [1, 9, 10])
def test_a_max_length_that_leaves_no_room_is_refused(whole: int) -> None:
    with pytest.raises(InvalidRequest, match=f"max_length is {whole}.*prompt, which has 10 tokens"):
        fields(max_length=whole)


def test_the_models_max_length_is_the_size_of_its_context_and_asks_for_nothing() -> None:
    assert fields(defaults={"max_length": 4096})["max_new_tokens"] == 512
    assert fields(defaults={"max_length": 2})["max_new_tokens"] == 512


# --- precedence --------------------------------------------------------------------------------------------------


def test_keywords_win_over_the_mapping_and_the_mapping_over_the_model() -> None:
    model = {"temperature": 0.125, "top_p": 0.125, "top_k": 1, "do_sample": True}
    got = fields({"temperature": 0.25, "top_p": 0.25}, defaults=model, temperature=0.5)
    assert (got["temperature"], got["top_p"], got["top_k"]) == (0.5, 0.25, 1)


def test_what_is_unknown_or_unusable_in_the_models_file_refuses_nobody() -> None:
    model = {"temperature": 0.0, "top_p": 7, "cache_implementation": "hybrid", "eos_token_id": [10**9], "top_k": None}
    assert fields(defaults=model) == {"temperature": 0.0, "max_new_tokens": 512}


@pytest.mark.parametrize(
    ("model", "given", "stops", "eos"),
    [
        ({"eos_token_id": 2}, {}, [2], 2),
        ({"eos_token_id": [9, 2]}, {}, [2, 9], 2),
        ({"eos_token_id": 2}, {"stop_token_ids": {5}}, [2, 5], 2),
        ({"eos_token_id": 2}, {"eos_token_id": 7}, [7], 7),
        ({"eos_token_id": [2, 9]}, {"eos_token_id": 7, "stop_token_ids": [8]}, [7, 8], 7),
        ({}, {"stop_token_ids": (5, 5)}, [5], None),
        ({}, {}, None, None),
    ],
)
def test_the_models_end_holds_unless_another_is_given_and_stop_ids_come_on_top(
    model: Mapping[str, Any], given: Mapping[str, Any], stops: list[int] | None, eos: int | None
) -> None:
    got = fields(given, defaults=model)
    assert (got.get("stop_token_ids"), got.get("eos_token_id")) == (stops, eos)


# --- seeds -------------------------------------------------------------------------------------------------------


def test_sampling_without_a_seed_gets_one_and_a_given_one_is_kept() -> None:
    assert fields(do_sample=True)["rng_seed"] == 77
    assert fields(do_sample=True, rng_seed=0)["rng_seed"] == 0
    assert fields({"do_sample": True, "rng_seed": 5})["rng_seed"] == 5


def test_no_seed_is_drawn_without_sampling() -> None:
    assert "rng_seed" not in fields()


# --- refusals ----------------------------------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_new_tokens": 0}, "max_new_tokens is 0; it must be a whole number, at least 1"),
    ({"max_new_tokens": -1}, "max_new_tokens is -1"),
    ({"max_new_tokens": 7.0}, "max_new_tokens must be a whole number"),
    ({"max_new_tokens": True}, "max_new_tokens"),
    ({"max_new_tokens": "7"}, "max_new_tokens"),
    ({"min_new_tokens": 600}, "min_new_tokens is 600, more than max_new_tokens"),
    ({"temperature": 0, "do_sample": True}, "temperature is 0 with do_sample=True"),
    ({"temperature": 1e-50, "do_sample": True}, "temperature is 0 with do_sample=True"),
    ({"temperature": -1.0}, "temperature is -1.0"),
    ({"temperature": float("nan")}, "temperature is nan; it must be a finite number"),
    ({"temperature": float("inf")}, "temperature is inf"),
    ({"temperature": 10**400}, "temperature"),
    ({"temperature": "hot"}, "temperature must be a finite number"),
    ({"top_p": 0.0}, "top_p is 0.0; it must be a finite number, more than 0 and at most 1"),
    ({"top_p": 1.01}, "top_p"),
    ({"min_p": 1.0}, "min_p"),
    ({"top_k": -1}, "top_k"),
    ({"repetition_penalty": 0.0}, "repetition_penalty"),
    ({"repetition_penalty": 1e39}, "repetition_penalty"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"num_return_sequences": 0}, "num_return_sequences is 0"),
    ({"num_return_sequences": 2}, "num_return_sequences is 2, but greedy decoding has one result"),
    ({"num_return_sequences": 17, "do_sample": True}, r"17 sequences .*Limits.sequences_max"),
    ({"num_beams": 0}, "num_beams is 0"),
    ({"num_beams": 17}, r"17 sequences .*Limits.sequences_max"),
    ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences is 3, more than num_beams"),
    ({"num_beams": 4, "num_beam_groups": 3}, "num_beam_groups is 3, which does not divide"),
    ({"num_beams": 4, "num_beam_groups": 2}, "num_beam_groups is 2 and diversity_penalty 0: set both"),
    ({"num_beams": 4, "diversity_penalty": 1.0}, "num_beam_groups is 1 and diversity_penalty 1: set both"),
    ({"num_beams": 2, "do_sample": True}, "do_sample is True with num_beams=2"),
    ({"num_beams": 2, "stop_strings": ["a"]}, "stop_strings with num_beams=2"),
    ({"num_beams": 2, "stop_token_ids": [3, 4, 5]}, "stop_token_ids holds 4 ids .* looks at 4 candidates"),
    ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0, "stop_token_ids": [3, 4, 5]}, "holds 4 ids"),
    ({"num_beams": 2, "eos_token_id": [3, 4, 5, 6]}, "stop_token_ids holds 4 ids"),
    ({"num_beams": 2, "repetition_penalty": 1.1}, "repetition_penalty is 1.1 with num_beams=2"),
    ({"no_repeat_ngram_size": 0}, "no_repeat_ngram_size"),
    ({"stop_token_ids": [10**7]}, "stop_token_ids is 10000000; .*at most 258"),
    ({"stop_token_ids": [-5]}, "stop_token_ids is -5"),
    ({"stop_token_ids": 5}, "stop_token_ids must be a list"),
    ({"stop_token_ids": [True]}, "stop_token_ids"),
    ({"eos_token_id": 259}, "eos_token_id is 259"),
    ({"stop_strings": "stop"}, "stop_strings must be a list"),
    ({"stop_strings": [""]}, "stop_strings must hold strings of at least one character"),
    ({"stop_strings": [7]}, "stop_strings"),
    ({"stop_strings": ["x" * 257]}, "stop_strings holds a string of 257 characters; at most 256"),
    ({"stop_strings": [str(i) for i in range(100_000)]}, "stop_strings holds 100000 strings; at most 16"),
    ({"stop_strings": ["\ud800"]}, "stop_strings holds a lone surrogate"),
    ({"stop_criteria": "SOON"}, "stop_criteria must be one of EARLY, HEURISTIC, NEVER"),
    ({"logprobs": 2**31 - 1}, "logprobs is 2147483647; it must be a whole number, at least 0 and at most 20"),
    ({"rng_seed": 2**64}, "rng_seed"),
    ({"rng_seed": -1}, "rng_seed"),
    ({"ignore_eos": 1}, "ignore_eos must be True or False"),
    ({"apply_chat_template": "yes"}, "apply_chat_template must be True or False"),
    ({"max_new_token": 3}, "'max_new_token' is not a field.*did you mean 'max_new_tokens'"),
    ({"max_tokens": 3}, "did you mean 'max_new_tokens'"),
    ({"stop": ["x"]}, "did you mean 'stop_strings'"),
    ({"json_schema": "{}"}, "did you mean 'structured_output_config'"),
    ({"zzz": None}, "'zzz' is not a field"),
    ({"adapters": object()}, "adapters is refused: "),
    ({"parsers": ["x"]}, "parsers is refused: "),
    ({"echo": True}, "echo is refused: "),
    ({"num_assistant_tokens": 3}, "num_assistant_tokens is refused: "),
    ({"max_ngram_size": 2}, "max_ngram_size is refused: "),
    ({"pruning_ratio": 5}, "pruning_ratio is refused: "),
    ({"return_omni_outputs": True}, "return_omni_outputs is refused: "),
    ({"structured_output_config": "{}"}, "structured_output_config must be a StructuredOutputConfig or a mapping"),
    (
        {"structured_output_config": {}},
        "must set exactly one of json_schema, regex, grammar, structural_tags_config, compound_grammar; it sets 0",
    ),
    ({"structured_output_config": {"regex": "a", "grammar": "b"}}, "it sets 2"),
    ({"structured_output_config": {"regexp": "a"}}, "has no field 'regexp'; did you mean 'regex'"),
    ({"structured_output_config": {"regex": ""}}, "regex must be a str of at least one character"),
    ({"structured_output_config": {"regex": {"a": 1}}}, "regex must be a str"),
    ({"structured_output_config": {"regex": "\udc00"}}, "regex holds a lone surrogate"),
    ({"structured_output_config": {"json_schema": {"a": object()}}}, "json_schema must hold plain JSON types"),
    ({"structured_output_config": {"compound_grammar": object()}}, "holds a object, which is none of AnyText, "),
    ({"structured_output_config": {"compound_grammar": "a"}}, "must be one of the engine's formats or a mapping"),
    ({"structured_output_config": {"compound_grammar": {"type": object()}}}, "must hold plain JSON types"),
    ({"structured_output_config": {"compound_grammar": {"type": "x" * 300_000}}}, "more than 262144 bytes"),
    ({"structured_output_config": {"structural_tags_config": ""}}, "structural_tags_config must be a str of at least"),
    ({"structured_output_config": {"structural_tags_config": 7}}, "holds a int, which is none of AnyText, "),
    (
        {"structured_output_config": {"structural_tags_config": {"triggers": ["<"], "structural_tags": [7]}}},
        "structural_tags must hold mappings of begin, schema and end",
    ),
    (
        {"structured_output_config": {"structural_tags_config": {"triggers": 7, "structural_tags": 7}}},
        "structured_output_config cannot be read: looking at it raises TypeError",
    ),
    ({"structured_output_config": {"grammar": "x" * 300_000}}, "is 300000 bytes; at most 262144"),
    ({"structured_output_config": {"regex": "a"}, "num_beams": 2}, "num_beams is 2 with structured_output_config"),
    (
        {"structured_output_config": {"regex": "a"}, "num_return_sequences": 2, "do_sample": True},
        "num_return_sequences is 2 with structured_output_config",
    ),
    ({"structured_output_config": {"regex": "a"}, "ignore_eos": True}, "ignore_eos is True with structured_output"),
    ({"structured_output_config": {"regex": "a"}, "min_new_tokens": 3}, "min_new_tokens is 3 with structured_output"),
]


@pytest.mark.parametrize(("given", "words"), BAD, ids=[f"{i}-{next(iter(g))}" for i, (g, _) in enumerate(BAD)])
def test_what_the_engine_could_not_take_is_refused_by_name_as_mapping_and_as_keywords(
    given: dict[str, Any], words: str
) -> None:
    for mapping, keywords in ((given, {}), (None, given)):
        with pytest.raises(InvalidRequest, match=words) as caught:
            fields(mapping, **keywords)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("config", [7, "greedy", ["x"], object()])
def test_what_is_no_configuration_is_refused(config: object) -> None:
    with pytest.raises(
        InvalidRequest, match=r"generation_config must be an openvino_genai.GenerationConfig or a mapping"
    ):
        fields(config)


def test_switched_off_fields_that_are_not_supported_are_let_through_and_dropped() -> None:
    given: dict[str, Any] = {
        "echo": False,
        "adapters": None,
        "parsers": [],
        "num_assistant_tokens": 0,
        "relevance_weight": 0.5,
    }
    assert fields(given) == fields()


def test_a_field_that_came_with_a_later_release_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_generation_fields, "installed_release", lambda: Release("2026.2", ("min_p",)))
    with pytest.raises(
        InvalidRequest, match=r"min_p came with a later release than openvino-genai 2026\.2; upgrade it"
    ):
        fields(min_p=0.5, do_sample=True)
    assert "min_p" not in fields(min_p=None)
    assert fields(top_p=0.5, do_sample=True)["top_p"] == 0.5


def test_numpy_numbers_are_numbers() -> None:
    got = fields(max_new_tokens=np.int32(5), temperature=np.float32(0.5), do_sample=np.bool_(True), top_k=np.uint8(3))
    assert (got["max_new_tokens"], got["temperature"], got["do_sample"], got["top_k"]) == (5, 0.5, True, 3)
    assert fields(temperature=Fraction(1, 4))["temperature"] == 0.25


def test_structured_output_becomes_its_kind_and_its_text() -> None:
    schema = {"type": "object"}
    assert fields({"structured_output_config": {"json_schema": schema}})["structured_output_config"] == {
        "json_schema": json.dumps(schema)
    }
    assert fields(structured_output_config={"regex": "a+", "grammar": None})["structured_output_config"] == {
        "regex": "a+"
    }


def test_beams_whose_candidates_cannot_all_end_are_taken() -> None:
    """Of each beam's twice as many candidates as its group has beams one goes on."""
    for beams, groups in ((2, 1), (4, 1), (4, 2), (4, 4)):
        most = 2 * beams // groups - 1  # the model's own end of sequence is one of them
        given = {"num_beams": beams, "num_beam_groups": groups, "diversity_penalty": float(groups > 1)}
        got = fields(given, stop_token_ids=list(range(3, 2 + most)))
        assert len(got["stop_token_ids"]) == most
        with pytest.raises(InvalidRequest, match=f"stop_token_ids holds {most + 1} ids"):
            fields(given, stop_token_ids=list(range(3, 3 + most)))


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        ("top_p", 1e-300, "0 to the engine"),
        ("top_p", 5e-324, "0 to the engine"),
        ("min_p", 0.99999999999, "1 to the engine"),
        ("repetition_penalty", 1e-300, None),
        ("repetition_penalty", 3.41e38, None),
    ],
)
def test_a_value_that_only_32_bits_make_wrong_is_refused_and_says_so(name: str, value: float, seen: str | None) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is .*{seen or 'it must be'}"):
        fields({name: value, "do_sample": True})


def test_values_are_what_the_engine_makes_of_them() -> None:
    got = fields(temperature=0.1, top_p=0.9, do_sample=True)
    assert (got["temperature"], got["top_p"]) == (float(np.float32(0.1)), float(np.float32(0.9)))
    assert fields(num_beams=2, frequency_penalty=1e-300)["frequency_penalty"] == 0.0
    with pytest.raises(InvalidRequest, match="num_beam_groups is 2 and diversity_penalty 0: set both"):
        fields(num_beams=4, num_beam_groups=2, diversity_penalty=1e-300)


def test_there_are_at_most_so_many_stop_ids() -> None:
    limits = Limits(stop_token_ids=3)
    assert fields(stop_token_ids=[3, 4, 5], limits=limits)["stop_token_ids"] == [2, 3, 4, 5]
    for name in ("stop_token_ids", "eos_token_id"):
        with pytest.raises(InvalidRequest, match=rf"{name} holds 4 ids; at most 3 \(Limits.stop_token_ids\)"):
            fields({name: [3, 4, 5, 6]}, limits=limits)


# --- how many ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "held", "back"),
    [
        ({}, 1, 1),
        ({"do_sample": True, "num_return_sequences": 3}, 3, 3),
        ({"num_beams": 4}, 4, 1),
        ({"num_beams": 4, "num_return_sequences": 2}, 4, 2),
        ({"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 1.0}, 6, 1),
    ],
)
def test_the_engine_holds_all_beams_or_all_samples_and_only_one_sequence_streams(
    given: dict[str, Any], held: int, back: int
) -> None:
    got = fields(given)
    assert (sequences_of(got), results_of(got), streams(got)) == (held, back, held == 1)


@pytest.mark.parametrize(
    ("given", "resume"),
    [
        ({}, Resume.ALWAYS),
        ({"do_sample": True, "repetition_penalty": 1.2, "stop_strings": ["a"]}, Resume.ALWAYS),
        ({"do_sample": True, "presence_penalty": 0.5}, Resume.UNSEEN),
        ({"do_sample": True, "frequency_penalty": -0.5}, Resume.UNSEEN),
        ({"structured_output_config": {"regex": "a*"}}, Resume.UNSEEN),
        ({"num_beams": 2}, Resume.UNSEEN),
    ],
)
def test_what_looks_back_at_its_output_is_not_continued_once_something_was_shown(
    given: dict[str, Any], resume: Resume
) -> None:
    assert resume_of(fields(given)) is resume


SANE = st.fixed_dictionaries(
    {},
    optional={
        "max_new_tokens": st.integers(1, 2000),
        "min_new_tokens": st.integers(0, 2000),
        "do_sample": st.booleans(),
        "temperature": st.floats(0, 10),
        "top_p": st.floats(0, 1),
        "num_beams": st.integers(1, 20),
        "num_return_sequences": st.integers(1, 20),
        "stop_strings": st.lists(st.text(max_size=5), max_size=4),
        "stop_token_ids": st.sets(st.integers(0, 300), max_size=4),
        "rng_seed": st.one_of(st.none(), st.integers(0, 2**64 - 1)),
    },
)


@settings(deadline=None, derandomize=True)
@given(given=SANE)
def test_what_is_accepted_is_complete_plain_data_that_checks_again_to_itself(given: dict[str, Any]) -> None:
    try:
        got = fields(given)
    except InvalidRequest:
        return
    assert json.loads(json.dumps(got)) == got
    assert 1 <= got["max_new_tokens"] <= 1000
    assert ("rng_seed" in got) >= bool(got.get("do_sample"))
    assert fields(got) == got


# --- templates, ids and messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "keywords", "wanted"),
    [
        (None, {}, False),
        ({"apply_chat_template": True}, {}, True),
        ({"apply_chat_template": True}, {"apply_chat_template": False}, False),
        (SimpleNamespace(apply_chat_template=True), {}, False),
    ],
)
def test_a_str_is_wrapped_only_where_somebody_said_so(config: object, keywords: dict[str, Any], wanted: bool) -> None:
    assert wants_chat_template(config, keywords) is wanted
    assert "apply_chat_template" not in fields(config if isinstance(config, dict) else None, **keywords)


@pytest.mark.parametrize(
    "prompt",
    [[1, 2, 3], (1, 2, 3), [[1, 2, 3]], *(np.array([1, 2, 3], dtype=t) for t in ("int8", "uint16", "int32", "int64"))],
)
def test_ids_come_as_lists_tuples_and_integer_arrays(prompt: object) -> None:
    got = token_ids(prompt, VOCABULARY)
    assert got == [1, 2, 3]
    assert all(type(i) is int for i in got)
    assert token_ids(np.array([[1, 2, 3]]), None) == [1, 2, 3]
    assert token_ids(np.array([7, 1, 8, 2, 8, 3])[1::2], None) == [1, 2, 3]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "prompt is empty"),
        (np.array([], dtype=np.int64), "prompt is empty"),
        ([10**7], "token id 10000000; the model's vocabulary has 259"),
        ([-1], "token id -1"),
        ([1, 2.0], "at position 1 it holds a float"),
        ([True], "at position 0 it holds a bool"),
        (["a"], "at position 0 it holds a str"),
        ([[1], [2]], "one row of token ids, not 2"),
        (np.zeros((2, 3), dtype=np.int64), r"one row of token ids, not an array of shape \[2, 3\]"),
        (np.zeros((1, 1, 1), dtype=np.int64), "one row"),
        (np.array(5), "one row"),
        (np.array([1.0]), "prompt must hold whole numbers, not float64"),
        (np.array([True]), "prompt must hold whole numbers, not bool"),
        (b"bytes", "prompt must be a str, token ids or chat messages, not bytes"),
        (None, "not NoneType"),
        ({1, 2}, "not set"),
    ],
)
def test_what_is_no_row_of_ids_is_refused(prompt: object, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        token_ids(prompt, VOCABULARY)


def test_messages_become_plain_dicts_with_their_parts_joined() -> None:
    given = (
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"type": "text", "text": "c"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
    )
    assert [m["content"] for m in messages(given)] == ["be kind", "abc", ""]
    assert messages(given)[2]["tool_calls"] == [{"id": "1"}]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "at least one chat message"),
        (["hi"], "message 0: must be a mapping"),
        ([{"content": SECRET}], "message 0: role must be a str"),
        ([{"role": 3, "content": SECRET}], "message 0: role"),
        ([{"role": "user", "content": SECRET}, {"role": "user"}], "message 1: content must be a str"),
        ([{"role": "user", "content": 7}], "content must be a str or a list of text parts, not int"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": SECRET}]}],
            "type 'image_url' is not for this model",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "a text part must hold a str"),
        ([{"role": "user", "content": [SECRET, 7]}], "type 'int' is not for this model"),
    ],
)
def test_messages_that_cannot_be_rendered_are_refused_without_their_text(prompt: object, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        messages(prompt)
    assert SECRET not in str(caught.value)


def test_beams_that_could_all_end_in_one_step_are_refused() -> None:
    """The engine raises in step() then, and takes everybody with it (measured: 2 beams with 4 ids, 4 with 8)."""
    known: Any = {"defaults": {}, "limits": Limits(), "prompt_tokens": 3, "vocab_size": 259, "draw_seed": lambda: 1}
    for beams in (2, 4):
        fits = generation_fields(None, {"num_beams": beams, "stop_token_ids": list(range(2 * beams - 1))}, **known)
        assert len(fits["stop_token_ids"]) == 2 * beams - 1
        with pytest.raises(InvalidRequest, match="stop_token_ids"):
            generation_fields(None, {"num_beams": beams, "stop_token_ids": list(range(2 * beams))}, **known)
