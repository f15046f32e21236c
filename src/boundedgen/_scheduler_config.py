"""The scheduler's configuration and plugin properties as plain data, and the cache always bounded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, final

from attrs import frozen

from boundedgen._arguments import kind_of, plain_str, reading, real_number, short, suggestion, too_large, whole_number
from boundedgen._refused_fields import REFUSED_OF_SCHEDULER

_NAME: Final = "scheduler_config"
_SIZE_MAX: Final = 2**64 - 1
_PROPERTIES_MOST: Final = 1 << 16  #: characters as JSON: they go to each engine in its first message
#: Whole-number fields of openvino_genai.SchedulerConfig (2026.4.1) and the least that each accepts. 0 means "not set"
#: for the three that bound a pool.
WHOLE: Final[Mapping[str, int]] = {
    "max_num_batched_tokens": 1,
    "num_kv_blocks": 0,
    "cache_size": 0,
    "num_linear_attention_blocks": 0,
    "cache_interval_multiplier": 0,
    "max_num_seqs": 1,
}
_FLAGS: Final = ("dynamic_split_fuse", "enable_prefix_caching")
_NESTED: Final = ("cache_eviction_config", "sparse_attention_config")
TAKEN: Final = (*WHOLE, *_FLAGS)  #: fields of the engine's that a caller may set
_INSIST: Final = "unsafe_prefix_caching"
_KNOWN: Final = (*TAKEN, *REFUSED_OF_SCHEDULER, _INSIST)

#: The default cache: a quarter of the memory that is free for this process, at most 4 GB, at least 1 GB.
_CACHE_SHARE: Final = 0.25
_CACHE_MOST_GB: Final = 4
_GB: Final = 1 << 30
_ENGINE_DEFAULT: Final = 256  # of both max_num_seqs and max_num_batched_tokens
_UNLIMITED: Final = 1 << 60  # cgroup v1 writes a number near 2^63 for "no limit"


@final
@frozen
class SchedulerPlan:
    """`fields`: SchedulerConfig fields to set, JSON types. `insist_prefix_caching`: even where known to be unsafe."""

    fields: Mapping[str, Any]
    insist_prefix_caching: bool = False


def scheduler_fields(config: object | Mapping[str, Any] | None) -> SchedulerPlan:
    """What `config` (an openvino_genai.SchedulerConfig, a mapping of its fields, or None) sets, checked.

    The cache is always bounded: with neither `num_kv_blocks` nor `cache_size`, `cache_size` (whole GB) is a quarter of
    the memory that is available to this process, cgroup limits included, at most 4 and at least 1. On a card with
    memory of its own set one of them: its memory is not looked at. `unsafe_prefix_caching: True` in a mapping
    insists on prefix caching where this library switches it off (hybrid models). Raises TypeError or ValueError,
    which name the field.
    """
    given = _given(config)
    fields = {
        name: _value(name, value) for name, value in given.items() if value is not None and not _is_off(name, value)
    }
    insist = bool(fields.pop(_INSIST, False))
    _check_together(fields)
    if not fields.get("num_kv_blocks") and not fields.get("cache_size"):
        fields["cache_size"] = default_cache_gb(available_memory())
    return SchedulerPlan(fields, insist)


def _given(config: object) -> dict[str, Any]:
    if config is None:
        return {}
    if not isinstance(config, Mapping) and type(config).__name__ != "SchedulerConfig":
        raise TypeError(
            f"{_NAME} must be an openvino_genai.SchedulerConfig or a mapping of its fields, not {kind_of(config)}"
        )
    with reading(_NAME, TypeError, ours=(ValueError,)):
        items = config.items() if isinstance(config, Mapping) else _read_object(config).items()
        return {_known_name(name): value for name, value in items}


def _read_object(config: object) -> dict[str, Any]:
    """The attributes that differ from a fresh one's. The two nested configurations count only while they are in use."""
    untouched = type(config)()
    names = (n for n in dir(config) if not n.startswith("_") and n not in _NESTED)
    values = {n: getattr(config, n) for n in names}
    return {n: v for n, v in values.items() if not callable(v) and v != getattr(untouched, n)}


def _known_name(given: object) -> str:
    name = plain_str(given) if isinstance(given, str) else ""
    if name not in _KNOWN:
        raise ValueError(f"{_NAME} has no field {short(given)}{suggestion(name, _KNOWN, {})}")
    return name


def _is_off(name: str, value: Any) -> bool:
    return name in REFUSED_OF_SCHEDULER and value is False


def _value(name: str, value: Any) -> Any:
    if name in REFUSED_OF_SCHEDULER:
        raise ValueError(f"{_NAME}.{name} {REFUSED_OF_SCHEDULER[name].words()}")
    if name not in WHOLE:
        if not isinstance(value, bool):
            raise TypeError(f"{_NAME}.{name} must be True or False, not {short(value)}")
        return value
    with reading(f"{_NAME}.{name}", TypeError):
        number = whole_number(value)
    if number is None:
        unit = " (GB)" if name == "cache_size" else ""
        raise TypeError(f"{_NAME}.{name} must be a whole number{unit}, not {short(value)}")
    if not WHOLE[name] <= number <= _SIZE_MAX:
        raise ValueError(f"{_NAME}.{name} is {short(value)}; it must be at least {WHOLE[name]} and below 2^64")
    return number


