"""`structured_output_config`: a grammar of one of the engine's kinds, as {kind: text}.

The engine's classes for composed grammars (Concat, Tag, TriggeredTags, …) become the JSON that it makes of them itself
before it compiles them, so that a composed grammar is plain data as well: it is sent, hashed and tried like any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from boundedgen._arguments import kind_of, plain_str, short, suggestion, too_large
from boundedgen._bounds import Limits
from boundedgen._errors import InvalidRequest
from boundedgen._text import check_text

_NAME: Final = "structured_output_config"
GRAMMARS: Final = ("json_schema", "regex", "grammar", "structural_tags_config", "compound_grammar")
_TAGS: Final = "structural_tags_config"
_COMPOUND: Final = "compound_grammar"
_LEGACY: Final = ("structural_tags", "triggers")
_DEPTH: Final = 50


def _plain(value: Any) -> Any:
    """Text and flags, as they are."""
    return plain_str(value) if isinstance(value, str) else bool(value)


def _schema(value: Any) -> Any:
    """The engine puts such a text into its JSON as it is."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{_NAME} holds a schema or content that is no JSON: {type(error).__name__}") from None


#: The engine's classes: the name in JSON, and of each attribute the name there and what becomes of it.
_PLAIN, _SCHEMA, _ONE, _MANY, _STRINGS = "plain", "schema", "one", "many", "strings"
CLASSES: Final[Mapping[str, tuple[str, Mapping[str, tuple[str, str]]]]] = {
    "AnyText": ("any_text", {}),
    "ConstString": ("const_string", {"value": ("value", _PLAIN)}),
    "Regex": ("regex", {"value": ("pattern", _PLAIN)}),
    "EBNF": ("grammar", {"value": ("grammar", _PLAIN)}),
    "JSONSchema": ("json_schema", {"value": ("json_schema", _SCHEMA)}),
    "QwenXMLParametersFormat": ("qwen_xml_parameter", {"json_schema": ("json_schema", _SCHEMA)}),
    "Concat": ("sequence", {"elements": ("elements", _MANY)}),
    "Union": ("or", {"elements": ("elements", _MANY)}),
    "Tag": ("tag", {"begin": ("begin", _PLAIN), "content": ("content", _ONE), "end": ("end", _PLAIN)}),
    "TriggeredTags": (
        "triggered_tags",
        {
            "triggers": ("triggers", _STRINGS),
            "tags": ("tags", _MANY),
            "at_least_one": ("at_least_one", _PLAIN),
            "stop_after_first": ("stop_after_first", _PLAIN),
        },
    ),
    "TagsWithSeparator": (
        "tags_with_separator",
        {
            "tags": ("tags", _MANY),
            "separator": ("separator", _PLAIN),
            "at_least_one": ("at_least_one", _PLAIN),
            "stop_after_first": ("stop_after_first", _PLAIN),
        },
    ),
}


def structured(value: Any, limits: Limits) -> dict[str, str]:
    """As {kind: text}. Raises InvalidRequest, which names the field."""
    read: Callable[[str], Any] = value.get if isinstance(value, Mapping) else lambda n: getattr(value, n, None)
    if not isinstance(value, Mapping) and type(value).__name__ != "StructuredOutputConfig":
        raise InvalidRequest(f"{_NAME} must be a StructuredOutputConfig or a mapping, not {kind_of(value)}")
    for key in value if isinstance(value, Mapping) else ():
        if key not in GRAMMARS:
            raise InvalidRequest(f"{_NAME} has no field {short(key)}{suggestion(key, GRAMMARS, {})}")
    given = [k for k in GRAMMARS if read(k) is not None]
    if len(given) != 1:
        raise InvalidRequest(f"{_NAME} must set exactly one of {', '.join(GRAMMARS)}; it sets {len(given)}")
    (kind,) = given
    if kind in (_TAGS, _COMPOUND):
        return {_TAGS: _text(f"{_NAME}.{kind}", _composed(kind, read(kind), limits), limits)}
    return {kind: _text(f"{_NAME}.{kind}", read(kind), limits)}


