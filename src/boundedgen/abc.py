"""The seams of boundedgen: what the driver needs of a clock, an engine and a tokenizer.

`BoundedPipeline(engine=…)` takes an `EngineHost`; the default one starts OpenVINO GenAI in a child process.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from attrs import field, frozen

from boundedgen._core._events import Claim, EngineFacts, Pulse, Report

__all__ = [
    "Claim",
    "Clock",
    "EngineFacts",
    "EngineHost",
    "EngineLink",
    "Image",
    "Pulse",
    "Report",
    "Request",
    "Tokenizer",
]


@runtime_checkable
class Clock(Protocol):
    """Monotonic seconds. One that does not go with real time has to say how to wait for it (`boundedgen.testing`)."""

    def now(self) -> float: ...


@frozen
class Image:
    """A picture for a model that sees: rows from the top, three bytes (red, green, blue) a pixel."""

    height: int
    width: int
    data: bytes | memoryview = field(repr=False)  #: height * width * 3 bytes


@frozen
class Request:
    """What goes to the engine for one stay, as plain data."""

    stay: int  #: unique for ever
    prompt: Sequence[int]  #: token ids
    config: Mapping[str, Any]  #: GenerationConfig fields, JSON types; complete (max_new_tokens and rng_seed are set)
    deadline: float  #: monotonic instant; the child stops it then by itself
    shown: int = 0  #: of a generation that is continued: so many at the end of `prompt` are its own, from before
    claim: Claim | None = None  #: how the child may make room with it; None: its blocks are set aside
    followed: bool = False  #: others wait behind it: once something leaves, the next one comes at once
    text: str | None = field(default=None, repr=False)  #: for a model that sees: the prompt, and `prompt` is empty
    images: Sequence[Image] = ()  #: where `text` has the tags `<ov_genai_image_0>`, `<ov_genai_image_1>`, …
    text_prompt_tokens: int = 0  #: that `text` and `images` take, as far as is known; what is reserved for them

    @property
    def prompt_tokens(self) -> int:
        """Of the prompt, whichever it is."""
        return len(self.prompt) if self.text is None else self.text_prompt_tokens

    @property
    def pixels(self) -> int:
        """Of all its images."""
        return sum(image.height * image.width for image in self.images)


class EngineLink(Protocol):
    """One incarnation of an engine, seen from the driver's thread. No call waits.

    A call never raises for what the engine did: its death arrives as `Exited`, a bad frame as `WireBroken`.
    """

    @property
    def incarnation(self) -> int: ...

    @property
    def pid(self) -> int | None:
        """Process id, None where there is no process."""
        ...

    def filenos(self) -> Sequence[int]:
        """Descriptors that become readable when `receive()` has something (reports, output, exit)."""
        ...

    def fileno_to_write(self) -> int | None:
        """The command pipe, while commands are waiting to be written; None when none are."""
        ...

    def admit(self, request: Request) -> None: ...

    def stop(self, stay: int) -> None: ...

    def flush(self) -> None:
        """Write what the pipe takes now."""
        ...

    def under_way(self) -> Sequence[tuple[str, int]]:
        """Commands, `("admit" or "stop", stay)`, that did not fit into the pipe at once, if it took some since the last
        call. Nothing is held against the engine that it could not have read.
        """
        ...

    def receive(self) -> list[Report]:
        """All that has arrived since the last call. `Exited` comes once, last."""
        ...

    def pulse(self) -> Pulse:
        """The step stamps. May be called from any thread."""
        ...

    def kill(self) -> None:
        """SIGKILL, the whole process group. Its `Exited` follows."""
        ...

    def dispose(self) -> None:
        """Give back descriptors and memory. After `Exited`, or when the process could not be reaped."""
        ...


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back. Called in callers' threads; must be safe there."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Without special tokens. Never raises; bytes that are no character yet become U+FFFD."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        context: Mapping[str, Any] | None,
    ) -> str:
        """Chat messages through the chat template, ready for the assistant's turn."""
        ...

    @property
    def vocab_size(self) -> int | None: ...


@runtime_checkable
class EngineHost(Protocol):
    """Makes engines, one at a time, and the tokenizer that belongs to them."""

    def spawn(self, incarnation: int) -> EngineLink:
        """Start a fresh one. Called by the driver's thread only. Raising anything is a failed boot."""
        ...

    def tokenizer(self) -> Tokenizer:
        """Loaded at the first call; raises ModelLoadFailed."""
        ...

    def defaults(self) -> Mapping[str, Any]:
        """GenerationConfig fields of the model's own generation_config.json."""
        ...
