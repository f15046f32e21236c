"""Whatever a caller passes as a value or as a setting: plain data comes of it, or a short refusal that names it."""

import json
import math
from collections.abc import Callable, Collection
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest
from attrs import fields as fields_of
from core.hostile import AT_ONCE_S, STRANGE, timed

from boundedgen import Admission, Bounds, InvalidRequest, Limits, RestartPolicy
from boundedgen._arguments import short, suggestion, too_large
from boundedgen._bounds import patience, seconds
from boundedgen._generation_config import generation_fields
from boundedgen._generation_fields import FIELDS, NEUTRAL
from boundedgen._making import drain_seconds, parts_of
from boundedgen._prompt import Row, messages
from boundedgen._scheduler_config import plain_properties, scheduler_fields
from boundedgen._settings import settings_of

SETTINGS: tuple[type, ...] = (Bounds, Limits, RestartPolicy, Admission)


WRONG = (TypeError, ValueError)


def taken_or_refused(
    read: Callable[[Any], object], name: str, kinds: tuple[type[Exception], ...], *, slow: Collection[str] = ()
) -> None:
    """All that is strange is taken, or refused at once with one of `kinds`, in a short message that names it.

    Some of it is refused: what takes everything checks nothing.
    """
    refused = []
    for what, value in STRANGE.items():
        _, error, took = timed(partial(read, value))
        assert took < AT_ONCE_S or what in slow, f"{what}: {took:.3f} s"
        if error is not None:
            refused.append(what)
            assert type(error) in kinds, f"{what}: {error!r:.300}"
            assert name in str(error), what
            assert len(str(error).encode()) < 400, what
    assert refused, f"{name} takes anything"


def asked(config: object = None, /, **keywords: Any) -> dict[str, Any]:
    return generation_fields(
        config, keywords, defaults={}, limits=Limits(), prompt_tokens=3, vocab_size=259, draw_seed=int
    )


def test_anything_can_be_told_in_a_few_words_at_once() -> None:
    for what, value in STRANGE.items():
        text, raised, took = timed(partial(short, value))
        assert raised is None, what
        assert isinstance(text, str)
        assert len(text) < 100, what
        assert took < AT_ONCE_S, what


@pytest.mark.parametrize("name", [*FIELDS, *NEUTRAL])
def test_a_field_of_the_configuration_takes_anything_or_refuses_it_by_name(name: str) -> None:
    taken_or_refused(lambda value: asked(**{name: value}), name, (InvalidRequest,))


def test_a_whole_configuration_is_taken_or_refused_by_name() -> None:
    taken_or_refused(asked, "generation", (InvalidRequest,))


@pytest.mark.parametrize("name", ["regex", "grammar", "json_schema"])
def test_a_grammar_is_taken_or_refused_by_name(name: str) -> None:
    def ask(value: object) -> object:
        return asked(structured_output_config={name: value})

    taken_or_refused(ask, "structured_output_config", (InvalidRequest,))


def test_messages_are_taken_or_refused_by_name() -> None:
    taken_or_refused(lambda value: messages(value, 1 << 20), "prompt", (InvalidRequest,))


def test_a_row_of_ids_is_taken_or_refused_by_name_before_it_is_read() -> None:
    taken_or_refused(Row, "prompt", (InvalidRequest,))
    read = {what for what in STRANGE if "million" in what}
    taken_or_refused(lambda value: Row(value).ids(259), "prompt", (InvalidRequest,), slow=read)


@pytest.mark.parametrize("setting", [f"{kind.__name__}.{a.name}" for kind in SETTINGS for a in fields_of(kind)])
def test_a_setting_takes_anything_or_refuses_it_by_name(setting: str) -> None:
    class_name, _, name = setting.partition(".")
    kind = next(kind for kind in SETTINGS if kind.__name__ == class_name)
    taken_or_refused(lambda value: kind(**{name: value}), name, WRONG)


CONSTRUCTOR: dict[str, Any] = {
    "models_path": "/nowhere",
    "scheduler_config": None,
    "device": "CPU",
    "properties": None,
    "tokenizer_properties": None,
    "engine": None,
    "draft": None,
    "prompt_lookup": None,
    "adapters": None,
}


@pytest.mark.parametrize("name", CONSTRUCTOR)
def test_an_argument_of_the_constructor_is_taken_or_refused_by_name(name: str) -> None:
    taken_or_refused(lambda value: parts_of(**{**CONSTRUCTOR, name: value}, limits=Limits()), name, WRONG)


@pytest.mark.parametrize("name", ["limits", "bounds", "admission", "restart", "lease_ttl"])
def test_the_pipeline_s_own_settings_are_taken_or_refused_by_name(name: str) -> None:
    given: dict[str, Any] = {
        "limits": Limits(),
        "bounds": Bounds(total=5),
        "admission": Admission(),
        "restart": RestartPolicy(),
        "lease_ttl": None,
    }
    taken_or_refused(lambda value: settings_of(**{**given, name: value}), name, WRONG)


