"""README and docs say what is true: generated parts, code blocks, names, links, references to tests, requirements."""

import ast
import importlib.metadata
import importlib.util
import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from gpu import emulation

import boundedgen
from boundedgen import (
    BoundedGenError,
    BoundedPipeline,
    Bounds,
    Completion,
    Generation,
    GenerationError,
    Health,
    Limits,
    ProbeResult,
    Rejected,
    RestartPolicy,
    SchedulerStats,
)
from boundedgen._asking import POLICY_ANSWER
from boundedgen._core._events import Cause, Pulse
from boundedgen._core._pace import FIRST_STEPS, Pace
from boundedgen._engine._findings import TESTED
from boundedgen._generation_fields import FIELDS
from boundedgen._refused_fields import REFUSED, REFUSED_OF_SCHEDULER
from boundedgen._scheduler_config import TAKEN

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: What a name in code stands for, here and in every example.
OBJECTS: dict[str, type] = {
    "pipeline": BoundedPipeline,
    "generation": Generation,
    "stats": SchedulerStats,
    "health": Health,
    "probe": ProbeResult,
    "answer": Completion,
}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return load(ROOT / "docs" / "generate.py")


def blocks(page: Path) -> Iterator[str]:
    yield from re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def sources() -> list[Path]:
    return sorted((ROOT / "examples").glob("*.py"))


# --- generated parts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_parts_are_up_to_date(page: Path, generator: ModuleType) -> None:
    assert generator.renewed(page.read_text(encoding="utf-8")) == page.read_text(encoding="utf-8"), "run: nox -s docs"


def test_every_generated_part_is_on_some_page_and_is_not_empty(generator: ModuleType) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert {match[2] for match in generator.PART.finditer(text)} == set(generator.PARTS)
    assert all(part().strip() for part in generator.PARTS.values())


def test_a_part_that_is_out_of_date_is_noticed(generator: ModuleType) -> None:
    stale = "<!-- generated: limits -->\n| old |\n<!-- end -->"
    assert "`running_max`" in generator.renewed(stale)


def test_the_error_table_has_a_row_for_every_error_that_can_be_raised(generator: ModuleType) -> None:
    public = [getattr(boundedgen, name) for name in boundedgen.__all__]
    errors = {kind for kind in public if isinstance(kind, type) and issubclass(kind, BoundedGenError)}
    table = generator.errors()
    for kind in errors - {BoundedGenError, Rejected, GenerationError}:
        row = rf"^\| `{kind.__name__}` \|.*\| {kind.http_status_hint} \| {kind.grpc_status_hint} \|"
        assert re.search(row, table, re.MULTILINE), kind


def test_the_wait_in_the_table_of_times_is_the_default_policys(generator: ModuleType) -> None:
    waits = [RestartPolicy().delay(1, 0.0) for _ in range(300)]
    longest = max(wait for wait in waits if wait is not None)
    assert None not in waits
    assert 0.9 * generator.FIRST_WAIT < longest <= generator.FIRST_WAIT


def test_the_table_of_times_follows_the_limits(generator: ModuleType) -> None:
    tight = Limits(
        step=1, step_per_token=0.0, step_per_attention=0.0, step_max=2, first_step=3, new_shape=1, progress=4
    )
    table = generator.answer_times(tight)
    assert "| 1 s |" in table  # an ordinary step
    assert "| 2 s |" in table  # any step
    assert "| 2 s; at most 3 s |" in table  # one of the first of its size
    assert "| 5 s |" in table  # one of the first
    assert "| 5 s; at most 9 s |" in table  # steps that do nothing, and the last of them one of the first
    assert generator.until_the_next_token(tight) == tight.reap + POLICY_ANSWER + generator.FIRST_WAIT + tight.boot + 5


def test_the_worst_case_that_is_quoted_is_the_sum_of_the_defaults(generator: ModuleType) -> None:
    limits = Limits()
    step = Pace(limits).budget(Pulse(steps_begun=FIRST_STEPS, scheduled=10**6, attention=10**12))
    answer = limits.progress + step
    token = answer + limits.reap + POLICY_ANSWER + generator.FIRST_WAIT + limits.boot + step
    assert f"answered within {answer:g} s of" in generator.quote()
    assert f"within {token:.3g} s of the fault" in " ".join(generator.quote().replace(">", "").split())


