"""The shape of the code: imports point one way, files and functions stay small, names say what they are."""

import ast
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "boundedgen"
FILES = sorted(SRC.rglob("*.py"))
MODULES = {".".join(("boundedgen", *path.relative_to(SRC).with_suffix("").parts)): path for path in FILES}
LINES_MAX = 400
FUNCTION_MAX, FUNCTION_P90, FUNCTION_MEDIAN = 60, 25, 8

IMPURE = {
    "time",
    "random",
    "secrets",
    "os",
    "threading",
    "asyncio",
    "select",
    "socket",
    "subprocess",
    "openvino",
    "numpy",
}
START = "boundedgen._engine._start"
NAMES_TO_AVOID = ("utils", "util", "helpers", "manager", "handler", "common", "misc")

#: Layers, lowest first. A module imports its own layer and lower ones.
PURE = ("boundedgen._core", "boundedgen._admission", "boundedgen._bounds", "boundedgen._errors")
LAYERS: list[tuple[str, ...]] = [
    ("boundedgen._kinds", "boundedgen._arguments", "boundedgen._fields", "boundedgen._admission", "boundedgen._bounds",
     "boundedgen._errors", "boundedgen._descriptors", "boundedgen._completion", "boundedgen._output",
     "boundedgen._refused_fields", "boundedgen._unreported"),
    ("boundedgen._core",),
    ("boundedgen.abc", "boundedgen._clock", "boundedgen._stats", "boundedgen._restart", "boundedgen._settings",
     "boundedgen._aside", "boundedgen._retrying", "boundedgen._returning",
     "boundedgen._bell", "boundedgen._wakers", "boundedgen._door", "boundedgen._forks", "boundedgen._text",
     "boundedgen._utf8", "boundedgen._lexicon", "boundedgen._detokenizer",
     "boundedgen._device_lock", "boundedgen._adapters", "boundedgen._adapter_check", "boundedgen._safetensors",
     "boundedgen._prompt", "boundedgen._images", "boundedgen._vision", "boundedgen._scenery",
     "boundedgen._generation_config", "boundedgen._generation_fields",
     "boundedgen._grammar_fields", "boundedgen._scheduler_config", "boundedgen._kind_options",
     "boundedgen._engine", "boundedgen._grammar",
     "boundedgen._stats_listener", "boundedgen._stats_socket", "boundedgen._stats_document"),
    ("boundedgen._flow", "boundedgen._snapshot", "boundedgen._lease", "boundedgen._waiting", "boundedgen._runtime",
     "boundedgen._following"),
    ("boundedgen._evidence", "boundedgen._leaving", "boundedgen._asking", "boundedgen._journal"),
    ("boundedgen._driver",),
    ("boundedgen._observing", "boundedgen._generation", "boundedgen._probing", "boundedgen._making",
     "boundedgen._loading", "boundedgen._leasing", "boundedgen._call", "boundedgen._admitting", "boundedgen._seeing",
     "boundedgen._prospects",
     "boundedgen._blackbox"),
    ("boundedgen._serving", "boundedgen._closing", "boundedgen._exchanging"),
    ("boundedgen._pipeline",),
    ("boundedgen.__init__",),
    ("boundedgen.endpoints",),
    ("boundedgen.testing", "boundedgen.exporters", "boundedgen.systemd", "boundedgen._doctor",
     "boundedgen.__main__", "boundedgen._top"),
]  # fmt: skip


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def typing_only(module: ast.Module) -> set[ast.AST]:
    """Everything under `if TYPE_CHECKING:`."""
    blocks = [n for n in ast.walk(module) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    return {inner for block in blocks for statement in block.body for inner in ast.walk(statement)}


def imports(path: Path, *, runtime: bool = True) -> Iterator[str]:
    module = tree(path)
    left_out = typing_only(module) if runtime else set()
    for node in ast.walk(module):
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(name: str) -> int:
    found = [n for n, names in enumerate(LAYERS) for own in names if name == own or name.startswith(own + ".")]
    assert found, f"{name} has no layer: put it into LAYERS"
    return found[0]


def own(name: str) -> str | None:
    """The module of ours that an imported name belongs to."""
    while name.startswith("boundedgen"):
        if name in MODULES or f"{name}.__init__" in MODULES:
            return name if name in MODULES else f"{name}.__init__"
        name = name.rpartition(".")[0]
    return None


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module: str) -> None:
    for name in imports(MODULES[module]):
        target = own(name)
        if target is not None and not target.startswith("boundedgen._core.__init__"):
            assert layer(target) <= layer(module), f"{module} imports {target}"


def test_there_is_no_circle_of_imports() -> None:
    edges = {
        module: {t for name in imports(path) if (t := own(name)) and t != module} for module, path in MODULES.items()
    }
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join((*way, module))
        if module not in done:
            for target in edges[module]:
                visit(target, (*way, module))
            done.add(module)

    for module in edges:
        visit(module, ())


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("boundedgen._core")])
def test_the_core_is_pure(module: str) -> None:
    for name in imports(MODULES[module], runtime=False):
        top = name.split(".")[0]
        assert top not in IMPURE, f"{module} imports {name}"
        if top == "boundedgen":
            assert name.startswith(PURE), name
        else:
            assert top == "attrs" or top in sys.stdlib_module_names, name


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("boundedgen._core")])
def test_the_core_reads_no_clock_and_no_randomness(module: str) -> None:
    calls = [ast.unparse(n.func) for n in ast.walk(tree(MODULES[module])) if isinstance(n, ast.Call)]
    known = {"boundedgen._core._copying": ["id"]}  # what a copy shares; it decides nothing
    found = [c for c in calls if c in ("open", "print", "input", "id", "hash") or c.split(".")[0] in IMPURE]
    assert found == known.get(module, [])


