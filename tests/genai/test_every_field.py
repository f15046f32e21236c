"""Every field of the installed release's configurations: each that is taken does what it says on the real engine, each
that is refused is refused with its reason, and what the engine would make of it is watched.

docs/generation-config.md is made of the same data, and names these tests. A test that fails after an upgrade because a
field is new says what to do.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]
import pytest
from genai import field_experiments as engine
from genai.lanes import ids, lane
from genai.raw import Lab, attributes, laboratory

import boundedgen as bg
from boundedgen._engine._releases import installed_release
from boundedgen._generation_fields import FIELDS, NEUTRAL
from boundedgen._grammar_fields import CLASSES, GRAMMARS
from boundedgen._refused_fields import OF_ENGINE, REFUSED

LENGTH = 40
PROMPT = ids(20, 3)


@pytest.fixture(scope="module")
def pipeline() -> Iterator[bg.BoundedPipeline]:
    with lane() as opened:
        yield opened


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with laboratory() as made:
        yield made


Ask = Callable[..., bg.Completion]


@pytest.fixture
def ask(pipeline: bg.BoundedPipeline) -> Ask:
    """The completion of the same greedy request with some fields more; to its full length unless these end it."""

    def asked(**fields: Any) -> bg.Completion:
        return pipeline.generate(PROMPT, **{"max_new_tokens": LENGTH, "ignore_eos": True, **fields})

    return asked


def ids_of(ask: Ask, **fields: Any) -> tuple[int, ...]:
    return ask(**fields).token_ids


# --- what each field does --------------------------------------------------------------------------------------------


def max_new_tokens(ask: Ask) -> None:
    assert ids_of(ask, max_new_tokens=5) == ids_of(ask)[:5]


def max_length(ask: Ask) -> None:
    assert ids_of(ask, max_new_tokens=None, max_length=len(PROMPT) + 5) == ids_of(ask)[:5]


def _first_new(tokens: tuple[int, ...], after: int = 3) -> int:
    return next(at for at in range(after, len(tokens)) if tokens[at] not in tokens[:at])


def min_new_tokens(ask: Ask) -> None:
    whole = ids_of(ask)
    end = {"ignore_eos": False, "eos_token_id": whole[_first_new(whole)]}
    assert len(ids_of(ask, **end)) == _first_new(whole) + 1
    assert len(ids_of(ask, **end, min_new_tokens=30)) >= 30


def ignore_eos(ask: Ask) -> None:
    whole = ids_of(ask)
    end = {"eos_token_id": whole[_first_new(whole)]}
    assert ids_of(ask, **end, ignore_eos=False) == whole[: _first_new(whole) + 1]
    assert ids_of(ask, **end, ignore_eos=True) == whole
    beams = ids_of(ask, num_beams=2, length_penalty=0.0)
    assert beams == ids_of(ask, num_beams=2, length_penalty=0.0, ignore_eos=False), "beams do not heed it"
    assert beams[-1] == 2


def eos_token_id(ask: Ask) -> None:
    whole = ids_of(ask)
    assert ask(ignore_eos=False, eos_token_id=whole[_first_new(whole)]).finish_reason is bg.FinishReason.STOP


def stop_token_ids(ask: Ask) -> None:
    whole = ids_of(ask)
    ended = ask(ignore_eos=False, stop_token_ids=[whole[_first_new(whole)]])
    assert ended.token_ids == whole[: _first_new(whole) + 1]
    assert ended.finish_reason is bg.FinishReason.STOP


def _piece(text: str) -> str:
    return next(c for at, c in enumerate(text) if at > 2 and c.isascii() and c.isprintable() and c not in text[:at])


def stop_strings(ask: Ask) -> None:
    text = ask().text
    ended = ask(stop_strings=[_piece(text)])
    assert ended.text == text.partition(_piece(text))[0]
    assert ended.finish_reason is bg.FinishReason.STOP


def include_stop_str_in_output(ask: Ask) -> None:
    text = ask().text
    before, piece, _ = text.partition(_piece(text))
    assert ask(stop_strings=[piece], include_stop_str_in_output=True).text == before + piece


def apply_chat_template(pipeline: bg.BoundedPipeline) -> None:
    plain, wrapped = (
        pipeline.generate("a cat", max_new_tokens=2, apply_chat_template=flag).prompt_tokens for flag in (False, True)
    )
    assert wrapped > plain


def logprobs(ask: Ask) -> None:
    told = ask(logprobs=1).logprobs
    assert told is not None
    assert len(told) == LENGTH
    assert all(value < 0 for value in told)
    assert not ask(logprobs=0).logprobs


def repetition_penalty(ask: Ask) -> None:
    assert ids_of(ask, repetition_penalty=1e30) != ids_of(ask) == ids_of(ask, repetition_penalty=1.0)


def presence_penalty(ask: Ask) -> None:
    assert ids_of(ask, presence_penalty=-2.0) != ids_of(ask) == ids_of(ask, presence_penalty=0.0)


def frequency_penalty(ask: Ask) -> None:
    assert ids_of(ask, frequency_penalty=-2.0) != ids_of(ask) == ids_of(ask, frequency_penalty=0.0)


def num_beams(ask: Ask) -> None:
    best, greedy = ask(num_beams=4, logprobs=1), ask(logprobs=1)
    assert best.score is not None
    assert best.token_ids != greedy.token_ids
    assert sum(best.logprobs or ()) > sum(greedy.logprobs or ()) - 1e-3, "the likelier of the two"


def num_beam_groups(ask: Ask) -> None:
    groups = {"num_beams": 4, "num_return_sequences": 4, "diversity_penalty": 50.0}
    two, four = (ask(**groups, num_beam_groups=count) for count in (2, 4))
    assert len({two.token_ids[0], *(one.token_ids[0] for one in two.alternatives)}) >= 2
    assert len({four.token_ids[0], *(one.token_ids[0] for one in four.alternatives)}) == 4


def diversity_penalty(ask: Ask) -> None:
    groups = {"num_beams": 2, "num_return_sequences": 2, "num_beam_groups": 2}
    near, far = (ask(**groups, diversity_penalty=penalty) for penalty in (1e-6, 50.0))
    assert near.token_ids[0] == near.alternatives[0].token_ids[0]
    assert far.token_ids[0] != far.alternatives[0].token_ids[0]


def length_penalty(ask: Ask) -> None:
    for penalty in (0.5, 1.0):
        best = ask(num_beams=2, length_penalty=penalty, logprobs=1)
        assert best.score == pytest.approx(sum(best.logprobs or ()) / len(best.token_ids) ** penalty, rel=1e-3)


def num_return_sequences(ask: Ask) -> None:
    assert len(ask(num_beams=4, num_return_sequences=3).alternatives) == 2
    assert len(ask(do_sample=True, num_return_sequences=3).alternatives) == 2


def no_repeat_ngram_size(ask: Ask) -> None:
    once = ids_of(ask, num_beams=2, no_repeat_ngram_size=1)
    assert len(set(once)) == len(once)


def stop_criteria(ask: Ask) -> None:
    ends = [ids_of(ask)[5]]
    early, never = (
        ask(num_beams=4, ignore_eos=False, stop_token_ids=ends, stop_criteria=name, length_penalty=1.0)
        for name in ("EARLY", "NEVER")
    )
    assert (never.score or 0) >= (early.score or 0), "who looks at all of them finds none that is worse"


def do_sample(ask: Ask) -> None:
    assert ids_of(ask, do_sample=True, temperature=2.0, rng_seed=1) != ids_of(ask, do_sample=False)


def temperature(ask: Ask) -> None:
    assert ids_of(ask, do_sample=True, temperature=1e-3) == ids_of(ask)
    assert ids_of(ask, do_sample=True, temperature=3.0) != ids_of(ask)


def top_p(ask: Ask) -> None:
    assert ids_of(ask, do_sample=True, top_p=1e-6) == ids_of(ask)


def top_k(ask: Ask) -> None:
    assert ids_of(ask, do_sample=True, top_k=1) == ids_of(ask)


def min_p(ask: Ask) -> None:
    assert ids_of(ask, do_sample=True, min_p=0.999) == ids_of(ask)


def rng_seed(ask: Ask) -> None:
    first, again, other = (ids_of(ask, do_sample=True, rng_seed=seed) for seed in (5, 5, 6))
    assert first == again != other


#: kind -> a grammar, and the text that it allows.
GRAMMAR_TEXTS: dict[str, tuple[Any, str]] = {
    "json_schema": ({"const": "ab"}, '"ab"'),
    "regex": ("ab{3}", "abbb"),
    "grammar": ('root ::= "yes"', "yes"),
    "structural_tags_config": ({"type": "structural_tag", "format": {"type": "regex", "pattern": "ab"}}, "ab"),
    "compound_grammar": (
        {"type": "tag", "begin": "<a>", "content": {"type": "const_string", "value": "xy"}, "end": "</a>"},
        "<a>xy</a>",
    ),
}


def structured_output_config(ask: Ask) -> None:
    for kind in GRAMMARS:
        grammar, text = GRAMMAR_TEXTS[kind]
        answer = ask(ignore_eos=False, structured_output_config={kind: grammar})
        assert (answer.text, answer.finish_reason) == (text, bg.FinishReason.STOP)


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_is_taken_does_what_it_says(field: str, ask: Ask, pipeline: bg.BoundedPipeline) -> None:
    check: Callable[..., None] = globals()[field]
    check(pipeline if field == "apply_chat_template" else ask)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", REFUSED)
def test_a_refused_field_is_refused_with_its_reason_and_the_way_out(field: str, pipeline: bg.BoundedPipeline) -> None:
    value = {"adapters": object(), "parsers": [object()]}.get(field, engine.ON[field][field])
    with pytest.raises(bg.InvalidRequest) as error:
        pipeline.submit(PROMPT, {field: value})
    said, refused = str(error.value), REFUSED[field]
    assert said.startswith(field)
    assert refused.why in said
    assert refused.instead in said
    for off in NEUTRAL[field]:
        assert pipeline.generate(PROMPT, {field: off}, max_new_tokens=1).completion_tokens == 1


@pytest.mark.parametrize("field", REFUSED)
def test_what_the_engine_makes_of_a_refused_field(field: str, lab: Lab) -> None:
    if field in installed_release().lacks:
        pytest.skip(f"this release has no {field}")
    assert lab.run(engine.made_of, field) == OF_ENGINE[field]


# --- composed grammars -----------------------------------------------------------------------------------------------

TAG = 'S.Tag("<t>", S.Regex("ab"), "</t>")'
#: The engine's own classes (a Python expression).
COMPOSED = {
    "concat": 'S.Regex("a") + S.ConstString("b")',
    "union": 'S.Regex("ab") | S.ConstString("cd")',
    "ebnf": "S.Concat(S.EBNF('root ::= \"no\"'), S.ConstString('!'))",
    "schema": 'S.Tag("<j>", S.JSONSchema(\'{"type": "integer"}\'), "</j>")',
    "text in a tag": 'S.Tag("<j>", \'{"type": "any_text"}\', "</j>")',
    "any text": 'S.Tag("<t>", S.AnyText(), "</t>")',
    "triggered": f'S.TriggeredTags(["<t"], [{TAG}], at_least_one=True, stop_after_first=True)',
    "separated": f'S.TagsWithSeparator([{TAG}], ";", at_least_one=True, stop_after_first=True)',
    "xml": 'S.QwenXMLParametersFormat(\'{"type": "object", "properties": {"a": {"type": "integer"}}}\')',
    "legacy": (
        'genai.StructuralTagsConfig(structural_tags=[genai.StructuralTagItem(begin="<t>", '
        'schema=\'{"type": "integer"}\', end="</t>")], triggers=["<t"])'
    ),
}


def _given(name: str) -> Any:
    tools = genai.StructuredOutputConfig
    form = eval(COMPOSED[name], {"S": tools, "genai": genai})
    return tools(**{"structural_tags_config" if name == "legacy" else "compound_grammar": form})


@pytest.mark.parametrize("name", COMPOSED)
def test_a_composed_grammar_becomes_text_that_means_the_same_to_the_engine(
    name: str, lab: Lab, pipeline: bg.BoundedPipeline
) -> None:
    config = genai.GenerationConfig(max_new_tokens=24)
    config.structured_output_config = _given(name)
    with pipeline.submit(ids(10), config) as generation:
        ((kind, text),) = generation._flow.config["structured_output_config"].items()
        answer = generation.result()
    assert kind == "structural_tags_config"
    by_classes, by_text = lab.run(engine.constrained, COMPOSED[name], text)
    assert by_classes == by_text == list(answer.token_ids)


def test_a_composed_grammar_that_holds_itself_or_grows_without_end_is_refused(pipeline: bg.BoundedPipeline) -> None:
    tools = genai.StructuredOutputConfig
    deep, wide = tools.Regex("a"), tools.ConstString("a")
    for _ in range(60):
        deep = tools.Tag("<", deep, ">")
    for _ in range(30):
        wide = tools.Concat(wide, wide)
    for form in (deep, wide):
        config = genai.GenerationConfig()
        config.structured_output_config = tools(compound_grammar=form)
        with pytest.raises(bg.InvalidRequest, match=r"more than 262144 bytes .*, or nested too deeply"):
            pipeline.submit(PROMPT, config)


@pytest.mark.parametrize(
    "grammar",
    [
        {"structural_tags_config": '{"type":'},
        {"structural_tags_config": {"type": "something"}},
        {
            "structural_tags_config": {
                "triggers": ["<q"],
                "structural_tags": [{"begin": "<t", "schema": {}, "end": ">"}],
            }
        },
        {"compound_grammar": {"type": "nothing"}},
        {"compound_grammar": {"type": "regex", "pattern": "a(b"}},
    ],
)
def test_a_composed_grammar_that_does_not_compile_ends_its_request_alone(
    grammar: Mapping[str, Any], pipeline: bg.BoundedPipeline
) -> None:
    beside = pipeline.submit(PROMPT, max_new_tokens=LENGTH, ignore_eos=True)
    with pytest.raises(bg.InvalidRequest, match=r"structural_tags_config does not compile"):
        pipeline.generate(PROMPT, structured_output_config=grammar)
    assert beside.result().completion_tokens == LENGTH


# --- objects, and what their methods set -----------------------------------------------------------------------------


def test_what_the_methods_of_a_configuration_set_counts(ask: Ask, pipeline: bg.BoundedPipeline) -> None:
    whole = ids_of(ask)
    config = genai.GenerationConfig()
    config.update_generation_config(max_new_tokens=LENGTH)
    config.set_eos_token_id(whole[_first_new(whole)])
    config.validate()
    assert config.is_greedy_decoding()
    ended = pipeline.generate(PROMPT, config)
    assert ended.token_ids == whole[: _first_new(whole) + 1]
    assert ended.finish_reason is bg.FinishReason.STOP


# --- the installed release -------------------------------------------------------------------------------------------

DO = "measure what the engine makes of it, then put it into {} (taken or refused), with a test here"


def test_every_field_of_the_installed_generation_config_is_known() -> None:
    there, known = attributes(genai.GenerationConfig), {*FIELDS, *REFUSED}
    assert NEUTRAL.keys() == REFUSED.keys()
    assert there - known == set(), DO.format("FIELDS or NEUTRAL and REFUSED")
    assert known - there == set(installed_release().lacks) & known, "a field is gone: say so in _engine/_releases.py"


def test_every_field_of_the_installed_structured_output_config_is_known() -> None:
    there = attributes(genai.StructuredOutputConfig)
    assert there == set(GRAMMARS), DO.format("GRAMMARS")
    classes = {n for n in dir(genai.StructuredOutputConfig) if n[0].isupper()}
    assert classes == set(CLASSES), DO.format("CLASSES")
