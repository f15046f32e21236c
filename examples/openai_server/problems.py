"""Errors as clients of OpenAI expect them: an object with message, type, param and code, and what to do about it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, final

from starlette.responses import JSONResponse

import boundedgen as b

#: By status, where it has no other type of its own.
_TYPES: Final = {
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    410: "lease_error",
    429: "rate_limit_error",
    499: "cancelled_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
#: Codes that clients of OpenAI look for. The others are the names of the errors.
_CODES: Final[Mapping[type[b.BoundedGenError], str]] = {
    b.InvalidRequest: "invalid_value",
    b.NeverFits: "context_length_exceeded",
    b.Saturated: "rate_limit_exceeded",
}
#: What the library calls a field, and what clients of this server do.
_FIELDS: Final = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_strings": "stop",
    "rng_seed": "seed",
    "structured_output_config": "response_format",
    "template_context": "chat_template_kwargs",
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "tools", "prompt", "logprobs")},
    **{name: name for name in ("presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos")},
}


@final
class Problem(Exception):
    """What a client is told instead of an answer, or after the part of it that there is."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        retryable: bool | None = None,
        partial: b.Completion | None = None,
    ) -> None:
        """`retryable`: None: the client judges by the status."""
        super().__init__(message)
        self.status = status
        self.param, self.code = param, code
        self.retry_after_s, self.retryable = retry_after_s, retryable
        self.partial = partial

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        told: dict[str, Any] = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        if self.partial is not None:
            told["partial"] = {"text": self.partial.text, "completion_tokens": self.partial.completion_tokens}
        return {"error": told}

    def headers(self) -> dict[str, str]:
        """`x-should-retry` is what the clients of OpenAI go by, before the status."""
        headers = {"Cache-Control": "no-store"}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.retryable is not None:
            headers["x-should-retry"] = str(self.retryable).lower()
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers())


def invalid(param: str | None, message: str, code: str = "invalid_value") -> Problem:
    """A request that can never be served as it is: the field, and what to do."""
    return Problem(400, message, param=param, code=code)


def problem_of(error: b.BoundedGenError, prompt: str, health: b.Health, unknown_after_s: float) -> Problem:
    """What an error of the library is to a client. `prompt`: the field that the prompt was in."""
    status = 400 if isinstance(error, b.NeverFits) else error.http_status_hint
    after = None
    if status in (429, 503):
        after = getattr(error, "retry_after_s", None) or health.retry_after_s or unknown_after_s
    return Problem(
        status,
        _told(str(error)),
        param=_param(error, prompt),
        code=_CODES.get(type(error)) or _snake(type(error).__name__),
        retry_after_s=after,
        retryable=_retryable(error, status),
        partial=getattr(error, "partial", None),
    )


def _retryable(error: b.BoundedGenError, status: int) -> bool | None:
    """Clients of OpenAI try every 5xx again. What would only end the same way is not worth it; another server may be
    ready where this one is closed or has failed.
    """
    if error.retryable:
        return True
    return None if status < 500 or status == 503 else False


def _param(error: b.BoundedGenError, prompt: str) -> str | None:
    if isinstance(error, b.DeadlineExceeded) and error.deadline is not None:
        return f"bounds.{error.deadline.bound}"
    if isinstance(error, b.LeaseExpired | b.LeaseLost):
        return "lease"
    if isinstance(error, b.NeverFits):
        return prompt
    if isinstance(error, b.InvalidRequest):
        named = re.match(r"\w+", str(error))
        return prompt if named and named[0] == "prompt" else _FIELDS.get(named[0]) if named else None
    return None


def _told(text: str) -> str:
    """With the names that the client knows; those of limits are the server's."""
    return re.sub(r"(?<![.\w])\w+", lambda word: _FIELDS.get(word[0], word[0]), text)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