def _composed(kind: str, value: Any, limits: Limits) -> Any:
    """A structural tag, as a str or as plain data. Text is taken as it is: whether it means anything, a trial finds."""
    if isinstance(value, str):
        if kind == _COMPOUND:
            raise InvalidRequest(f"{_NAME}.{kind} must be one of the engine's formats or a mapping, not a str")
        return value
    form = value if isinstance(value, Mapping) else _Forms(limits.grammar_bytes).form(value, _DEPTH)
    if kind == _TAGS and isinstance(value, Mapping):
        if set(value) != set(_LEGACY):
            return value
        form = _triggered(value["triggers"], value["structural_tags"])
    return {"type": "structural_tag", "format": form}


def _triggered(triggers: Any, tags: Any) -> dict[str, Any]:
    """What StructuralTagsConfig says, in the words of TriggeredTags. `tags`: mappings of begin, schema and end."""
    if not all(isinstance(tag, Mapping) and set(tag) == {"begin", "schema", "end"} for tag in tags):
        raise InvalidRequest(f"{_NAME}.{_TAGS}.structural_tags must hold mappings of begin, schema and end")
    schemas = [tag["schema"] if isinstance(tag["schema"], Mapping) else _schema(tag["schema"]) for tag in tags]
    contents = [{"type": "json_schema", "json_schema": schema} for schema in schemas]
    made = [
        {"type": "tag", "begin": tag["begin"], "content": content, "end": tag["end"]}
        for tag, content in zip(tags, contents, strict=True)
    ]
    return {"type": "triggered_tags", "triggers": list(triggers), "tags": made}


class _Forms:
    """Reads the engine's objects. Some may hold themselves, or one another many times: it takes no more than `most`."""

    def __init__(self, most: int) -> None:
        self._most, self._left = most, most

    def form(self, value: Any, deeper: int) -> Any:
        self._left -= 1
        if self._left < 0 or deeper < 0:
            raise InvalidRequest(
                f"{_NAME} is more than {self._most} bytes (Limits.grammar_bytes), or nested too deeply"
            )
        name = type(value).__name__
        if isinstance(value, str):
            return _schema(self._counted(value))  # a Tag takes its content as JSON as well
        if name == "StructuralTagsConfig":
            tags = [{n: getattr(tag, n) for n in ("begin", "schema", "end")} for tag in value.structural_tags]
            return _triggered(value.triggers, tags)
        if name not in CLASSES:
            raise InvalidRequest(f"{_NAME} holds a {kind_of(value)}, which is none of {', '.join(CLASSES)}")
        told, attributes = CLASSES[name]
        read = {key: self._part(how, getattr(value, n), deeper - 1) for n, (key, how) in attributes.items()}
        return {"type": told, **read}

    def _part(self, how: str, value: Any, deeper: int) -> Any:
        if how == _SCHEMA:
            return _schema(self._counted(value))
        if how == _ONE:
            return self.form(value, deeper)
        if how == _PLAIN:
            return self._counted(value)
        return [self.form(item, deeper) if how == _MANY else self._counted(item) for item in value]

    def _counted(self, value: Any) -> Any:
        self._left -= len(value) if isinstance(value, str) else 1
        return _plain(value)


def _text(name: str, value: Any, limits: Limits) -> str:
    if isinstance(value, Mapping) and name.rpartition(".")[2] in ("json_schema", _TAGS, _COMPOUND):
        if too_large(limits.grammar_bytes, value):
            raise InvalidRequest(
                f"{name} is more than {limits.grammar_bytes} bytes (Limits.grammar_bytes), or nested too deeply"
            )
        try:
            value = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"{name} must hold plain JSON types: {type(error).__name__}") from None
    if not isinstance(value, str) or not (text := plain_str(value)):
        raise InvalidRequest(f"{name} must be a str of at least one character, not {kind_of(value)}")
    size = len(text) if len(text) > limits.grammar_bytes else len(check_text(name, text).encode())
    if size > limits.grammar_bytes:
        raise InvalidRequest(f"{name} is {size} bytes; at most {limits.grammar_bytes} (Limits.grammar_bytes)")
    return text
