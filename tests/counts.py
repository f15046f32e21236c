"""Counters of stats show their zeros; most tests want to know what happened."""

from collections.abc import Mapping


def happened(counts: Mapping[str, int]) -> dict[str, int]:
    """Those that are not 0."""
    return {name: count for name, count in counts.items() if count}
