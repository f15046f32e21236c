"""Text at the door and on the way out: the tokenizer, the chat template, and detokenizing piece by piece."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, final

from boundedgen._detokenizer import joins_tokens
from boundedgen._errors import BoundedGenError, InvalidRequest, ModelLoadFailed
from boundedgen._lexicon import Lexicon, lexicon_of
from boundedgen._unreported import unreported

logger = logging.getLogger(__name__)

_INT64: Final = 2**63
_REPLACEMENT: Final = "\ufffd"
#: A character has at most four bytes, so at most three bytes of an unfinished one can show, as at most three U+FFFD.
_UNFINISHED_MAX: Final = 3
#: Ids after which the window moves on. A call of the engine's decode costs 0.13 ms, one id more 1 µs.
_WINDOW_MOVES: Final = 64
#: Ids kept before the end when it does: room for an unfinished character and for context to line up again.
_WINDOW_KEEPS: Final = 16
#: Ids at which it moves on also where all of it is unreadable: as many as this in a row hold no unfinished character.
_WINDOW_MAX: Final = 1024
#: What openvino_tokenizers' clean_up_tokenization_spaces may still take back: " ." " 's" " ' " " 're" " n't".
_CLEANED_UP_LATER: Final = re.compile(r" (?:n'?|'[rv]?)?\Z")


def check_text(name: str, text: str) -> str:
    """`text` itself. InvalidRequest if it holds a lone surrogate: that is no text that a model could read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{name} holds a lone surrogate (U+{ord(text[error.start]):04X} at character {error.start}); "
            "decode the input with errors='replace' or pair the surrogates"
        ) from None
    return text


#: A tokenizer call holds the interpreter lock until its threads have run. Pinned to cores that a busy engine spins on,
#: they were kept waiting for up to 6.6 s, and every thread of the process with them (docs/engine-facts.md).
ONE_THREAD = {"INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False}
_first_look = threading.Lock()


def _look_at_a_tensor() -> None:
    """The first look at any tensor's data in a process, by one thread at a time: two that take it at once stand still
    for ever, with the interpreter lock, and so does everything else (docs/engine-facts.md)."""
    import numpy

    with unreported(), _first_look:
        import openvino  # the first import of it, too

        openvino.Tensor(numpy.zeros((1, 1), numpy.int64)).data  # noqa: B018


@final
class GenAITokenizer:
    """The model's own tokenizer (`openvino_genai.Tokenizer`). Safe to call from many threads at once."""

    def __init__(self, models_path: str | os.PathLike[str], properties: Mapping[str, Any] | None = None) -> None:
        """Load it: 0.2 s from an IR folder, seconds from a GGUF file. Raises ModelLoadFailed."""
        path = Path(models_path)
        if not path.exists():
            raise ModelLoadFailed(
                f"models_path {str(path)!r} does not exist; give an OpenVINO IR folder or a GGUF file"
            )
        _look_at_a_tensor()
        self._inner = _load(path, {**ONE_THREAD, **(properties or {})})
        vocabulary = _vocabulary(self._inner)
        self._vocab_size = max(vocabulary.values()) + 1 if vocabulary else _vocab_size_of_config(path / "config.json")
        self._unsettled = _CLEANED_UP_LATER if self._cleans_up() else None
        self._lexicon = self._make_lexicon(path, vocabulary)
        self.begin = str(getattr(self._inner, "get_bos_token", str)() or "")  #: the special token before a text

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids. InvalidRequest for a lone surrogate."""
        inputs = self._inner.encode(check_text("prompt", text), add_special_tokens=add_special_tokens)
        return [int(i) for i in inputs.input_ids.data.reshape(-1)]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens. Bytes that are no character become U+FFFD, or nothing (GGUF: engine's doing)."""
        return decoded(self._inner, token_ids)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        context: Mapping[str, Any] | None,
    ) -> str:
        """Messages through the chat template, ready for the assistant's turn. InvalidRequest if it refuses them."""
        plain = _plain_json("prompt", list(messages))
        named = {
            "tools": None if tools is None else _plain_json("tools", list(tools)),
            "extra_context": None if context is None else _plain_json("template_context", dict(context)),
        }
        try:
            return str(self._inner.apply_chat_template(plain, add_generation_prompt=True, **named))
        except Exception as error:
            raise InvalidRequest(self._template_refusal(len(plain), str(error))) from None

    @property
    def vocab_size(self) -> int | None:
        """Ids are below this number. None if the tokenizer does not tell."""
        return self._vocab_size

    @property
    def unsettled(self) -> re.Pattern[str] | None:
        """What at the end of a decoded text may still change when more tokens follow (see TextStream)."""
        return self._unsettled

    @property
    def lexicon(self) -> Lexicon | None:
        """The bytes of its tokens, where its text is no more than these joined (see TextStream)."""
        return self._lexicon

    def _make_lexicon(self, path: Path, vocabulary: Mapping[bytes, int]) -> Lexicon | None:
        if self._unsettled is not None or not vocabulary or not joins_tokens(path):
            return None
        decode = partial(decoded, self._inner)  # not a method: a cycle would keep the tokenizer after its last user
        try:
            return lexicon_of(decode, lambda text: self.encode(text, add_special_tokens=False), vocabulary)
        except Exception:  # it does not bear being tried: each piece of text is a call of it, then
            text, extra = (
                "the tokenizer of %r could not be tried; its text will cost more",
                {"event": "tokenizer_untried"},
            )
            logger.exception(text, str(path), extra=extra)
            return None

    def _cleans_up(self) -> bool:
        probe = "a , b"
        return self.decode(self.encode(probe, add_special_tokens=False)) == "a, b"

    def _template_refusal(self, count: int, text: str) -> str:
        """The engine's text may quote the prompt; only words that stand in the template itself are passed on."""
        template = str(getattr(self._inner, "chat_template", "") or "")
        if not template:
            return "prompt is chat messages, but the model has no chat template; send text or token ids"
        written = re.findall(r"raise_exception\(\s*(['\"])(.*?)\1", template, flags=re.DOTALL)
        words = next((literal for _, literal in written if literal and literal in text), "")
        said = f": {words}" if words else "; check their roles, their order and their content"
        return f"prompt: the model's chat template refused these {count} messages{said}"


