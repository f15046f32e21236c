"""What OpenVINO compiled and kept in CACHE_DIR, when an engine does not start with it.

OpenVINO writes its cache in place. A kill or a full disk in mid-compile leaves half a file, and the GPU plugin then
raises, dies or hangs at every start (docs/engine-facts.md). So each start marks itself in the folder, and the mark goes
when the engine is ready, or cannot start for a reason of another kind. A mark that is left belongs to a start that
raised, died, hung or was killed, in whatever process: the next one puts the cache aside before it loads, into a folder
inside CACHE_DIR. CACHE_DIR itself is left where it is, since it may be a mount point, which cannot be renamed, the
folder of the model, or shared with other processes; and nothing but what OpenVINO writes there is touched.

A mark is an empty file, so that it finds room on a full disk. Its owner holds a lock on it, which the kernel lets go
with the process: no pid that was given away again, and none of another container, can be taken for it. Its name says
how many compiled files there were. If there are more now, that start has compiled something and has got on, as a cold
one does that is too slow for the limit of a boot, and nothing is put aside; what fails on a file adds none. Numbers,
not times: clocks jump, and some file systems know whole seconds only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

from boundedgen._engine._seam import BootRefusedError

KEY = "CACHE_DIR"
_COMPILED = (".blob", ".cl_cache")  #: models, and the GPU plugin's kernels
_ASIDE = re.compile(r"bad-\d{8}T\d{6}Z(-\d+)?")
_MARK = re.compile(r"boundedgen-start-\d+-[0-9a-f]{8}-(\d+)")  #: pid, for whoever looks; compiled files


def folders(properties: Mapping[str, Any]) -> list[str]:
    """Those that plain properties name, also for one device of several; each once."""
    return sorted(set(_named(properties)))


def _named(properties: Mapping[str, Any]) -> Iterator[str]:
    for name, value in properties.items():
        if name == KEY and isinstance(value, str) and value:
            yield os.path.abspath(value)
        elif isinstance(value, Mapping):
            yield from _named(value)


@final
class Start:
    """One start of an engine, as its compile caches know of it. Made by the child, before it loads.

    `notes`: what was done with what earlier starts left, in words. A folder that is not there, or holds nothing, needs
    no mark; one that cannot be written to, or knows no locks, gets none, and then nothing is known of its starts.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        places = [Path(folder) for folder in folders(properties)]
        self.notes = [note for place in places if (note := _look_back(place))]
        self._marks = [mark for place in places if (mark := _mark(place)) is not None]

    def refused(self, error: BootRefusedError) -> None:
        """What is wrong for good is something else than the cache, and so is a device that is gone for a moment."""
        if error.permanent or error.kind == "device":
            self.over()

    def over(self) -> None:
        """Nothing is held against what it found there."""
        while self._marks:
            mark, lock = self._marks.pop()
            with contextlib.suppress(OSError):
                mark.unlink()
            os.close(lock)


# --- marks -----------------------------------------------------------------------------------------------------------


def _mark(folder: Path) -> tuple[Path, int] | None:
    """It has its name only once it is locked: before, another start would take it for one that is left."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as undo:
        if not (number := len(_compiled(folder))):
            return None
        mark = folder / f"boundedgen-start-{os.getpid()}-{secrets.token_hex(4)}-{number}"
        unnamed = folder / f".{mark.name}"
        lock = os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        undo.callback(os.close, lock)
        undo.callback(unnamed.unlink)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(mark)
        undo.pop_all()
        return mark, lock
    return None


def _is_left(mark: Path) -> bool:
    """Its owner is gone, and did not take it away."""
    try:
        file = os.open(mark, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return mark.exists()  # one that ends in order takes it away before it lets go
    except OSError:
        return False
    finally:
        os.close(file)


def _look_back(folder: Path) -> str:
    """Put aside what starts failed with that did not get on. What was done, in words; empty: nothing."""
    try:
        found = [path for path in folder.iterdir() if _MARK.fullmatch(path.name) and _is_left(path)]
    except OSError:
        return ""
    note = _put_aside(folder, max(map(_number, found), default=0))
    for mark in found:
        with contextlib.suppress(OSError):
            mark.unlink()
    return note


def _number(mark: Path) -> int:
    return int(mark.name.rpartition("-")[2])


# --- moving ----------------------------------------------------------------------------------------------------------


def _compiled(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in _COMPILED and path.is_file())


def compiled_in(folder: Path) -> int:
    """Files that OpenVINO has compiled there; 0 also where that cannot be seen."""
    with contextlib.suppress(OSError):
        return len(_compiled(folder))
    return 0


def _put_aside(folder: Path, number: int) -> str:
    """Move what was compiled out of the way, unless there are more files than the `number` that a start failed with."""
    try:
        files = _compiled(folder)
        if not 0 < len(files) <= number:
            return ""
        aside = _move(files, folder)
    except FileNotFoundError:
        return ""  # somebody else was faster
    except OSError as error:
        return f"the compile cache in {folder} could not be put aside after a start that failed: {error}"
    return (
        f"the compile cache in {folder} was put aside after a start that failed or was killed: {len(files)} files are "
        f"in {aside}, which can be deleted"
    )


def _move(files: list[Path], folder: Path) -> Path:
    """A cache can be as large as the model, so of those that were put aside only the newest is kept."""
    earlier = [path for path in folder.iterdir() if _ASIDE.fullmatch(path.name) and not path.is_symlink()]
    aside = _fresh(folder)
    for path in files:
        path.rename(aside / path.name)
    for path in earlier:
        shutil.rmtree(path, ignore_errors=True)
    return aside


def _fresh(folder: Path) -> Path:
    """A folder that was not there."""
    stamp = time.strftime("bad-%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(1000):
        path = folder / (f"{stamp}-{number}" if number else stamp)
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"there are 1000 folders named {stamp}")
