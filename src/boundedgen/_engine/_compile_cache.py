"""What OpenVINO compiled and kept in CACHE_DIR, when an engine does not start with it.

OpenVINO writes its cache in place. A kill or a full disk in mid-compile leaves half a file, and the GPU plugin then
raises, or dies, at every start (docs/engine-facts.md). So after a start that failed, the next engine puts the cache
aside before it loads, once: into a folder inside CACHE_DIR. CACHE_DIR itself is left where it is, since it may be a
mount point, which cannot be renamed, the folder of the model, or shared with other processes; and nothing but what
OpenVINO writes there is touched.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from boundedgen._core._events import BootFailed

KEY = "CACHE_DIR"
_COMPILED = (".blob", ".cl_cache")  #: models, and the GPU plugin's kernels
_ASIDE = re.compile(r"bad-\d{8}T\d{6}Z(-\d+)?")


def folders(properties: Mapping[str, Any]) -> list[str]:
    """Those that plain properties name, also for one device of several; each once."""
    return sorted(set(_named(properties)))


def _named(properties: Mapping[str, Any]) -> Iterator[str]:
    for name, value in properties.items():
        if name == KEY and isinstance(value, str) and value:
            yield os.path.abspath(value)
        elif isinstance(value, Mapping):
            yield from _named(value)


def may_be_blamed(refusal: BootFailed) -> bool:
    """What is wrong for good is something else, and so is a device that is gone for a moment."""
    return not refusal.permanent and refusal.kind != "device"


def put_aside(properties: Mapping[str, Any], before: float | None) -> tuple[str, ...]:
    """Move what was compiled out of the way, if any of it was there `before` (wall clock), when the start that failed
    began: what that one has compiled itself cannot be why it failed, and makes the next one faster.

    By the child. Returns what was done, in words; empty: there was nothing to do. None: no start has failed.
    """
    named = folders(properties) if before is not None else ()
    return tuple(note for folder in named if (note := _put_aside(Path(folder), before or 0.0)))


def _put_aside(folder: Path, before: float) -> str:
    try:
        files = [path for path in sorted(folder.iterdir()) if path.suffix in _COMPILED and path.is_file()]
        if not any(path.stat().st_mtime < before for path in files):
            return ""
        aside = _move(files, folder)
    except FileNotFoundError:
        return ""  # no cache yet, or somebody else was faster
    except OSError as error:
        return f"the compile cache in {folder} could not be put aside after a start that failed: {error}"
    return (
        f"the compile cache in {folder} was put aside after a start that failed: {len(files)} files are in {aside}, "
        "which can be deleted"
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
