"""Finds out whether a grammar compiles, in a process that may crash, hang or eat memory over it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, final

from boundedgen._bounds import Limits
from boundedgen._descriptors import above_stdio
from boundedgen._engine import _start

_VERDICTS_KEPT: Final = 1024
#: Seconds for which a verdict holds that a busy machine may have caused.
_DOUBTFUL_FOR: Final = 60.0
_REAP: Final = 5.0
_CHILD: Final = "boundedgen._engine._grammar_child"


class _Died(Exception):
    """The process ended by itself, or was killed from outside."""


class _Unusable(Exception):
    """The process cannot be started, or not any more. The text says why."""


@final
class GrammarChecker:
    """Compiles grammars with the model's own tokenizer in a process of its own, started at the first check.

    Safe to call from many threads; they are served one at a time. Verdicts are kept by hash.
    """

    def __init__(
        self,
        tokenizer_source: str | os.PathLike[str],
        tokenizer_properties: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`tokenizer_source`: the models_path (IR folder or GGUF). `tokenizer_properties`: plain data."""
        self._hello = {"models_path": os.fspath(tokenizer_source), "properties": dict(tokenizer_properties or {})}
        self._limits = limits or Limits()
        self._verdicts = _Verdicts()
        self._turn = threading.Lock()
        self._swap = threading.RLock()  # guards the two below; never held while waiting
        self._child: _Child | None = None
        self._closed = False

    def check(self, kind: str, text: str) -> str | None:
        """None when the grammar (`kind`: json_schema, regex or grammar) compiles; else why not, in words.

        Waits: for its turn, for the start of the process (at most Limits.boot), for at most Limits.grammar_s.
        """
        key = hashlib.sha256(f"{kind}\0{text}".encode("utf-8", "surrogatepass")).digest()
        with self._turn:
            known, verdict = self._verdicts.find(key, time.monotonic())
            return verdict if known else self._find_out(key, kind, text)

    def close(self) -> None:
        """End the process. A check that is under way comes back at once and says so. May be called again."""
        with self._swap:
            self._closed, child, self._child = True, self._child, None
        if child is not None:
            child.kill()

    def _find_out(self, key: bytes, kind: str, text: str) -> str | None:
        try:
            verdict = self._ask(kind, text)
        except _Unusable as error:
            return f"could not be checked: {error}"
        except TimeoutError:
            self._discard()
            verdict = f"took longer than {self._limits.grammar_s:g} s to compile (Limits.grammar_s)"
            self._verdicts.keep(key, verdict, until=time.monotonic() + _DOUBTFUL_FOR)
        except _Died:
            verdict = "crashes the compiler, or needs more than 2 GB of memory"
            self._verdicts.keep(key, verdict, until=time.monotonic() + _DOUBTFUL_FOR)
        else:
            self._verdicts.keep(key, verdict)
        return verdict

    def _ask(self, kind: str, text: str) -> str | None:
        """A process that was there before may have died of something else (its thread ended): ask a fresh one then."""
        child = self._child
        if child is not None:
            with contextlib.suppress(_Died):
                return child.ask(kind, text, self._limits.grammar_s)
            self._discard()
        try:
            return self._start().ask(kind, text, self._limits.grammar_s)
        except _Died:
            self._discard()
            raise

    def _start(self) -> _Child:
        with self._swap:
            if self._closed:
                raise _Unusable("the pipeline is closed")
            try:
                child = self._child = _Child()
            except Exception as error:
                raise _Unusable(f"no process could be started: {error}") from error
        try:
            child.boot(self._hello, self._limits.boot)
        except (_Died, TimeoutError) as error:
            self._discard()
            raise _Unusable(str(error) or f"not ready within {self._limits.boot:g} s (Limits.boot)") from error
        return child

    def _discard(self) -> None:
        with self._swap:
            child, self._child = self._child, None
            if self._closed:
                raise _Unusable("the pipeline is closed")
        if child is not None:
            child.kill()


class _Verdicts:
    """The latest verdicts; some for a while only."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, tuple[str | None, float]] = OrderedDict()

    def find(self, key: bytes, now: float) -> tuple[bool, str | None]:
        verdict, until = self._kept.get(key, (None, -1.0))
        if until < now:
            return False, None
        self._kept.move_to_end(key)
        return True, verdict

    def keep(self, key: bytes, verdict: str | None, until: float = float("inf")) -> None:
        self._kept[key] = (verdict, until)
        self._kept.move_to_end(key)
        if len(self._kept) > _VERDICTS_KEPT:
            self._kept.popitem(last=False)


class _Child:
    """One life of the process, and the socket to it. Raises _Died and TimeoutError."""

    def __init__(self) -> None:
        ours, theirs = (socket.socket(fileno=above_stdio(end.detach())) for end in socket.socketpair())
        self._link, self._unread = ours, b""
        command = _start.command(_CHILD, os.getpid(), theirs.fileno())
        quiet = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                command,
                env=_start.environment(),
                stdin=quiet,
                stdout=quiet,
                stderr=quiet,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    def boot(self, hello: Mapping[str, Any], timeout: float) -> None:
        answer = self._exchange(hello, timeout)
        if "failed" in answer:
            raise _Died(str(answer["failed"]))

    def ask(self, kind: str, text: str, timeout: float) -> str | None:
        error = self._exchange({"kind": kind, "text": text}, timeout)["error"]
        return None if error is None else str(error)

    def kill(self) -> None:
        """SIGKILL, and wait for the end. A socket in use by another thread is left to it."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP)
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()

    def _exchange(self, message: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        until = time.monotonic() + timeout
        try:
            self._link.settimeout(timeout)
            self._link.sendall(json.dumps(message).encode() + b"\n")
            answer: dict[str, Any] = json.loads(self._line(until))
        except TimeoutError:
            raise
        except (OSError, ValueError) as error:
            raise _Died(f"the process ended: {type(error).__name__}") from error
        return answer

    def _line(self, until: float) -> bytes:
        while b"\n" not in self._unread:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._link.settimeout(left)
            piece = self._link.recv(1 << 16)
            if not piece:
                raise ConnectionResetError
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line