def decoded(inner: Any, token_ids: Sequence[int]) -> str:
    """By an `openvino_genai.Tokenizer`; see GenAITokenizer.decode."""
    try:
        return str(inner.decode(list(token_ids), skip_special_tokens=True))
    except UnicodeDecodeError as error:  # converted without a UTF-8 mode: the exception carries all bytes
        return error.object.decode("utf-8", "replace")


def _load(path: Path, properties: dict[str, Any]) -> Any:
    try:
        import openvino_genai  # type: ignore[import-untyped,unused-ignore]

        inner = openvino_genai.Tokenizer(path, **properties)
        inner.decode(inner.encode("a").input_ids)  # where a file is missing, only its use says so
    except Exception as error:
        raise ModelLoadFailed(
            f"the tokenizer of {str(path)!r} could not be loaded: {error}. An IR folder needs openvino_tokenizer.xml "
            "and openvino_detokenizer.xml (`convert_tokenizer --with-detokenizer` makes them), a GGUF file its "
            "tokenizer fields"
        ) from error
    return inner


def _vocabulary(inner: Any) -> dict[bytes, int]:
    """Empty: an unknown kind of tokenizer, which does not tell."""
    try:
        found = inner.get_vocab()
    except Exception:
        return {}
    return found if isinstance(found, dict) else {}


def _vocab_size_of_config(config: Path) -> int | None:
    try:
        size = json.loads(config.read_text()).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) and size > 0 else None


def _plain_json(name: str, value: Any) -> Any:
    """A copy of JSON types only: the engine would report anything else with the prompt's text in its message."""
    try:
        check_text(name, text := json.dumps(value, ensure_ascii=False, allow_nan=False))
        return json.loads(text, parse_int=_int_of_json)
    except BoundedGenError:
        raise
    except Exception as error:  # also what a caller's own objects raise
        raise InvalidRequest(
            f"{name} must be plain JSON types (str, number of 64 bits, bool, None, list, mapping): "
            f"{type(error).__name__}"
        ) from None


def _int_of_json(digits: str) -> int:
    """The engine's JSON has integers of 64 bits."""
    if not -_INT64 <= (value := int(digits)) < _INT64:
        raise OverflowError
    return value


