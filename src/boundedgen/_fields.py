"""What the fields of a value type mean, for `help()` and for whoever shows them, without a text being written twice."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Sequence
from typing import TypeVar

from attrs import fields

_Class = TypeVar("_Class", bound=type)


def tells_of_its_fields(made: _Class) -> _Class:
    """For an attrs class: its docstring goes on with them where they carry their texts, else with where these are.

    Comments in the source are read by nobody at import: that would cost milliseconds.
    """
    rows = [f"{a.name}: {a.metadata['unit']}: {a.metadata['why']}" for a in fields(made) if "why" in a.metadata]
    where = f"What each field means: docs/api.md, or inspect.getsource({made.__name__})."
    indent = "\n    "  # as the docstring has it in the source
    made.__doc__ = (made.__doc__ or "").rstrip() + "\n" + indent + indent.join(rows or [where])
    return made


def remarks(kind: type) -> dict[str, str]:
    """What the source says of the fields and properties of a class, by name. Takes milliseconds. OSError: no source."""
    source = textwrap.dedent(inspect.getsource(kind))
    lines, found = source.splitlines(), {}
    for item in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(item, ast.AnnAssign):
            found[ast.unparse(item.target)] = remark(item, lines)
        elif isinstance(item, ast.FunctionDef):
            found[item.name] = " ".join((ast.get_docstring(item) or "").split())
    return found


def remark(item: ast.stmt, lines: Sequence[str]) -> str:
    """The `#:` comment of an attribute: beside it, else above it. `lines`: of the source that it is from."""
    end = item.end_lineno or item.lineno
    beside = [line.split("#:")[1].strip() for line in lines[item.lineno - 1 : end] if "#:" in line]
    above: list[str] = []
    for line in reversed(lines[: item.lineno - 1]):
        if not line.strip().startswith("#:"):
            break
        above.insert(0, line.split("#:")[1].strip())
    return " ".join(beside or above)
