"""What is public, and that it looks as promised."""

import ast
import inspect
from typing import Any

import attrs
import pytest

import boundedgen as b

VALUES = [getattr(b, name) for name in b.__all__ if inspect.isclass(getattr(b, name)) and attrs.has(getattr(b, name))]
ABSTRACT = {"BoundedGenError", "Rejected", "GenerationError", "EngineUnavailable", "InvalidRequest"}
GENERATION = {
    "result": "(timeout=None)",
    "wait": "(timeout=None)",
    "cancel": "()",
    "tighten": "(bounds)",
    "wait_reclaimed": "(timeout=None)",
    "await_reclaimed": "(timeout=None)",
}
GENERATION_PROPERTIES = [
    "id", "label", "owner", "phase", "bounds", "deadline", "remaining_s", "max_new_tokens", "finish_reason", "partial",
]  # fmt: skip
COROUTINES = ["asubmit", "agenerate", "agenerate_many", "aprobe", "await_ready", "aclose"]


def test_all_is_exactly_what_is_imported() -> None:
    """By mypy from one list and by Python from another."""
    source = ast.parse(inspect.getsource(b))
    seen_by_mypy = {
        (str(node.module), alias.name)
        for block in source.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen_by_mypy == {(f"boundedgen.{home}", name) for name, home in b._HOMES.items()}
    assert set(b.__all__) == set(b._HOMES)
    assert list(b.__all__) == sorted(b.__all__)
    assert all(getattr(b, name).__module__ == f"boundedgen.{b._HOMES[name]}" for name in b.__all__)


def test_what_is_not_public_is_no_name_and_what_is_is_listed() -> None:
    with pytest.raises(AttributeError, match="module 'boundedgen' has no attribute 'Pipeline'"):
        getattr(b, "Pipeline")  # noqa: B009
    assert set(b.__all__) <= set(dir(b))


def test_a_star_import_gives_them_and_nothing_else() -> None:
    names: dict[str, Any] = {}
    exec("from boundedgen import *", names)
    assert set(names) - {"__builtins__"} == set(b.__all__)


@pytest.mark.parametrize("name", b.__all__)
def test_every_public_name_says_what_it_is(name: str) -> None:
    thing = getattr(b, name)
    assert inspect.getdoc(thing), name
    if inspect.isclass(thing) and not issubclass(thing, BaseException):
        assert vars(thing).get("__doc__"), f"{name} inherits its docstring"


@pytest.mark.parametrize("name", [n for n in b.__all__ if n not in ABSTRACT and inspect.isclass(getattr(b, n))])
def test_every_public_class_is_final(name: str) -> None:
    assert getattr(getattr(b, name), "__final__", False), name


@pytest.mark.parametrize("value", VALUES)
def test_values_are_frozen_and_given_by_name(value: type) -> None:
    fields = [f for f in attrs.fields(value) if f.init]
    assert all(f.kw_only for f in fields) or value is b.Deadline
    assert value.__setattr__.__qualname__ != "object.__setattr__", "frozen"


@pytest.mark.parametrize("kind", [b.BoundedPipeline, b.Generation, b.Lease])
def test_every_public_method_has_a_signature_with_types(kind: type) -> None:
    for name, member in vars(kind).items():
        if inspect.isfunction(member) and not name.startswith("_"):
            signature = inspect.signature(member)
            assert signature.return_annotation is not inspect.Signature.empty, name
            untyped = [p for p in list(signature.parameters.values())[1:] if p.annotation is inspect.Parameter.empty]
            assert not untyped, name


def shape(function: Any) -> str:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    """Names and defaults."""
    return "(" + ", ".join(str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters) + ")"


@pytest.mark.parametrize(("name", "expected"), GENERATION.items())
def test_a_generation_has_the_methods_that_the_design_lists(name: str, expected: str) -> None:
    assert shape(getattr(b.Generation, name)) == expected


def test_a_generation_has_the_properties_that_the_design_lists() -> None:
    assert sorted(n for n, m in vars(b.Generation).items() if isinstance(m, property)) == sorted(GENERATION_PROPERTIES)
    assert all(inspect.isgeneratorfunction(m) is False for m in (b.Generation.__iter__, b.Generation.__aiter__))
    for name in ("__iter__", "__aiter__", "__await__", "__enter__", "__exit__", "__aenter__", "__aexit__"):
        assert name in vars(b.Generation)


def test_the_constructor_begins_like_the_engine_s_own() -> None:
    parameters = list(inspect.signature(b.BoundedPipeline).parameters.values())
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    assert positional == ["models_path", "scheduler_config", "device", "properties"]
    assert named == [
        "tokenizer_properties", "adapters", "limits", "bounds", "lease_ttl", "admission", "restart", "draft",
        "prompt_lookup", "black_box", "device_lock", "engine", "clock",
    ]  # fmt: skip
    assert inspect.signature(b.BoundedPipeline).parameters["device"].default == "GPU"


def test_submit_takes_what_the_design_lists() -> None:
    parameters = inspect.signature(b.BoundedPipeline.submit).parameters
    assert list(parameters)[1:] == [
        "prompt", "generation_config", "bounds", "lease", "owner", "priority", "label", "supersede", "tools",
        "template_context", "images", "traceparent", "config",
    ]  # fmt: skip
    assert parameters["config"].kind is inspect.Parameter.VAR_KEYWORD


def test_options_are_given_by_name() -> None:
    for name, option in (("lease", "ttl"), ("stats", "sequences"), ("submit", "bounds"), ("generate", "timeout")):
        parameter = inspect.signature(getattr(b.BoundedPipeline, name)).parameters[option]
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("name", COROUTINES)
def test_every_call_that_waits_has_its_awaitable(name: str) -> None:
    assert inspect.iscoroutinefunction(getattr(b.BoundedPipeline, name))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lease", "(owner, ttl, renew_on_read=False, max_sequences=None)"),
        ("find_lease", "(lease_id)"),
        ("renew", "(lease_id, owner=None)"),
        ("revoke", "(lease_id)"),
        ("stats", "(sequences=False)"),
        ("health", "()"),
        ("close", "(drain=0)"),
        ("aclose", "(drain=0)"),
        ("wait_ready", "(timeout=None)"),
        ("await_ready", "(timeout=None)"),
    ],
)
def test_the_pipeline_has_the_methods_that_the_design_lists(name: str, expected: str) -> None:
    assert shape(getattr(b.BoundedPipeline, name)) == expected


@pytest.mark.parametrize("kind", [b.SchedulerStats, b.Health, b.ReclaimStats, b.ProbeResult])
def test_names_of_numbers_carry_their_units(kind: type) -> None:
    for field in attrs.fields(kind):
        if "float" in str(field.type) and field.name not in (
            "cache_usage",
            "cache_usage_max",
            "tokens_per_s",
            "service_error",
            "seconds",
            "adapters",  # file names -> weights
        ):
            assert field.name.endswith("_s") or "seconds" in field.name, field.name