def test_only_one_file_drives_the_engine() -> None:
    word = "ContinuousBatchingPipeline("
    users = {m for m, path in MODULES.items() if word in path.read_text(encoding="utf-8")}
    assert users == {"boundedgen._engine._genai"}


def test_the_product_does_not_know_its_test_kit() -> None:
    for module, path in MODULES.items():
        if not module.startswith("boundedgen.testing"):
            assert not [n for n in imports(path, runtime=False) if n.startswith("boundedgen.testing")], module


@pytest.mark.parametrize("forbidden", ["pickle", "marshal", "shelve", "multiprocessing"])
def test_nothing_is_pickled(forbidden: str) -> None:
    for module, path in MODULES.items():
        assert forbidden not in {name.split(".")[0] for name in imports(path, runtime=False)}, module


def in_a_fresh_process(code: str, cwd: Path | None = None) -> list[str]:
    """The words that `code` prints."""
    command = [sys.executable, "-W", "error", "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(SRC.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    "module",
    [
        "boundedgen.testing",
        "boundedgen.systemd",
        "boundedgen.endpoints",
        "boundedgen._pipeline",
        "boundedgen.exporters.opentelemetry",
    ],
)
def test_importing_it_loads_no_engine_and_starts_nothing(module: str) -> None:
    said = in_a_fresh_process(f"import sys, threading, {module}; print(threading.active_count(), *sys.modules)")
    loaded = {name.split(".")[0] for name in said}
    assert not loaded & {"openvino", "openvino_genai", "openvino_tokenizers", "numpy"}
    assert said[0] == "1"


def test_a_name_is_imported_when_it_is_asked_for() -> None:
    """The import itself is a few milliseconds: it needs none of what costs more."""
    said = set(in_a_fresh_process("import sys, boundedgen; print(*sys.modules)"))
    assert {name for name in said if "boundedgen" in name} == {"boundedgen", "boundedgen._engine", START}
    assert not said & {"attr", "asyncio", "tenacity", "logging", "inspect", "socket", "threading"}


def test_an_engine_imports_nothing_that_only_its_server_needs() -> None:
    said = set(in_a_fresh_process("import sys, boundedgen._engine._child; print(*sys.modules)"))
    assert not said & {"boundedgen._driver", "boundedgen._core._governor", "asyncio", "tenacity", "logging"}


def test_where_it_was_imported_is_remembered_whatever_is_asked_for_later(tmp_path: Path) -> None:
    """A daemon goes to / before it builds its pipeline, and its engines import from where it did."""
    code = "import os, sys; sys.path.append('lib'); import boundedgen; os.chdir('/'); boundedgen.BoundedPipeline\n"
    said = in_a_fresh_process(f"{code}from {START} import places; print(*places())", tmp_path)
    assert str(tmp_path / "lib") in said


# --- size ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_files_are_short(module: str) -> None:
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) < LINES_MAX


def function_lengths() -> dict[str, int]:
    found = {}
    for module, path in MODULES.items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not protocol_stub(node):
                found[f"{module}:{node.lineno} {node.name}"] = (node.end_lineno or node.lineno) - node.lineno + 1
    return found


def protocol_stub(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    last = node.body[-1]
    return isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant) and last.value.value is ...


def test_functions_are_short() -> None:
    lengths = function_lengths()
    in_order = sorted(lengths.values())
    p90 = in_order[int(len(in_order) * 0.9)]
    longest = sorted(lengths.items(), key=lambda item: -item[1])[:5]
    print(f"{len(in_order)} functions: median {statistics.median(in_order)}, p90 {p90}, longest {longest}")
    assert statistics.median(in_order) <= FUNCTION_MEDIAN
    assert p90 <= FUNCTION_P90
    assert longest[0][1] <= FUNCTION_MAX, longest


# --- names -----------------------------------------------------------------------------------------------------------


def test_names_say_what_a_thing_is() -> None:
    names = {path.stem.strip("_").lower() for path in FILES}
    for path in FILES:
        names |= {n.name.strip("_").lower() for n in ast.walk(tree(path)) if isinstance(n, ast.ClassDef)}
    assert not [name for name in names for bad in NAMES_TO_AVOID if name == bad or name.endswith(bad)]


def test_every_module_says_what_it_is_for() -> None:
    silent = [m for m, path in MODULES.items() if path.stat().st_size and not ast.get_docstring(tree(path))]
    assert silent == []


def test_no_lock_is_waited_for_by_the_driver() -> None:
    """Locks are among callers; the driver's own files have none."""
    for name in ("_driver", "_flow", "_wakers", "_snapshot"):
        calls = [ast.unparse(n) for n in ast.walk(tree(SRC / f"{name}.py")) if isinstance(n, ast.Call)]
        waits = [c for c in calls if "Lock(" in c or "RLock(" in c or "Condition(" in c]
        known = {"_flow": ["threading.RLock()"], "_wakers": ["threading.Lock()"]}  # readers among themselves; a gate
        assert waits == known.get(name, []), name
