"""The arguments of one `submit`, as they came and as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from boundedgen._arguments import kind_of, plain_str, reading, short, too_large, whole_number
from boundedgen._bounds import Bounds, Limits
from boundedgen._errors import InvalidRequest
from boundedgen._lease import Lease
from boundedgen._text import check_text

_PRIORITY_MOST = 2**63 - 1
TRACEPARENT_MOST = 512  #: characters; version 00 has 55


@frozen(kw_only=True)
class Call:
    """The prompt and the configuration are looked at later, when it is known that there is a place."""

    prompt: object
    config: object
    keywords: Mapping[str, Any]
    bounds: Bounds | None = None
    lease: Lease | str | None = None
    owner: str = ""
    priority: int = 0
    label: str = ""
    supersede: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    template_context: Mapping[str, Any] | None = None
    images: object = None
    traceparent: str | None = None

    def plain(self, limits: Limits) -> Call:
        """The same as plain data. Raises InvalidRequest, which names the argument."""
        if self.bounds is not None and not isinstance(self.bounds, Bounds):
            raise InvalidRequest(f"bounds must be a Bounds, not {kind_of(self.bounds)}")
        if self.lease is not None and not isinstance(self.lease, Lease | str):
            raise InvalidRequest(f"lease must be a Lease or its id, not {kind_of(self.lease)}")
        label = _name("label", self.label, limits.label_bytes)
        return evolve(
            self,
            owner=_name("owner", self.owner, limits.label_bytes),
            label=label,
            supersede=_supersede(self.supersede, label),
            priority=_priority(self.priority),
            tools=_tools(self.tools, limits.prompt_bytes),
            template_context=_context(self.template_context, limits.prompt_bytes),
            traceparent=_traceparent(self.traceparent),
        )


#: Keywords of `submit` that are no fields of a generation configuration.
CALL_ARGUMENTS = (
    *(
        "bounds",
        "lease",
        "owner",
        "priority",
        "label",
        "supersede",
        "tools",
        "template_context",
        "images",
        "traceparent",
    ),
)


def _name(argument: str, value: object, most: int) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{argument} must be a str, not {kind_of(value)}")
    plain = plain_str(value)
    if len(plain) > most or len(check_text(argument, plain).encode()) > most:
        raise InvalidRequest(f"{argument} has {len(plain)} characters; at most {most} bytes (Limits.label_bytes)")
    return plain


def _supersede(value: object, label: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"supersede must be True or False, not {short(value)}")
    if value and not label:
        raise InvalidRequest("supersede replaces the generation that has the same label; give it a label")
    return value


def _priority(value: object) -> int:
    with reading("priority"):
        plain = whole_number(value)
    if plain is None or abs(plain) > _PRIORITY_MOST:
        raise InvalidRequest(f"priority must be a whole number between -2^63 and 2^63, not {short(value)}")
    return plain


def _traceparent(value: object) -> str | None:
    """What it says is looked at by whoever follows: a header that a client has spoilt is no reason to refuse it."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidRequest(f"traceparent must be a str, not {kind_of(value)}")
    plain = plain_str(value)
    return plain if len(plain) <= TRACEPARENT_MOST else None


def _tools(value: Any, most: int) -> list[Mapping[str, Any]] | None:
    if value is None:
        return None
    with reading("tools"):
        _check_size("tools", value, most)
        if not isinstance(value, list | tuple) or not all(isinstance(tool, Mapping) for tool in value):
            raise InvalidRequest(f"tools must be a list of mappings, one a tool, not {short(value)}")
        return list(value)


def _context(value: Any, most: int) -> dict[str, Any] | None:
    if value is None:
        return None
    with reading("template_context"):
        _check_size("template_context", value, most)
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise InvalidRequest(f"template_context must be a mapping of names to values, not {short(value)}")
        return dict(value)


def _check_size(argument: str, value: object, most: int) -> None:
    if too_large(most, value):
        raise InvalidRequest(f"{argument} is more than {most} bytes (Limits.prompt_bytes), or nested too deeply")
