"""Calls of tools in the text of a model, in the form that Hermes and Qwen models write and many others have taken over.

    <tool_call>{"name": "weather", "arguments": {"city": "Graz"}}</tool_call>

What is no such call, or none that can be read, stays text.
"""

from __future__ import annotations

import json
import uuid
from typing import Any, Final, final

BEGIN: Final = "<tool_call>"
END: Final = "</tool_call>"


@final
class ToolCalls:
    """Text goes in piece by piece; calls are kept, and what cannot be the beginning of one comes out."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []  #: in order
        self._held = ""
        self._after_call = False  # line breaks between two calls are no text

    def feed(self, text: str) -> str:
        self._held += text
        out = ""
        while True:
            if self._after_call:
                self._held = self._held.lstrip()
                self._after_call = not self._held
            begin = self._held.find(BEGIN)
            end = self._held.find(END, begin) if begin >= 0 else -1
            if end < 0:
                break
            before, inside = self._held[:begin], self._held[begin + len(BEGIN) : end]
            self._held = self._held[end + len(END) :]
            out += before + self._call(inside)
        whole = begin if begin >= 0 else len(self._held) - _beginning(self._held)
        out, self._held = out + self._held[:whole], self._held[whole:]
        return out

    def flush(self) -> str:
        """At the end: a call that never came to its own is text."""
        held, self._held = self._held, ""
        return held

    def _call(self, inside: str) -> str:
        """Kept, or text after all."""
        try:
            told = json.loads(inside)
            name, arguments = told["name"], told.get("arguments", {})
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            return BEGIN + inside + END
        if not isinstance(name, str):
            return BEGIN + inside + END
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        function = {"name": name, "arguments": written}
        self._after_call = True
        self.calls.append({"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function})
        return ""


def _beginning(text: str) -> int:
    """How many characters at the end may be the first of BEGIN."""
    return next((n for n in range(min(len(BEGIN) - 1, len(text)), 0, -1) if BEGIN.startswith(text[-n:])), 0)