class _Window:
    """Text of a growing list of ids, where each call decodes a bounded tail only.

    A tail is as good as the whole when what it decodes to is the end of what the longer one decoded to, with a
    real character in it: from that character on both read the same bytes in the same way. Comparing the ends, and
    not the beginnings, also covers decoders that strip the space before a first word.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        unsettled: re.Pattern[str] | None,
        ids: Sequence[int] = (),
        shown: int = 0,
    ) -> None:
        """`ids`: what came before; `shown`: characters of its text that have been returned."""
        self._decode = decode
        self._unsettled = unsettled
        self._ids = list(ids)
        self._shown = shown  # of this window's text
        self._moves_at = _WINDOW_MOVES

    def feed(self, token_ids: Sequence[int]) -> str:
        """Text that no later id can change."""
        self._ids.extend(token_ids)
        text = self._decode(self._ids)
        fresh = self._take(text, self._settled(text))
        if len(self._ids) >= self._moves_at:
            self._move(text)
        return fresh

    def flush(self) -> str:
        text = self._decode(self._ids) if self._ids else ""
        return self._take(text, len(text))

    def _take(self, text: str, end: int) -> str:
        fresh = text[self._shown : end]
        self._shown = max(self._shown, end)
        return fresh

    def _settled(self, text: str) -> int:
        end = len(text)
        while end and len(text) - end < _UNFINISHED_MAX and text[end - 1] == _REPLACEMENT:
            end -= 1
        later = self._unsettled.search(text, 0, end) if self._unsettled else None
        return later.start() if later else end

    def _move(self, text: str) -> None:
        kept = range(_WINDOW_KEEPS, _WINDOW_MOVES, _WINDOW_KEEPS)
        moved = any(self._keep(text, keep, synced=True) for keep in kept)
        if not moved and len(self._ids) >= _WINDOW_MAX:
            self._keep(text, _WINDOW_MAX // 2, synced=False)
        self._moves_at = max(_WINDOW_MOVES, len(self._ids) + _WINDOW_KEEPS)

    def _keep(self, text: str, count: int, *, synced: bool) -> bool:
        """Go on with the last `count` ids alone, if they read the same."""
        tail = self._ids[-count:]
        end = self._decode(tail)
        shown = self._shown - (len(text) - len(end))
        same = text.endswith(end) and shown >= 0
        if not same or (synced and not end[:shown].strip(_REPLACEMENT)):
            return False
        self._ids, self._shown = tail, shown
        return True


class _Spelling:
    """Text of a growing list of ids from their bytes; by a window from the first id on whose bytes are doubted."""

    def __init__(self, lexicon: Lexicon, window: Callable[[Sequence[int], int], _Window]) -> None:
        self._lexicon = lexicon
        self._reader = lexicon.reader()
        self._make_window = window
        self._window: _Window | None = None
        self._ids: list[int] = []
        self._shown = 0

    def feed(self, token_ids: Sequence[int]) -> str:
        if self._window is not None:
            return self._window.feed(token_ids)
        data = self._lexicon.bytes_of(token_ids)
        if data is None:
            self._window = self._make_window(self._ids, self._shown)
            return self._window.feed(token_ids)
        text = self._reader.feed(data)
        self._ids.extend(token_ids)
        self._shown += len(text)
        return text

    def flush(self) -> str:
        return self._reader.flush() if self._window is None else self._window.flush()


class _Stops:
    """Cuts a text at the first stop string, holding back what may become one."""

    def __init__(self, stop_strings: Iterable[str], include: bool) -> None:
        self._strings = tuple(sorted(stop_strings, key=len, reverse=True))
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        if self.matched is not None:
            return ""
        text, self._held = self._held + text, ""
        if (first := self._first_match(text)) is not None:
            return self._cut(text, *first)
        keep = self._open_prefix(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self, stopped: bool) -> str:
        """`stopped`: the engine ended at a stop string, so what is held back is the part of it that it left in."""
        rest, self._held = self._held, ""
        if not stopped or self.matched is not None:
            return rest
        ended = [s for s in self._strings if s.startswith(rest)] if rest else list(self._strings)
        if rest or len(ended) == 1:  # with nothing left of several, there is no telling which it was
            self.matched = ended[0]
        return self.matched if self._include and self.matched is not None else ""

    def _first_match(self, text: str) -> tuple[int, str] | None:
        """The match that ends first; of those the longest: it is the one that the engine saw."""
        found = ((at + len(s), at, s) for s in self._strings if (at := text.find(s)) >= 0)
        first = min(found, default=None)
        return None if first is None else (first[1], first[2])

    def _cut(self, text: str, at: int, string: str) -> str:
        self.matched = string
        return text[: at + len(string)] if self._include else text[:at]

    def _open_prefix(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = len(self._strings[0]) - 1 if self._strings else 0
        for length in range(min(longest, len(text)), 0, -1):
            if any(s.startswith(text[-length:]) for s in self._strings if len(s) > length):
                return length
        return 0


@final
class TextStream:
    """Token ids in, text out, piece by piece: nothing lost, nothing twice, nothing taken back.

    All that `feed` and `flush` return, joined, equals `decode(all ids)`, cut at the first of `stop_strings` (without
    it, or with it if `include_stop`). At most three U+FFFD are held back (they may become a character), and the
    beginning of a stop string. The cost of a token does not grow with the length of the text. With a `lexicon` of
    `decode` it is that of joining bytes; the text is the same.

    The engine cuts at whole tokens: it leaves the part of a stop string that shares a token with text before it (stop
    "ung " gave " a young"), and all of one that lies inside a token, with what follows it (stop "cov" gave
    " discovered"), and without include_stop_str_in_output also drops text before it (stop "w" took the space of
    " woman"). So the engine is always asked to include it, and the text is cut here. Measured with 2026.4.1.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        *,
        stop_strings: Iterable[str] = (),
        include_stop: bool = False,
        unsettled: re.Pattern[str] | None = None,
        lexicon: Lexicon | None = None,
    ) -> None:
        window = partial(_Window, decode, unsettled)
        self._pieces = window() if lexicon is None else _Spelling(lexicon, window)
        self._stops = _Stops(stop_strings, include_stop)

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that has become certain with these ids."""
        return self._stops.feed(self._pieces.feed(token_ids)) if token_ids else ""

    def flush(self, *, stopped: bool = False) -> str:
        """What was held back; once, at any kind of end.

        `stopped`: the engine finished because of a stop string (finish STOP, and the last id is no stop token).
        """
        return self._stops.feed(self._pieces.flush()) + self._stops.flush(stopped)

    @property
    def matched(self) -> str | None:
        """The stop string at which the text was cut; from then on `feed` returns nothing."""
        return self._stops.matched
