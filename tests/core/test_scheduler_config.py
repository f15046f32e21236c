"""Scheduler configurations and plugin properties as plain data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from boundedgen._scheduler_config import (
    SchedulerPlan,
    available_memory,
    default_cache_gb,
    plain_properties,
    scheduler_fields,
)

GB = 1 << 30


def test_fields_of_a_mapping_come_back_as_they_are() -> None:
    fields = {"num_kv_blocks": 64, "max_num_seqs": 4, "enable_prefix_caching": True, "dynamic_split_fuse": False}
    assert scheduler_fields(fields) == SchedulerPlan(fields)


def test_none_and_switched_off_values_are_left_out() -> None:
    given = {"num_kv_blocks": 64, "max_num_seqs": None, "use_cache_eviction": False, "cache_eviction_config": None}
    assert scheduler_fields(given).fields == {"num_kv_blocks": 64}


@pytest.mark.parametrize("given", [None, {}, {"num_kv_blocks": 0}, {"cache_size": 0}, {"max_num_seqs": 3}])
def test_the_cache_is_bounded_whatever_is_given(given: Mapping[str, Any] | None) -> None:
    assert 1 <= scheduler_fields(given).fields["cache_size"] <= 4


def test_insisting_on_prefix_caching_is_told_apart_from_the_engines_fields() -> None:
    given = {"num_kv_blocks": 8, "enable_prefix_caching": True, "unsafe_prefix_caching": True}
    plan = scheduler_fields(given)
    assert plan.insist_prefix_caching
    assert "unsafe_prefix_caching" not in plan.fields


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"cachesize": 1}, ValueError, "cachesize.*did you mean 'cache_size'"),
        ({"zzz": 1}, ValueError, "no field 'zzz'"),
        ({"cache_size": 1.5}, TypeError, r"cache_size must be a whole number \(GB\), not 1.5"),
        ({"cache_size": True}, TypeError, "cache_size"),
        ({"num_kv_blocks": -1}, ValueError, "num_kv_blocks is -1"),
        ({"num_kv_blocks": "64"}, TypeError, "num_kv_blocks"),
        ({"max_num_seqs": 0}, ValueError, "max_num_seqs is 0; it must be at least 1"),
        ({"max_num_batched_tokens": 0}, ValueError, "max_num_batched_tokens"),
        ({"max_num_batched_tokens": 2**64}, ValueError, "max_num_batched_tokens"),
        ({"enable_prefix_caching": 1}, TypeError, "enable_prefix_caching must be True or False"),
        ({"unsafe_prefix_caching": "yes"}, TypeError, "unsafe_prefix_caching"),
        ({"use_cache_eviction": True}, ValueError, "use_cache_eviction is refused: "),
        ({"use_sparse_attention": True}, ValueError, "use_sparse_attention is refused: "),
        ({"cache_eviction_config": object()}, ValueError, "cache_eviction_config is refused: "),
        ({"enable_prefix_caching": True, "cache_interval_multiplier": 0}, ValueError, "cache_interval_multiplier"),
        (7, TypeError, "scheduler_config must be an openvino_genai.SchedulerConfig or a mapping"),
    ],
)
def test_what_cannot_be_set_is_refused_by_name(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        scheduler_fields(given)


@pytest.mark.parametrize(
    ("available", "gb"), [(None, 1), (0, 1), (3 * GB, 1), (8 * GB, 2), (15 * GB, 3), (16 * GB, 4), (512 * GB, 4)]
)
def test_the_default_cache_is_a_quarter_of_what_is_free_between_1_and_4_gb(available: int | None, gb: int) -> None:
    assert default_cache_gb(available) == gb


def machine(tmp_path: Path, cgroup: str, files: Mapping[str, str]) -> int | None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    for path, text in {"meminfo": "MemTotal: 9 kB\nMemAvailable: 8388608 kB\n", "self/cgroup": cgroup}.items():
        (proc / path).parent.mkdir(parents=True, exist_ok=True)
        (proc / path).write_text(text)
    for path, text in files.items():
        (cgroups / path).parent.mkdir(parents=True, exist_ok=True)
        (cgroups / path).write_text(text)
    return available_memory(proc, cgroups)


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/pod/a\n", {"pod/a/memory.max": str(3 * GB), "pod/a/memory.current": str(GB)}, 2 * GB),
        ("0::/\n", {"memory.max": str(2 * GB), "memory.current": str(GB)}, GB),
        ("0::/pod/a\n", {"pod/a/memory.max": "max\n", "pod/a/memory.current": "5"}, 8 * GB),
        (
            "4:cpu,memory:/job\n",
            {"memory/job/memory.limit_in_bytes": str(2 * GB), "memory/job/memory.usage_in_bytes": str(GB)},
            GB,
        ),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, 8 * GB),
        ("0::/\n", {"memory.max": str(GB), "memory.current": str(2 * GB)}, 0),
        ("", {}, 8 * GB),
    ],
)
def test_available_memory_is_the_tightest_of_machine_and_cgroup(
    tmp_path: Path, cgroup: str, files: Mapping[str, str], expected: int
) -> None:
    assert machine(tmp_path, cgroup, files) == expected


def test_a_machine_that_tells_nothing_is_not_known(tmp_path: Path) -> None:
    assert available_memory(tmp_path, tmp_path) is None


def test_plain_properties_come_back_as_a_copy() -> None:
    given = {"A": "x", "B": 1, "C": 2.5, "D": True, "E": {"F": [1, "y", {"G": None}]}, "H": (1, 2)}
    plain = plain_properties(given, name="properties")
    assert plain == {**given, "H": [1, 2]}
    assert plain["E"] is not given["E"]
    assert plain_properties(None, name="properties") == {}


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"A": object()}, TypeError, r"properties\['A'\] is a object"),
        ({"A": {"B": [lambda: 0]}}, TypeError, r"properties\['A'\]\['B'\]\[0\]"),
        ({"A": float("nan")}, ValueError, r"properties\['A'\] is nan"),
        ({3: "x"}, TypeError, "must have str names; 3 is a int"),
        ([("A", 1)], TypeError, "properties must be a mapping"),
    ],
)
def test_properties_that_are_not_plain_are_refused_by_name(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        plain_properties(given, name="properties")


def test_more_sequences_than_a_step_takes_are_refused_without_split_fuse() -> None:
    bad = {"num_kv_blocks": 8, "dynamic_split_fuse": False, "max_num_batched_tokens": 128}
    with pytest.raises(ValueError, match=r"max_num_seqs is 256, more than max_num_batched_tokens \(128\)"):
        scheduler_fields(bad)
    assert scheduler_fields({**bad, "max_num_seqs": 128}).fields["max_num_seqs"] == 128