def _check_together(fields: Mapping[str, Any]) -> None:
    if fields.get("enable_prefix_caching") and fields.get("cache_interval_multiplier") == 0:
        raise ValueError(f"{_NAME}.cache_interval_multiplier is 0, which needs enable_prefix_caching=False")
    seqs, batched = (int(fields.get(name, _ENGINE_DEFAULT)) for name in ("max_num_seqs", "max_num_batched_tokens"))
    if fields.get("dynamic_split_fuse") is False and seqs > batched:
        raise ValueError(
            f"{_NAME}.max_num_seqs is {seqs}, more than max_num_batched_tokens ({batched}): without "
            "dynamic_split_fuse every step of the engine would raise; lower the first or raise the second"
        )


# --- the default cache -------------------------------------------------------------------------------------------


def default_cache_gb(available: int | None) -> int:
    """Whole GB for the cache when nobody said how much. `available`: bytes; None: not known, which gives 1."""
    if available is None:
        return 1
    return max(1, min(_CACHE_MOST_GB, math.floor(available * _CACHE_SHARE / _GB)))


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that this process may still take: the machine's, or what its cgroup (v1 or v2) leaves, if that is less."""
    rooms = [room for room in (_of_machine(proc), *_of_cgroups(proc, cgroups)) if room is not None]
    return max(0, min(rooms)) if rooms else None


def _of_machine(proc: Path) -> int | None:
    for line in _read(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _of_cgroups(proc: Path, cgroups: Path) -> list[int | None]:
    """Of this process's cgroup and of the root that a container sees."""
    rooms: list[int | None] = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for inner in {path.strip("/"), ""}:
            if not controllers:
                rooms.append(_room(cgroups / inner, "memory.max", "memory.current"))
            elif "memory" in controllers.split(","):
                rooms.append(_room(cgroups / "memory" / inner, "memory.limit_in_bytes", "memory.usage_in_bytes"))
    return rooms


def _room(folder: Path, limit: str, used: str) -> int | None:
    most, now = _read(folder / limit).strip(), _read(folder / used).strip()
    if not most.isdigit() or not now.isdigit() or int(most) >= _UNLIMITED:
        return None
    return int(most) - int(now)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


# --- plugin properties -------------------------------------------------------------------------------------------


#: What GenAI reads from its properties, and this library does not support.
_NO_PROPERTIES = {
    "adapters": "give them to the pipeline, as adapters={path: weight}",
    "draft_model": "a draft model is an option of the pipeline, draft",
    "prompt_lookup": "it is an option of the pipeline, prompt_lookup",
    "scheduler_config": "give it as the second argument, scheduler_config",
}


def plain_properties(properties: Mapping[str, Any] | None, *, name: str) -> dict[str, Any]:
    """A copy of `properties` in JSON types; OpenVINO's own enums and types become the names that its plugins read.

    Raises TypeError or ValueError, which name the key.
    """
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):
        raise TypeError(f"{name} must be a mapping of names to values, not {kind_of(properties)}")
    with reading(name, TypeError, ours=(TypeError, ValueError)):
        if too_large(_PROPERTIES_MOST, properties):
            raise ValueError(f"{name} is more than {_PROPERTIES_MOST} bytes, or nested too deeply")
        for key in _NO_PROPERTIES.keys() & properties.keys():
            raise ValueError(f"{name}[{key!r}] cannot be taken: {_NO_PROPERTIES[key]}")
        return _plain_mapping(name, properties)


def _plain_mapping(where: str, given: Mapping[Any, Any]) -> dict[str, Any]:
    plain = {}
    for key, value in given.items():
        if not isinstance(key, str):
            raise TypeError(f"{where} must have str names; {short(key)} is a {kind_of(key)}")
        plain[plain_str(key)] = _plain(f"{where}[{short(key)}]", value)
    return plain


def _plain(where: str, value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return plain_str(value)
    if (whole := whole_number(value)) is not None:
        return _within(where, whole)
    if (number := real_number(value)) is not None:
        return _within(where, number)
    if isinstance(value, Mapping):
        return _plain_mapping(where, value)
    if isinstance(value, list | tuple):
        return [_plain(f"{where}[{at}]", item) for at, item in enumerate(value)]
    return _of_openvino(where, value)


def _within(where: str, value: float) -> float:
    if not -_SIZE_MAX <= value <= _SIZE_MAX and (isinstance(value, int) or not math.isfinite(value)):
        raise ValueError(f"{where} is {short(value)}; it must be finite, and a whole number below 2^64")
    return value


def _of_openvino(where: str, value: Any) -> Any:
    kind = type(value)
    if kind.__module__.partition(".")[0] == "openvino":
        if kind.__name__ == "Type":
            return str(value.get_type_name())  # "f32", where str() says "<Type: 'float32'>", which no plugin reads
        if kind.__name__ == "OVAny":
            return _plain(where, value.value)
        if isinstance(getattr(value, "name", None), str):
            return str(value.name)
    raise TypeError(
        f"{where} is a {kind.__name__}, which is not supported; give a str, a number, a bool, a list or a mapping"
    )
