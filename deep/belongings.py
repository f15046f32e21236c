"""What a run could leave behind in this process and on this machine."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, final

import psutil
from attrs import frozen

SETTLING_S = 5.0  #: threads and processes may take a moment to end
_NOT_OURS = ("pytest_timeout", "ThreadPoolExecutor-")  #: threads of pytest's and of openvino's import


@final
@frozen
class Belongings:
    descriptors: frozenset[str]
    threads: frozenset[int | None]
    children: frozenset[int]
    shared_memory: frozenset[str]
    temporary: frozenset[str]

    @classmethod
    def now(cls) -> Self:
        return cls(
            descriptors=frozenset(_descriptors()),
            threads=frozenset(t.ident for t in threading.enumerate() if not t.name.startswith(_NOT_OURS)),
            children=frozenset(child.pid for child in psutil.Process().children(recursive=True)),
            shared_memory=frozenset(os.listdir("/dev/shm")),
            temporary=frozenset(os.listdir(tempfile.gettempdir())),
        )

    def beyond(self, before: Belongings) -> dict[str, Any]:
        names = ("descriptors", "threads", "children", "shared_memory", "temporary")
        more = {name: sorted(getattr(self, name) - getattr(before, name)) for name in names}
        return {name: found for name, found in more.items() if found}


def left_behind(before: Belongings) -> list[str]:
    """What there is that was not there `before`, once there was time to go. The tokenizer keeps its model's files."""
    end = time.monotonic() + SETTLING_S
    while (more := Belongings.now().beyond(before)) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.02)
    return [f"{name} left behind: {found}" for name, found in more.items()]


@contextlib.contextmanager
def temporary_files() -> Iterator[Path]:
    """A folder that takes the place of the machine's for temporary files, here and in processes started from here."""
    kept = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="boundedgen-deep-") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = kept[0]
            os.environ.pop("TMPDIR")
            os.environ.update({} if kept[1] is None else {"TMPDIR": kept[1]})


def _descriptors() -> Iterator[str]:
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            if not target.startswith("/proc/") and not target.endswith("tokenizer.bin"):
                yield f"{fd} {target}"
