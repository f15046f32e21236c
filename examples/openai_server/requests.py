"""What a client asks for: a chat or a plain completion, read from the body and the headers, all of it checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, final

from attrs import frozen

import boundedgen as b
from examples.openai_server.bounding import bounds_of
from examples.openai_server.fields import (
    Check,
    anything,
    flag,
    mapping,
    number,
    objects,
    only,
    read,
    short,
    text,
    whole,
    wrong,
)
from examples.openai_server.messages import messages_of
from examples.openai_server.problems import Problem, invalid
from examples.openai_server.settings import Settings

Kind = Literal["chat", "text"]
PROMPTS: Final[Mapping[Kind, str]] = {"chat": "messages", "text": "prompt"}  #: the fields that they are in


@final
@frozen(kw_only=True)
class Asked:
    """One request, of which nothing has been submitted yet."""

    kind: Kind
    prompts: Sequence[Any]  #: of a chat there is one
    choices: int  #: of each prompt
    config: Mapping[str, Any]  #: fields of a generation configuration
    arguments: Mapping[str, Any]  #: other keywords of `submit`
    stream: bool
    include_usage: bool
    logprobs: bool
    top_logprobs: bool  #: the list of alternatives of a token, of which the engine tells of one: the token itself
    calls_tools: bool
    lease: str | None

    def submissions(self) -> list[tuple[Any, dict[str, Any]]]:
        """A prompt and its configuration for each choice, in the order of their indices."""
        seed = self.config.get("rng_seed")
        return [
            (prompt, dict(self.config) if seed is None else {**self.config, "rng_seed": (seed + n) % 2**63})
            for prompt in self.prompts
            for n in range(self.choices)
        ]


# --- fields of their own ---------------------------------------------------------------------------------------------


def stop_strings(name: str, value: Any) -> list[str]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(one, str) and one for one in strings):
        raise wrong(name, "a string of at least one character, or a list of such", value)
    return strings


def stream_options(name: str, value: Any) -> bool:
    """Whether the usage is to come at the end."""
    checks: dict[str, Check] = {"include_usage": flag, "include_obfuscation": flag}
    given = {key.rpartition(".")[2]: one for key, one in _inside(name, value, checks).items()}
    return bool(given.get("include_usage", False))


def response_format(name: str, value: Any) -> str | None:
    """A JSON schema; None: any text."""
    given = mapping(name, value)
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return '{"type": "object"}'
    if kind != "json_schema":
        raise invalid(f"{name}.type", f'{name}.type must be "text", "json_object" or "json_schema", not {short(kind)}')
    wrapped = mapping(f"{name}.json_schema", given.get("json_schema"))
    return json.dumps(mapping(f"{name}.json_schema.schema", wrapped.get("schema")))


def tools_of(name: str, value: Any) -> list[dict[str, Any]]:
    if value == []:
        return []
    tools = objects(name, value)
    for at, tool in enumerate(tools):
        where = f"{name}[{at}]"
        if tool.get("type") != "function":
            raise invalid(f"{where}.type", f'{where}.type must be "function", not {short(tool.get("type"))}')
        function = mapping(f"{where}.function", tool.get("function"))
        if not text(f"{where}.function.name", function.get("name")):
            raise invalid(f"{where}.function.name", f"{where}.function.name is empty")
        if function.get("parameters") is not None:
            mapping(f"{where}.function.parameters", function["parameters"])
    return tools


def prompts_of(name: str, value: Any) -> list[Any]:
    """Texts, or rows of token ids."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise wrong(name, "a string, a list of strings, token ids, or a list of rows of token ids", value)
    if all(isinstance(one, int) and not isinstance(one, bool) for one in value):
        return [value]
    for at, one in enumerate(value):
        row = isinstance(one, list) and one and all(isinstance(i, int) and not isinstance(i, bool) for i in one)
        if not isinstance(one, str) and not row:
            raise wrong(f"{name}[{at}]", "a string or a row of token ids", one)
    return value


def _inside(name: str, value: Any, checks: Mapping[str, Check]) -> dict[str, Any]:
    return read(
        {f"{name}.{key}": one for key, one in mapping(name, value).items()},
        {f"{name}.{key}": check for key, check in checks.items()},
    )


