"""What `help()` says of the fields of a value type, without every text being written twice."""

from __future__ import annotations

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
