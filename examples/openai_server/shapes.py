"""The JSON of answers: whole ones and the events of streams, of chats and of plain completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any, Final, final

from attrs import frozen

import boundedgen as b
from examples.openai_server.requests import Asked, Kind
from examples.openai_server.token_texts import TokenTexts

#: Normal ends as OpenAI calls them. Any other end goes by its own name: no client can take it for one of these.
_ENDS: Final = {b.FinishReason.STOP: "stop", b.FinishReason.LENGTH: "length"}
_LEAST: Final = -9999.0  #: OpenAI's logprob of what was all but impossible; JSON has no infinity
_IDS: Final[dict[Kind, str]] = {"chat": "chatcmpl", "text": "cmpl"}
_OBJECTS: Final[dict[Kind, str]] = {"chat": "chat.completion", "text": "text_completion"}


def new_id(kind: Kind) -> str:
    return f"{_IDS[kind]}-{uuid.uuid4().hex}"


def end_of(reason: b.FinishReason | None, *, calls: bool = False) -> str:
    if calls and reason is b.FinishReason.STOP:
        return "tool_calls"
    return _ENDS.get(reason, str(reason)) if reason is not None else "error"


def usage_of(completions: Sequence[b.Completion], choices: int) -> dict[str, int]:
    """Each prompt counts once, of however many choices."""
    prompt = sum(one.prompt_tokens for one in completions[::choices])
    output = sum(one.completion_tokens for one in completions)
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


@final
@frozen
class Shape:
    """Of one answer."""

    asked: Asked
    id: str
    model: str
    texts: TokenTexts
    created: int

    @classmethod
    def of(cls, asked: Asked, model: str, texts: TokenTexts) -> Shape:
        return cls(asked, new_id(asked.kind), model, texts, int(time.time()))

    # --- whole -------------------------------------------------------------------------------------------------------

    def whole(self, choices: Sequence[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        return {**self._head(_OBJECTS[self.asked.kind]), "choices": list(choices), "usage": usage}

    def choice(self, index: int, text: str, calls: Sequence[dict[str, Any]], told: b.Completion) -> dict[str, Any]:
        reason = end_of(told.finish_reason, calls=bool(calls))
        logprobs = self.logprobs(told.token_ids, told.logprobs, 0)
        if self.asked.kind == "text":
            return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        message: dict[str, Any] = {"role": "assistant", "content": None if calls and not text else text}
        message["refusal"] = None
        if calls:
            message["tool_calls"] = list(calls)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    # --- streamed ----------------------------------------------------------------------------------------------------

    def opening(self, index: int) -> dict[str, Any] | None:
        """What a choice begins with, before its first text."""
        return self._event(index, {"role": "assistant", "content": ""}) if self.asked.kind == "chat" else None

    def piece(self, index: int, text: str, logprobs: Any) -> dict[str, Any]:
        return self._event(index, {"content": text} if self.asked.kind == "chat" else text, logprobs)

    def calls(self, index: int, begun: int, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Whole ones; `begun` went before."""
        return self._event(index, {"tool_calls": [{"index": begun + n, **call} for n, call in enumerate(calls)]})

    def closing(self, index: int, reason: str) -> dict[str, Any]:
        return self._event(index, {} if self.asked.kind == "chat" else "", end=reason)

    def usage(self, usage: dict[str, int]) -> dict[str, Any]:
        return {**self._stream_head(), "choices": [], "usage": usage}

    def _event(self, index: int, what: Any, logprobs: Any = None, end: str | None = None) -> dict[str, Any]:
        key = "delta" if self.asked.kind == "chat" else "text"
        choice = {"index": index, key: what, "logprobs": logprobs, "finish_reason": end}
        event = {**self._stream_head(), "choices": [choice]}
        return {**event, "usage": None} if self.asked.include_usage else event

    def _stream_head(self) -> dict[str, Any]:
        return self._head("chat.completion.chunk" if self.asked.kind == "chat" else "text_completion")

    def _head(self, what: str) -> dict[str, Any]:
        return {"id": self.id, "object": what, "created": self.created, "model": self.model}

    # --- logprobs ----------------------------------------------------------------------------------------------------

    def logprobs(self, token_ids: Sequence[int], logprobs: Sequence[float], offset: int) -> dict[str, Any] | None:
        """`offset`: of the first of them in the text of the choice."""
        if not self.asked.logprobs or not token_ids:
            return None
        texts = self.texts.of(token_ids)
        logprobs = [max(_LEAST, value) for value in logprobs]
        if self.asked.kind == "chat":
            return {"content": [self._token(*one) for one in zip(texts, logprobs, strict=True)], "refusal": None}
        offsets = [offset + sum(map(len, texts[:n])) for n in range(len(texts))]
        pairs = zip(texts, logprobs, strict=True)
        top = [{text: value} for text, value in pairs] if self.asked.top_logprobs else None
        return {"tokens": texts, "token_logprobs": list(logprobs), "top_logprobs": top, "text_offset": offsets}

    def _token(self, text: str, logprob: float) -> dict[str, Any]:
        """Part of a character has no bytes that could be told of by its text."""
        told = {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}
        return {**told, "top_logprobs": [dict(told)] if self.asked.top_logprobs else []}