# --- the API ---------------------------------------------------------------------------------------------------------


def test_every_public_name_is_told_of_once(generator: ModuleType) -> None:
    told = [name for part in generator.API.values() for name in part]
    assert sorted(told) == sorted(boundedgen.__all__)


def public_classes() -> list[type]:
    return [kind for name in boundedgen.__all__ if inspect.isclass(kind := getattr(boundedgen, name))]


@pytest.mark.parametrize("kind", public_classes(), ids=lambda kind: kind.__name__)
def test_every_field_method_and_property_says_what_it_is(kind: type, generator: ModuleType) -> None:
    rows = [*generator.fields_of(kind), *generator.properties_of(kind)]
    assert [row[0] for row in rows if not row[2]] == []
    assert {field.name for field in getattr(kind, "__attrs_attrs__", ())} <= {row[0].strip("`") for row in rows}
    assert [node.name for node in generator.methods_of(kind) if not ast.get_docstring(node)] == []
    named = {node.name for node in generator.methods_of(kind)} | {row[0].strip("`") for row in rows}
    own = {name for name, value in vars(kind).items() if inspect.isroutine(value) or isinstance(value, property)}
    assert {name for name in own if name[0] != "_"} <= named


@pytest.mark.parametrize("kind", public_classes(), ids=lambda kind: kind.__name__)
def test_every_parameter_is_named_in_the_docstring(kind: type, generator: ModuleType) -> None:
    functions = [(node, ast.get_docstring(node) or "") for node in generator.methods_of(kind)]
    if kind is BoundedPipeline:
        functions += [(node, kind.__doc__ or "") for node in generator.public_body(kind) if node.name == "__init__"]
    for node, doc in functions:
        given = node.args
        every = [*given.args, *given.kwonlyargs, *([given.kwarg] if given.kwarg else [])]
        assert [a.arg for a in every if a.arg not in ("self", "cls") and f"`{a.arg}`" not in doc] == [], node.name


def test_a_field_without_a_word_is_noticed(generator: ModuleType) -> None:
    source = "class A:\n    #: above\n    a: int\n    b: int  #: beside\n    c: int\n"
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    assert [generator.remark(item, source.splitlines()) for item in body.body] == ["above", "beside", ""]


