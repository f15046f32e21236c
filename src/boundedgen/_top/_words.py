"""Figures as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping

UNKNOWN = "–"
FULL, EMPTY = "█", "░"


def span(seconds: float | None) -> str:
    """A duration, in at most 6 characters: 0.04s 5.3s 59s 12m05 3h07 41d."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0:
        return f"-{span(-seconds)}" if seconds > -99.5 else "-99s+"
    if seconds < 0.0995:
        return f"{seconds:.2f}s"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    if seconds < 119.5:
        return f"{seconds:.0f}s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{left:02}"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02}"
    days = hours // 24
    return f"{days}d" if days < 10_000 else "ages"


def listed(figures: Mapping[str, int]) -> str:
    """The largest first."""
    ordered = sorted(figures.items(), key=lambda item: -item[1])
    return ", ".join(f"{figure} {name}" for name, figure in ordered)


def rate(figure: float | None) -> str:
    return UNKNOWN if figure is None else f"{figure:.1f}" if abs(figure) < 99.95 else f"{figure:,.0f}"


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.0f}%"


def size(count: float | None) -> str:
    """Bytes."""
    if count is None:
        return UNKNOWN
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


def bar(share: float, width: int) -> tuple[str, str]:
    """What is full, and what is not; what is more than nothing is seen."""
    share = min(1.0, max(0.0, share))
    full = min(width, max(1 if share > 0 else 0, round(share * width)))
    return FULL * full, EMPTY * (width - full)
