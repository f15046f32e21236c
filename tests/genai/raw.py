"""The raw engine, driven without boundedgen: short names for experiments, and a laboratory process to run them in.

An experiment is a module-level function with plain arguments that returns plain data (JSON). `Lab.run` calls it in a
process of its own, since some freeze the interpreter or crash. A lab that died or hung is replaced by the next call.
Used by the tests of engine facts, on CPU and on the emulated GPU.
"""

import contextlib
import importlib
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

import numpy as np
import openvino as ov  # type: ignore[import-untyped,unused-ignore]
import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]

import boundedgen

P = ParamSpec("P")
R = TypeVar("R")
TESTS = Path(__file__).resolve().parent.parent
PLAIN = str(TESTS / "models" / "plain")
HYBRID = str(TESTS / "models" / "hybrid")
F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


# --- in the laboratory: driving the engine ---------------------------------------------------------------------------


def pipeline(
    model: str = PLAIN, device: str = "CPU", properties: Mapping[str, Any] | None = None, **scheduler: Any
) -> Any:
    """A fresh pipeline; `scheduler` are SchedulerConfig fields. f32 unless told otherwise."""
    settings = genai.SchedulerConfig()
    for name, value in scheduler.items():
        setattr(settings, name, value)
    return genai.ContinuousBatchingPipeline(model, settings, device, dict(F32 if properties is None else properties))


_shared: dict[str, Any] = {}


def shared(
    model: str = PLAIN, device: str = "CPU", properties: Mapping[str, Any] | None = None, **scheduler: Any
) -> Any:
    """An idle pipeline of these settings, loaded once a laboratory: for experiments that do it no harm.

    On the emulated GPU it is always a fresh one: live pipelines slow each other down there.
    """
    if device != "CPU":
        return pipeline(model, device, properties, **scheduler)
    key = json.dumps([model, device, properties, scheduler])
    pipe = _shared.pop(key, None) or pipeline(model, device, properties, **scheduler)
    if pump(pipe, within=3):
        pipe = pipeline(model, device, properties, **scheduler)
    pipe.step()
    assert usage(pipe) == (0, 0.0)
    _shared[key] = pipe
    return pipe


def config(max_new_tokens: int, **fields: Any) -> genai.GenerationConfig:
    """Greedy, to its full length whatever the model says."""
    made = genai.GenerationConfig()
    for name, value in {"max_new_tokens": max_new_tokens, "ignore_eos": True, **fields}.items():
        setattr(made, name, value)
    return made


def ids(length: int, seed: int = 0) -> list[int]:
    """A prompt of random tokens, none of them special."""
    return [int(i) for i in np.random.default_rng(seed).integers(3, 259, length)]


def tensor(tokens: Sequence[int]) -> Any:
    """As add_request wants it: one row of int64."""
    return ov.Tensor(np.array([tokens], dtype=np.int64))


def add(pipe: Any, request: int, prompt: int | Sequence[int], new: int, **fields: Any) -> Any:
    """Add a request; an int stands for that many random prompt tokens."""
    tokens = ids(prompt, seed=request) if isinstance(prompt, int) else list(prompt)
    return pipe.add_request(request, tensor(tokens), config(new, **fields))


def steps(pipe: Any, count: int) -> None:
    for _ in range(count):
        pipe.step()


def unread(handle: Any) -> list[int]:
    """The new tokens that the handle shows now."""
    found: list[int] = []
    while handle.can_read():
        for output in handle.read().values():  # empty for a request that was IGNORED
            found += output.generated_ids
    return found


def finish(pipe: Any, *handles: Any, within: int = 3000) -> list[list[int]]:
    """Step until nothing is left; the tokens of each handle."""
    found: list[list[int]] = [[] for _ in handles]
    for _ in range(within):
        if not pipe.has_non_finished_requests():
            return found
        pipe.step()
        for tokens, handle in zip(found, handles, strict=True):
            tokens += unread(handle)
    raise AssertionError(f"unfinished after {within} steps")


