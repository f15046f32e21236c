"""The pipeline's own settings, checked together."""

import math
from datetime import timedelta

from attrs import frozen

from boundedgen._admission import Admission
from boundedgen._arguments import kind_of
from boundedgen._bounds import Bounds, Limits, seconds
from boundedgen._restart import RestartPolicy


@frozen
class Settings:
    limits: Limits
    bounds: Bounds
    lease_ttl: float | None  #: seconds
    admission: Admission
    restart: RestartPolicy


def settings_of(
    limits: Limits | None,
    bounds: Bounds | None,
    lease_ttl: float | timedelta | None,
    admission: Admission | None,
    restart: RestartPolicy | None,
) -> Settings:
    """With the default of what is None. TypeError and ValueError name what is wrong."""
    limits = Limits() if limits is None else limits
    bounds = Bounds(total=600) if bounds is None else bounds
    admission = Admission() if admission is None else admission
    restart = RestartPolicy() if restart is None else restart
    for name, value, kind in (
        ("limits", limits, Limits),
        ("bounds", bounds, Bounds),
        ("admission", admission, Admission),
        ("restart", restart, RestartPolicy),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a {kind.__name__}, not {kind_of(value)}")
    if bounds.total is None or math.isinf(bounds.total):
        raise ValueError(
            "bounds.total of a pipeline must be finite: every generation has to end; for example Bounds(total=600)"
        )
    ttl = seconds("lease_ttl", lease_ttl)
    if ttl is not None:
        check_ttl("lease_ttl", ttl, limits)
    return Settings(limits, bounds, ttl, admission, restart)


def check_ttl(name: str, ttl: float, limits: Limits) -> float:
    if not 0 < ttl <= limits.lease_ttl_max:
        raise ValueError(
            f"{name} is {ttl:g} s; it must be more than 0 and at most Limits.lease_ttl_max ({limits.lease_ttl_max:g} s)"
        )
    return ttl
