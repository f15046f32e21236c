"""Fields of a JSON body, checked one by one. Whatever is wrong is a 400 that names the field."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from examples.openai_server.problems import Problem, invalid

Check = Callable[[str, Any], Any]  #: of the field's name and its value, which is not null; the value to go on with
_SHOWN: Final = 60  #: characters of a wrong value that are repeated


def body_of(data: bytes) -> dict[str, Any]:
    """A JSON object."""
    try:
        body = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise invalid(None, f"the body is no JSON: {why}", "invalid_json") from None
    if not isinstance(body, dict):
        raise invalid(None, f"the body must be a JSON object, not {kind_of(body)}", "invalid_json")
    return body


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def read(body: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """What is there and not null, checked."""
    given = {name: value for name, value in body.items() if value is not None}
    for name in given:
        if name not in checks:
            raise invalid(name, f"{short(name)} is no field of this request", "unknown_parameter")
    return {name: checks[name](name, value) for name, value in given.items()}


# --- kinds of values -------------------------------------------------------------------------------------------------


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong(name, "true or false", value)
    return value


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong(name, "a string", value)
    return value


def mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(name, "an object", value)
    return value


def number(least: float = -math.inf, most: float = math.inf, *, above: bool = False) -> Check:
    """`above`: the least value itself is not allowed."""
    words = f"a number, {'more than' if above else 'at least'} {least:g} and at most {most:g}"

    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(name, words, value)
        if not (value > least if above else value >= least) or not value <= most:  # JSON has no NaN
            raise wrong(name, words, value)
        return value

    return check


def whole(least: int, most: int = 2**63 - 1) -> Check:
    words = f"a whole number, at least {least}" + (f" and at most {most}" if most < 2**63 - 1 else "")

    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise wrong(name, words, value)
        return value

    return check


def only(*values: Any, why: str) -> Check:
    """What this server cannot do: fields of OpenAI that would change the answer, unless they ask for nothing."""

    def check(name: str, value: Any) -> Any:
        if not any(type(value) is type(known) and value == known for known in values):
            raise invalid(name, f"{name}={short(value)} is not supported here: {why}", "unsupported_parameter")
        return value

    return check


def anything(name: str, value: Any) -> Any:
    """A field that changes nothing here."""
    return value


def objects(name: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise wrong(name, "a list of at least one object", value)
    return [mapping(f"{name}[{at}]", one) for at, one in enumerate(value)]


# --- words -----------------------------------------------------------------------------------------------------------


def wrong(name: str, wanted: str, value: Any) -> Problem:
    return invalid(name, f"{name} must be {wanted}, not {short(value)}")


def short(value: Any) -> str:
    """A number or a word as it is. Of what may be part of a prompt, only the kind."""
    if isinstance(value, str) and len(value) <= _SHOWN and value.isprintable():
        return repr(value)
    if value is None or isinstance(value, bool) or (isinstance(value, int | float) and len(repr(value)) <= _SHOWN):
        return json.dumps(value)
    return kind_of(value)


def kind_of(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