def status(handle: Any) -> str:
    return str(handle.get_status().name)


def proved(handle: Any) -> bool | None:
    """Whether the engine proves that it let go of the request. None: this release does not tell."""
    if not hasattr(handle, "get_perf_metrics"):
        return None
    try:
        handle.get_perf_metrics()
    except RuntimeError:
        return False
    return True


def usage(pipe: Any) -> tuple[int, float]:
    """Requests and percentage of blocks, as the engine's metrics have them."""
    metrics = pipe.get_metrics()
    return int(metrics.requests), float(metrics.cache_usage)


def attributes(kind: Any) -> set[str]:
    """Names of the public fields of one of the engine's configurations."""
    return {n for n in dir(kind) if not n.startswith("_") and not callable(getattr(kind(), n))}


def step_error(pipe: Any) -> str:
    """What the next step raises; empty if it does not."""
    try:
        pipe.step()
    except RuntimeError as error:
        return str(error)
    return ""


def pump(pipe: Any, within: int = 3000) -> str:
    """Step until nothing is left or a step raises; what it raised."""
    for _ in range(within):
        if not pipe.has_non_finished_requests():
            return ""
        if raised := step_error(pipe):
            return raised
    return "unfinished"


# --- outside: the laboratory -----------------------------------------------------------------------------------------


class Died(Exception):
    """The laboratory process ended during the experiment. `signal` 0: it exited by itself."""

    def __init__(self, status: int, output: str) -> None:
        super().__init__(f"ended with {status}: {output[-2000:]}")
        self.signal = max(0, -status)
        self.output = output


class Hung(Exception):
    """The experiment did not come back in time; its process was killed."""


class Lab:
    """A process that runs experiments one after another."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        package = Path(boundedgen.__file__).parents[1]  # the very one that is tested here
        places = os.pathsep.join((str(TESTS), str(package)))
        self._environment = {**os.environ, **(environment or {}), "PYTHONPATH": places}
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 closed by close()

    def run(self, experiment: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """What `experiment` returns. Raises Died, Hung (60 s) or AssertionError with its traceback."""
        return self.run_within(60, experiment, *args, **kwargs)

    def run_within(self, seconds: float, experiment: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        process = self._start()
        call = [experiment.__module__, experiment.__qualname__, args, kwargs]
        assert process.stdin is not None
        process.stdin.write(json.dumps(call).encode() + b"\n")
        process.stdin.flush()
        answer = self._answer(process, seconds)
        assert "error" not in answer, answer["error"]
        result: R = answer["result"]
        return result

    def close(self) -> None:
        self._end()
        self._output.close()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._output.truncate(0)
            command = [sys.executable, "-m", "genai.raw"]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._output,
                env=self._environment,
                start_new_session=True,
            )
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        assert process.stdout is not None
        until = time.monotonic() + seconds
        received = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                if not selector.select(max(0.0, until - time.monotonic())):
                    self._end()
                    raise Hung(f"no answer within {seconds} s")
                part = os.read(process.stdout.fileno(), 1 << 16)
                if not part:
                    raise Died(self._end(), self._said())
                received += part
        answer: dict[str, Any] = json.loads(received)
        return answer

    def _said(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        # A process that closed its output is ending by itself, and its own status is the one that counts.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2 if process.stdout is not None and process.stdout.closed else 0.5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        ended = process.wait(10)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        return ended


@contextlib.contextmanager
def laboratory(environment: Mapping[str, str] | None = None) -> Iterator[Lab]:
    lab = Lab(environment)
    try:
        yield lab
    finally:
        lab.close()


def _serve() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engine prints must not get between the answers
    for line in sys.stdin:
        module, name, args, kwargs = json.loads(line)
        try:
            answer = {"result": getattr(importlib.import_module(module), name)(*args, **kwargs)}
        except Exception as error:
            answer = {"error": f"{error!r}\n{traceback.format_exc()}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
