"""The disposable process that compiles grammars: `python -m boundedgen._engine._grammar_child <parent pid> <fd>`.

Compiling can crash (deep nesting), take minutes or any amount of memory (measured with openvino-genai 2026.4.1), and
the binding offers no call for it. Here a pipeline with the real tokenizer and a model that computes nothing is asked
for one token, which compiles the grammar just as the engine does. One JSON object a line, both ways.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import resource
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from boundedgen._engine._parent import die_with

#: Address space on top of what the process has after its start. Ordinary grammars take less than 0.5 GB of it.
_MEMORY: Final = 2 << 30
#: Half of what a main thread has: what compiles here does not overflow the engine's stack.
_STACK: Final = 4 << 20
_WORDS_MAX: Final = 400
_PLACE: Final = re.compile(r"^(\[\d\d:\d\d:\d\d\] |Exception from |Check '.*' failed at )?/\S+?:\d+:\s*")
_NO_TEXT: Final = "it allows no first token, so no text matches it (left recursion, or a schema that refers to itself)"


def main() -> None:
    """Serve until the other end closes or the parent is gone."""
    parent, fd = int(sys.argv[1]), int(sys.argv[2])
    die_with(parent)
    _lower_ourselves()
    link = socket.socket(fileno=fd)
    lines = link.makefile("r", encoding="utf-8", newline="\n")
    try:
        compiler = _Compiler(**json.loads(lines.readline()))
    except BaseException as error:
        _say(link, {"failed": f"{type(error).__name__}: {error}"})
        os._exit(1)
    _limit_memory()
    _say(link, {"ready": True})
    _serve(link, lines, compiler)


def _serve(link: socket.socket, lines: Any, compiler: _Compiler) -> None:
    """The main thread listens, so that the end of the parent ends a compilation too."""
    asked: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()

    def answer() -> None:
        while True:
            _say(link, {"error": compiler.complaint(**asked.get())})

    threading.stack_size(_STACK)
    threading.Thread(target=answer, daemon=True).start()
    for line in lines:
        asked.put(json.loads(line))
    os._exit(0)


def _lower_ourselves() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # the kernel then chooses by size
        Path("/proc/self/oom_score_adj").write_text("1000")


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _say(link: socket.socket, message: dict[str, Any]) -> None:
    link.sendall(json.dumps(message).encode() + b"\n")


class _Compiler:
    """Compiles grammars for the tokenizer of a model."""

    def __init__(self, models_path: str, properties: dict[str, Any]) -> None:
        import openvino_genai  # type: ignore[import-untyped,unused-ignore]

        self._genai = openvino_genai
        tokenizer = openvino_genai.Tokenizer(models_path, **properties)
        vocabulary = max(tokenizer.get_vocab().values()) + 1
        self._pipeline = _pipeline(tokenizer, vocabulary)
        if complaint := self.complaint("regex", "a"):  # reads the vocabulary, once
            raise RuntimeError(complaint)

    def complaint(self, kind: str, text: str) -> str | None:
        """The engine's words, None when the grammar compiles and allows a text."""
        try:
            # A mask that allows nothing gives id 0 when greedy and anything when sampling. The model likes id 0 least.
            if self._first_token(kind, text) == 0 and self._first_token(kind, text, do_sample=True, rng_seed=1) != 0:
                return _NO_TEXT
        except MemoryError:
            os._exit(1)
        except Exception as error:
            return _PLACE.sub("", str(error)).strip()[:_WORDS_MAX] or type(error).__name__
        return None

    def _first_token(self, kind: str, text: str, **sampling: Any) -> int:
        import numpy
        import openvino  # type: ignore[import-untyped,unused-ignore]

        config = self._genai.GenerationConfig(max_new_tokens=1, **sampling)
        config.structured_output_config = self._genai.StructuredOutputConfig(**{kind: text})
        prompt = openvino.Tensor(numpy.array([[1]], dtype=numpy.int64))
        return int(self._pipeline.generate(prompt, config).tokens[0][0])


def _pipeline(tokenizer: Any, vocabulary: int) -> Any:
    import numpy
    import openvino
    import openvino_genai

    with tempfile.TemporaryDirectory(prefix="boundedgen-") as folder:
        graph, weights = Path(folder, "model.xml"), Path(folder, "model.bin")
        openvino.save_model(_model(vocabulary), graph, compress_to_fp16=False)
        return openvino_genai.LLMPipeline(
            graph.read_text(),
            openvino.Tensor(numpy.fromfile(weights, dtype=numpy.uint8)),
            tokenizer,
            "CPU",
            ATTENTION_BACKEND="SDPA",
            INFERENCE_NUM_THREADS=1,
        )


def _model(vocabulary: int) -> Any:
    """Inputs and output of a language model, and nothing between: each token gets the same logits, id 0 less."""
    import numpy
    import openvino  # type: ignore[import-untyped,unused-ignore]
    from openvino import opset13

    def port(name: str, rank: int, kind: Any) -> Any:
        node = opset13.parameter([-1] * rank, kind, name=name)
        node.output(0).set_names({name})
        return node

    ids = port("input_ids", 2, openvino.Type.i64)
    others = [port(name, 2, openvino.Type.i64) for name in ("attention_mask", "position_ids")]
    beams = port("beam_idx", 1, openvino.Type.i32)
    scores = numpy.zeros((1, 1, vocabulary), dtype=numpy.float32)
    scores[..., 0] = -1.0
    column = opset13.unsqueeze(opset13.convert(ids, "f32"), opset13.constant(numpy.int64(-1)))
    nothing = opset13.multiply(column, opset13.constant(numpy.zeros((1, 1, 1), dtype=numpy.float32)))
    logits = opset13.add(nothing, opset13.constant(scores))
    logits.output(0).set_names({"logits"})
    return openvino.Model([opset13.result(logits, name="logits")], [ids, *others, beams], "nothing")


if __name__ == "__main__":
    main()
