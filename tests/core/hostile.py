"""What a caller may pass by mistake or on purpose, and how long a refusal of it may take."""

import gc
import time
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

AT_ONCE_S = 0.05


def _raises(name: str) -> Callable[..., Any]:
    def refuse(*args: object, **kwargs: object) -> Any:
        raise ArithmeticError(f"{name} was called")

    return refuse


#: What an object may be asked, but for __class__, without which nobody can tell what it is.
_LOOKS = ("repr", "str", "len", "iter", "hash", "eq", "bool", "format", "int", "float", "index", "getitem", "contains")


def touchy(kind: type) -> type:
    """A subclass of `kind` that raises whenever somebody looks at it."""
    looks: dict[str, Any] = {f"__{look}__": _raises(look) for look in _LOOKS}
    return type(f"Touchy{kind.__name__.capitalize()}", (kind,), looks)


class Unhashable:
    __hash__ = None  # type: ignore[assignment]


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


#: Values of every kind, by name. Made once: some are large.
STRANGE: dict[str, Any] = {
    "None": None,
    "True": True,
    "zero": 0,
    "negative": -1,
    "400 digits": 10**400,
    "minus 400 digits": -(10**400),
    "5000 digits": 10**5000,
    "2 to the 63": 2**63,
    "2 to the 64": 2**64,
    "nan": float("nan"),
    "inf": float("inf"),
    "minus inf": float("-inf"),
    "1e300": 1e300,
    "5e-324": 5e-324,
    "complex": 1j,
    "Decimal": Decimal("1.5"),
    "Fraction": Fraction(1, 3),
    "huge Fraction": Fraction(10**400, 3),
    "timedelta": timedelta(seconds=5),
    "timedelta.max": timedelta.max,
    "timedelta.min": timedelta.min,
    "empty str": "",
    "str": "5",
    "surrogate": "\ud800",
    "NUL": "\0",
    "megabyte": "x" * (1 << 20),
    "100 megabytes": "x" * (100 << 20),
    "bytes": b"5",
    "bytearray": bytearray(b"5"),
    "memoryview": memoryview(b"5"),
    "empty list": [],
    "list": [1, 2],
    "list of str": ["a", "b"],
    "list of 5000 digits": [10**5000],
    "list of nan": [float("nan")],
    "3 million ids": [5] * 3_000_000,
    "set of a million": set(range(1_000_000)),
    "million strings": ["a"] * 1_000_000,
    "nested": nested(5000),
    "cyclic": cyclic(),
    "empty dict": {},
    "dict": {"a": 1},
    "dict of 5000 digits": {10**5000: 1},
    "dict of a megabyte": {"x" * (1 << 20): 1},
    "dict of a million": dict.fromkeys(range(1_000_000)),
    "object": object(),
    "class": int,
    "function": len,
    "generator": iter(map(int, "12")),
    "unhashable": Unhashable(),
    "float32": np.float32(0.5),
    "float16 nan": np.float16("nan"),
    "int64": np.int64(5),
    "uint64": np.uint64(2**64 - 1),
    "bool_": np.bool_(True),
    "str_": np.str_("5"),
    "datetime64": np.datetime64("2020-01-01"),
    "array of ints": np.array([1, 2]),
    "3 million in an array": np.full(3_000_000, 5),
    "array of floats": np.array([1.5]),
    "array of objects": np.array([object()]),
    "array of no dimension": np.array(5),
    "array of four": np.zeros((1, 1, 1, 1), dtype=np.int64),
    "messages": [{"role": "user", "content": "hi"}],
    "message": {"role": "user", "content": "hi"},
    "message of a surrogate": [{"role": "user", "content": "\ud800"}],
    "message of 100 megabytes": [{"role": "user", "content": "x" * (100 << 20)}],
    "million messages": [{"role": "user", "content": ""}] * 1_000_000,
    "message of a cycle": [{"role": "user", "content": "hi", "extra": cyclic()}],
    "touchy object": touchy(object)(),
    "touchy str": touchy(str)("5"),
    "touchy int": touchy(int)(5),
    "touchy float": touchy(float)(5.0),
    "touchy list": touchy(list)([1]),
    "touchy dict": touchy(dict)({"role": "user"}),
    "list of touchy ints": [touchy(int)(5)],
    "list of touchy objects": [touchy(object)()],
}


def timed(call: Callable[[], object]) -> tuple[object, BaseException | None, float]:
    """What it returned, what it raised, and the processor's seconds that it took of this thread.

    Others work on the machine, and a collector of cycles looks through all the millions above: neither is the call's.
    """
    result: object = None
    raised: BaseException | None = None
    gc.disable()
    began = time.thread_time()
    try:
        result = call()
    except Exception as error:
        raised = error
    finally:
        took = time.thread_time() - began
        gc.enable()
    return result, raised, took