_TOKEN_BIAS: Final = "the engine has no such field"
_SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p", "rng_seed")
COMMON: Final[Mapping[str, Check]] = {
    "model": text,
    "stream": flag,
    "stream_options": stream_options,
    "max_tokens": whole(1),
    "temperature": number(0, 2),
    "top_p": number(0, 1, above=True),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "seed": whole(-(2**63)),
    "stop": stop_strings,
    "n": whole(1),
    "logit_bias": only({}, why=_TOKEN_BIAS),
    # What other servers of open models have too.
    "top_k": whole(0),
    "min_p": number(0, 1),
    "repetition_penalty": number(0, above=True),
    "min_tokens": whole(0),
    "ignore_eos": flag,
    "bounds": mapping,
    "lease": text,
    # Nothing here depends on these.
    **dict.fromkeys(("user", "metadata", "store", "service_tier", "safety_identifier"), anything),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"), anything),
}
CHAT: Final[Mapping[str, Check]] = {
    **COMMON,
    "messages": messages_of,
    "max_completion_tokens": whole(1),
    "logprobs": flag,
    "top_logprobs": whole(0, 1),
    "response_format": response_format,
    "tools": tools_of,
    "tool_choice": only("auto", "none", why="a model cannot be made to call a tool"),
    "parallel_tool_calls": only(True, why="a model cannot be kept from calling several"),
    "chat_template_kwargs": mapping,
    "functions": only([], why="use tools"),
    "function_call": only("auto", "none", why="use tools"),
    "audio": only(why="this server serves text"),
    "modalities": only(["text"], why="this server serves text"),
    "moderation": only(why="there is none"),
    "web_search_options": only(why="there is no search"),
    **dict.fromkeys(("reasoning_effort", "verbosity", "prediction"), anything),
}
TEXT: Final[Mapping[str, Check]] = {
    **COMMON,
    "prompt": prompts_of,
    "logprobs": whole(0, 1),
    "best_of": whole(1),
    "echo": only(False, why="the prompt is not repeated"),
    "suffix": only("", why="this server only continues"),
}
#: Their names in a generation configuration.
_CONFIG: Final[Mapping[str, str]] = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",  # the later name, which wins
    "min_tokens": "min_new_tokens",
    "stop": "stop_strings",
    "seed": "rng_seed",
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "ignore_eos")},
    **{name: name for name in ("presence_penalty", "frequency_penalty", "repetition_penalty")},
}


def asked_of(kind: Kind, body: Mapping[str, Any], headers: Mapping[str, str], settings: Settings) -> Asked:
    """Raises Problem, which names the field."""
    given = read(body, CHAT if kind == "chat" else TEXT)
    _check_model(given, settings)
    what = PROMPTS[kind]
    if what not in given:
        raise invalid(what, f"{what} is missing", "missing_required_parameter")
    _check_together(given)
    stream = given.get("stream", False)
    asked = Asked(
        kind=kind,
        prompts=[given["messages"]] if kind == "chat" else given["prompt"],
        choices=given.get("n", 1),
        config=_config(given),
        arguments=_arguments(given, headers, stream),
        stream=stream,
        include_usage=given.get("stream_options", False),
        logprobs=_wants_logprobs(given),
        top_logprobs=(given.get("top_logprobs") if kind == "chat" else given.get("logprobs")) == 1,
        calls_tools=_calls_tools(given),
        lease=given.get("lease") or headers.get("x-lease-id") or None,
    )
    _check_choices(asked, settings)
    return asked


def _check_model(given: Mapping[str, Any], settings: Settings) -> None:
    if "model" not in given:
        raise invalid("model", f"model is missing; it is {settings.model!r} here", "missing_required_parameter")
    if not settings.knows(given["model"]):
        text = f"the model {short(given['model'])} does not exist; it is {settings.model!r} here"
        raise Problem(404, text, param="model", code="model_not_found")


def _check_together(given: Mapping[str, Any]) -> None:
    if "stream_options" in given and not given.get("stream"):
        raise invalid("stream_options", "stream_options is only for stream=true")
    if given.get("top_logprobs") and not given.get("logprobs"):
        raise invalid("top_logprobs", "top_logprobs is only for logprobs=true")
    if "best_of" in given and given["best_of"] != given.get("n", 1):
        raise invalid("best_of", "best_of must be n, or left out", "unsupported_parameter")


def _check_choices(asked: Asked, settings: Settings) -> None:
    wanted = len(asked.prompts) * asked.choices
    if wanted > settings.choices_max:
        which = "n" if len(asked.prompts) == 1 else "prompt"
        raise invalid(which, f"{which} asks for {wanted} generations; one request may have {settings.choices_max}")


def _wants_logprobs(given: Mapping[str, Any]) -> bool:
    return given.get("logprobs", False) is not False  # of a plain completion 0 asks for those of the tokens themselves


def _calls_tools(given: Mapping[str, Any]) -> bool:
    return bool(given.get("tools")) and given.get("tool_choice") != "none"


def _config(given: Mapping[str, Any]) -> dict[str, Any]:
    config = {name: given[field] for field, name in _CONFIG.items() if field in given}
    if "rng_seed" in config:
        config["rng_seed"] %= 2**63
    if config.get("temperature") == 0:
        config["do_sample"] = False
    elif any(name in config for name in _SAMPLING):
        config["do_sample"] = True
    if _wants_logprobs(given):
        config["logprobs"] = 1
    if given.get("response_format"):
        config["structured_output_config"] = {"json_schema": given["response_format"]}
    return config


def _arguments(given: Mapping[str, Any], headers: Mapping[str, str], stream: bool) -> dict[str, Any]:
    arguments: dict[str, Any] = {"bounds": bounds_of(given.get("bounds", {}), headers, stream=stream)}
    if _calls_tools(given):
        arguments["tools"] = given["tools"]
    if given.get("chat_template_kwargs"):
        arguments["template_context"] = given["chat_template_kwargs"]
    if "traceparent" in headers:
        arguments["traceparent"] = headers["traceparent"]
    return {name: value for name, value in arguments.items() if value not in (None, b.Bounds())}