def test_links_within_the_api_lead_to_headings() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    headings = {re.sub(r"[^\w -]", "", title).lower() for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    links = re.findall(r"\]\(#([^)]+)\)", text)
    assert links
    assert set(links) <= headings


# --- code on the pages -----------------------------------------------------------------------------------------------


def test_there_is_code_to_check() -> None:
    assert len(list(blocks(ROOT / "README.md"))) >= 3
    assert sum(len(list(blocks(page))) for page in PAGES) >= 9


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_on_the_pages_runs_up_to_its_first_call(page: Path) -> None:
    for block in blocks(page):
        exec(compile(block, page.name, "exec"), {"__name__": "page"})


def unknown_names(tree: ast.AST) -> Iterator[str]:
    """Attributes of our module and of objects whose kind their name tells, that do not exist."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = boundedgen if node.value.id in ("b", "boundedgen") else OBJECTS.get(node.value.id)
            if owner is not None and not has(owner, node.attr):
                yield f"{node.value.id}.{node.attr}"


def has(owner: object, name: str) -> bool:
    fields = {field.name for field in getattr(owner, "__attrs_attrs__", ())}
    return hasattr(owner, name) or name in fields


def test_names_used_in_examples_exist() -> None:
    assert sources()
    assert [name for path in sources() for name in unknown_names(ast.parse(path.read_text(encoding="utf-8")))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_used_in_the_text_exist(page: Path) -> None:
    """`pipeline.x`, `generation.x`, `stats().x`, `Limits.x` and the like."""
    kinds = {**OBJECTS, **{name: getattr(boundedgen, name) for name in boundedgen.__all__}}
    for owner, name in re.findall(r"`(\w+)(?:\(\))?\.([a-z]\w*)", page.read_text(encoding="utf-8")):
        if owner in kinds:
            assert has(kinds[owner], name), f"{owner}.{name} on {page.name}"


def test_a_name_that_does_not_exist_is_noticed() -> None:
    found = unknown_names(ast.parse("pipeline.submit(b.Bounds()); pipeline.restart(); b.Nothing"))
    assert set(found) == {"pipeline.restart", "b.Nothing"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (page.parent / target).resolve().exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_are_named_exist(page: Path) -> None:
    """As `file::name`, or as `folder::name`, which `pytest folder -k name` runs."""
    for place, name in re.findall(r"`(tests/[\w/]+(?:\.py)?)::(\w+)`", page.read_text(encoding="utf-8")):
        files = [ROOT / place] if place.endswith(".py") else [*(ROOT / place).glob("*.py")]
        assert any(f"def {name}(" in file.read_text(encoding="utf-8") for file in files), (
            f"{place}::{name}: renamed? mend {page.name}"
        )


# --- the project -----------------------------------------------------------------------------------------------------


def test_nox_installs_the_emulation_that_the_tests_want() -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    given = next(ast.literal_eval(node.value) for node in assigned if ast.unparse(node.targets[0]) == "GPU_EMULATION")
    assert set(given) == {f"{name}=={version}" for name, version in emulation.RUNTIME.items()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"`((?:_\w+/)?_\w+\.py)`", page.read_text(encoding="utf-8")):
        assert (ROOT / "src" / "boundedgen" / name).exists(), name


def test_the_installed_distribution_is_whole() -> None:
    """A wheel has the type marker, the modules that only child processes run, and the licence."""
    distribution = importlib.metadata.distribution("boundedgen")
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        pytest.skip("installed in editable mode: there are no files of its own to look at")
    files = {str(path) for path in distribution.files or ()}
    wanted = (
        "py.typed",
        "_engine/__main__.py",
        "_engine/_start.py",
        "_engine/_grammar_child.py",
        "testing/_faulty_child.py",
    )
    assert {f"boundedgen/{name}" for name in wanted} | {"_boundedgen_pytest.py"} <= files
    assert any(name.endswith("licenses/LICENSE") for name in files)
    assert distribution.version == boundedgen.__version__


def test_the_releases_that_are_called_tested_pass_all_that_they_run_in_the_table_of_releases() -> None:
    rows = (
        (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8").split("|  |")[1].split("\n\n")[0].splitlines()
    )
    assert tuple(name.strip() for name in rows[0].split("|") if name.strip()) == TESTED
    cells = [cell for row in rows for cell in re.findall(r"(\d+) of (\d+)", row)]
    assert len(cells) % len(TESTED) == 0
    assert all(passed == run for passed, run in cells)
    least = min(TESTED, key=lambda release: [*map(int, release.split("."))])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {f"openvino>={least}", f"openvino-genai>={least}"} <= set(project["dependencies"])
    assert f"openvino-genai, {least} or newer" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_field_of_the_engines_configurations_names_a_test_that_is_there() -> None:
    page = (ROOT / "docs" / "generation-config.md").read_text(encoding="utf-8")
    sources = [
        (ROOT / file).read_text(encoding="utf-8") for file in sorted(set(re.findall(r"`(tests/.+?\.py)`", page)))
    ]
    assert len(sources) == 2
    checks = {name for source in sources for name in re.findall(r"^def (\w+)\(", source, re.MULTILINE)}
    taken, refused = (set(re.findall(rf"\| `{how}\[(\w+)\]` \|$", page, re.MULTILINE)) for how in ("taken", "refused"))
    assert taken == {*FIELDS, *TAKEN}
    assert taken <= checks, "each has a check of its name"
    assert refused == {*REFUSED, *REFUSED_OF_SCHEDULER}
    for name in re.findall(r"`(test_\w+)\[", page):
        assert name in checks


def test_every_cause_of_an_engines_end_is_explained_to_an_operator() -> None:
    part = (ROOT / "docs" / "incidents.md").read_text(encoding="utf-8").split("## Causes")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| .+ \| .+ \| .+ \|$", part, re.MULTILINE)
    assert rows == [cause.name for cause in Cause]


@pytest.mark.parametrize("kind", [Bounds, Limits, RestartPolicy, Health, SchedulerStats])
def test_help_of_a_value_type_tells_what_its_fields_mean_or_where_that_is(kind: type) -> None:
    told = inspect.getdoc(kind) or ""
    if kind is Limits:
        assert all(f"\n{row['name']}: {row['unit']}: {row['why']}" in told for row in Limits.table())
    else:
        assert told.endswith(f"\n\nWhat each field means: docs/api.md, or inspect.getsource({kind.__name__}).")
        assert "#:" in inspect.getsource(kind)
