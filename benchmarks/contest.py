"""A pipeline, with the other contestants in its engine's process, on the same engine (engine_beside.py)."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import engine_beside

import boundedgen
from boundedgen._engine._host import GenAIHost
from boundedgen._text import GenAITokenizer


class Contest:
    """`pipeline` is boundedgen; `ask` has another contestant run a round, while the pipeline has nothing to do."""

    def __init__(
        self,
        model: str,
        scheduler: Mapping[str, Any],
        limits: boundedgen.Limits | None = None,
        admission: boundedgen.Admission | None = None,
        device: str = "CPU",
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        address = str(Path(self._folder.name, "rounds"))
        os.environ[engine_beside.ADDRESS] = address
        places = (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, places))
        limits = limits or boundedgen.Limits()
        with Listener(address) as listener:
            host = GenAIHost(
                model,
                scheduler,
                device,
                properties or {},
                tokenizer_properties={},
                limits=limits,
                tokenizer=lambda: GenAITokenizer(model, {}),
                module=engine_beside.__name__,
            )
            self.pipeline = boundedgen.BoundedPipeline(None, engine=host, limits=limits, admission=admission)
            self._engine: Connection[Any, Any] = listener.accept()
        self.pid = self._engine.recv()
        self.pipeline.wait_ready()

    def ask(self, contestant: str, **what: Any) -> Any:
        """One of `engine_beside.Beside`'s rounds. Blocks until it is over. EOFError: the engine died of it."""
        self._engine.send((contestant, what))
        os.kill(self.pid, signal.SIGUSR1)
        return self._engine.recv()

    def close(self) -> None:
        self.pipeline.close()
        self._engine.close()
        self._folder.cleanup()