@pytest.mark.parametrize("name", ["max_num_seqs", "cache_size", "enable_prefix_caching", "use_sparse_attention", "x"])
def test_a_field_of_the_scheduler_configuration_is_taken_or_refused_by_name(name: str) -> None:
    taken_or_refused(lambda value: scheduler_fields({name: value}), name, WRONG)


def test_a_property_is_taken_or_refused_by_name() -> None:
    taken_or_refused(lambda value: plain_properties({"KEY": value}, name="properties"), "properties", WRONG)


def test_seconds_are_seconds_and_everything_else_is_refused_by_name() -> None:
    taken_or_refused(lambda value: seconds("ttl", value), "ttl", WRONG)
    taken_or_refused(patience, "timeout", WRONG)
    taken_or_refused(drain_seconds, "drain", WRONG)
    for value in STRANGE.values():
        found, _, _ = timed(partial(patience, value))
        assert found is None or (type(found) is float and 0 <= found < math.inf)


# --- single cases ------------------------------------------------------------------------------------------------


def test_a_wait_is_for_seconds_or_a_timedelta_and_less_than_none_is_none() -> None:
    assert patience(None) is None
    number: Any = np.float32(5)
    assert patience(number) == 5.0
    assert patience(5) == patience(timedelta(seconds=5)) == 5.0
    assert patience(-5) == patience(timedelta(-1)) == patience(float("-inf")) == 0.0
    assert patience(float("inf")) is None
    assert patience(10**400) is None
    assert patience(timedelta.max) is None
    with pytest.raises(ValueError, match="timeout is not a number"):
        patience(math.nan)
    with pytest.raises(TypeError, match="timeout must be seconds or a timedelta, not str"):
        patience("5")  # type: ignore[arg-type]


def test_more_seconds_than_a_float_holds_are_infinitely_many() -> None:
    assert Bounds(total=10**400).total == math.inf
    with pytest.raises(ValueError, match=r"Limits.boot is a whole number of 1329 bits; it must be finite"):
        Limits(boot=10**400)
    with pytest.raises(ValueError, match=r"Limits.drain is .*at most 1e\+09"):
        Limits(drain=timedelta.max)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("weights", "kind", "said"),
    [
        ({"batch": 0}, ValueError, r"weights\['batch'\] is 0; give more than 0, at most 1e\+09"),
        ({"batch": -0.5}, ValueError, r"weights\['batch'\] is -0.5; give more than 0"),
        ({"batch": "half"}, TypeError, r"weights\['batch'\] must be a number, not 'half'"),
        ({7: 1.0}, TypeError, r"weights is by owner, a str, not 7"),
        ([("batch", 1.0)], TypeError, r"weights must be a mapping of owners to numbers, not a list of 1"),
    ],
)
def test_a_wrong_weight_is_named_with_its_owner(weights: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=rf"^Admission.{said}"):
        Admission(weights=weights)


@pytest.mark.parametrize(
    ("kind", "wrong", "meant"),
    [
        (Bounds, "totl", "total"),
        (Bounds, "first_tokens", "first_token"),
        (Limits, "max_new_token", "max_new_tokens"),
        (Limits, "waiting", "waiting_max"),
        (RestartPolicy, "waits", "wait"),
        (Admission, "polcy", "policy"),
    ],
)
def test_an_unknown_setting_is_named_with_what_may_be_meant(kind: type, wrong: str, meant: str) -> None:
    with pytest.raises(TypeError, match=rf"{kind.__name__} has no argument '{wrong}'; did you mean '{meant}'\?"):
        kind(**{wrong: 5})


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("timeout", r"bounds=Bounds\(total=seconds\)"),
        ("deadline", r"bounds=Bounds\(total=seconds\)"),
        ("first_token", r"bounds=Bounds\(first_token=seconds\)"),
        ("streamer", "iterate over the generation"),
        ("stream", "iterate over the generation"),
        ("request_id", "label="),
        ("user", "owner="),
        ("messages", "first argument, prompt"),
        ("config", "generation_config="),
        ("lease_id", "lease="),
        ("images", "text only"),
        ("top_logprobs", "did you mean 'logprobs'"),
    ],
)
def test_a_keyword_of_another_api_is_answered_with_ours(given: str, remedy: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"'{given}' is not a field .*{remedy}"):
        asked(**{given: 5})


def test_suggestions_are_made_for_names_only() -> None:
    assert suggestion("totl", ["total"], {}) == "; did you mean 'total'?"
    assert suggestion("t" * 10**6, ["total"], {}) == ""
    assert suggestion(5, ["total"], {}) == ""


@pytest.mark.parametrize("value", ["abc", [], [[]], {"a": "b"}, 5, ["a", "b"], {"a": [1, None]}, [[["a"], {"b": 1.5}]]])
def test_what_is_found_too_large_is_too_large(value: object) -> None:
    written = len(json.dumps(value, separators=(",", ":")))
    assert not too_large(written, value)
    assert too_large(max(0, written // 2 - 1), value)


def test_cycles_and_abysses_are_too_large() -> None:
    for what in ("cyclic", "nested"):
        assert too_large(1 << 30, STRANGE[what])
