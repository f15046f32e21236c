"""What is there: facts of this machine and this process, gathered once. The checks only look at them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import resource
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from attrs import frozen

from boundedgen import __version__
from boundedgen._device_lock import Holder, holder_of
from boundedgen._doctor._asked import Asked
from boundedgen._engine import _compile_cache, _start
from boundedgen._engine._defect import Defect
from boundedgen._engine._devices import Part
from boundedgen._engine._neighbours import engines
from boundedgen._scheduler_config import available_memory

SURVEY_S = 60.0  #: that OpenVINO and the drivers may take to tell which devices there are
_SURVEY = "boundedgen._engine._survey"
ENGINE = ("openvino", "openvino-genai", "openvino-tokenizers")  #: distributions
_CLASSIFIER = "Programming Language :: Python :: 3."


@final
@frozen(kw_only=True)
class Device:
    """As OpenVINO tells of it."""

    name: str
    full_name: str = ""
    kind: str = ""  #: "INTEGRATED" or "DISCRETE"
    memory_bytes: int | None = None
    driver: str = ""


@final
@frozen(kw_only=True)
class Survey:
    """What a process that loaded the drivers had to say. `failed`: by name, why something could not be told."""

    parts: tuple[Part, ...] = ()
    devices: tuple[Device, ...] = ()
    drivers: Mapping[str, str]  #: of GPUs, by the name that OpenCL gives to the device
    failed: Mapping[str, str]

    @property
    def listed(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.devices)


@final
@frozen(kw_only=True)
class Place:
    """A folder, or one that is still to be made."""

    path: str
    exists: bool
    writable: bool  #: or, if it is to be made, can be made
    free_bytes: int | None
    compiled: int = 0  #: files of OpenVINO's compile cache


@final
@frozen(kw_only=True)
class Machine:
    """All that the checks look at. Empty and None: not known, or not there."""

    python: str
    pythons: tuple[str, ...]  #: that are known to work: "3.11"
    system: str
    versions: Mapping[str, str]  #: by distribution; empty for what is not installed
    survey: Survey
    kernel: Mapping[str, str]  #: what is wrong with a call of the kernel that is needed; empty: nothing
    limits: Mapping[str, int | None]  #: soft ones of this process; None: unlimited
    processors: int
    quota: float | None  #: processors that the container may use
    memory: int | None  #: bytes that this process may still take
    shm: Place
    temp: Place
    caches: tuple[Place, ...]
    holder: Holder | None  #: of the device lock
    lock_failed: str  #: why the device lock cannot be looked at
    engines: tuple[int, ...]  #: processes


def machine_of(asked: Asked) -> Machine:
    """This one, now. Takes as long as OpenVINO takes to list its devices."""
    holder, lock_failed = _lock(asked.device_lock)
    return Machine(
        python=platform.python_version(),
        pythons=_pythons(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        versions={"boundedgen": __version__, **{name: _version(name) for name in ENGINE}},
        survey=surveyed(),
        kernel={name: _refusal(call) for name, call in _CALLS.items()},
        limits={name: _limit(number) for name, number in _LIMITS.items()},
        processors=len(os.sched_getaffinity(0)),
        quota=quota_of(Path("/sys/fs/cgroup")),
        memory=available_memory(),
        shm=place_of("/dev/shm"),
        temp=_temp(),
        caches=tuple(place_of(folder) for folder in _compile_cache.folders(asked.properties)),
        holder=holder,
        lock_failed=lock_failed,
        engines=engines(),
    )


def _lock(path: str | None) -> tuple[Holder | None, str]:
    """Its holder, and why it cannot be looked at, or be made."""
    if path is None:
        return None, ""
    place = place_of(path)
    if not place.exists and not place.writable:
        return None, "it is not there, and cannot be made"
    if place.exists and not (os.path.isfile(path) and os.access(path, os.R_OK | os.W_OK)):
        return None, "it is no plain file, or not to be written to"
    try:
        return holder_of(path), ""
    except OSError as error:
        return None, error.strerror or str(error)


# --- versions --------------------------------------------------------------------------------------------------------


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _pythons() -> tuple[str, ...]:
    """As this library's own package says."""
    try:
        classifiers = importlib.metadata.metadata("boundedgen").get_all("Classifier") or ()
    except importlib.metadata.PackageNotFoundError:
        return ()
    return tuple(str(line).rpartition(" ")[2] for line in classifiers if str(line).startswith(_CLASSIFIER))


# --- the kernel, and what it allows ----------------------------------------------------------------------------------


def _pidfd() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _memfd() -> None:
    os.close(os.memfd_create("boundedgen-doctor", os.MFD_CLOEXEC))


#: How an engine is watched, and spoken with.
_CALLS: Mapping[str, Callable[[], None]] = {
    "pidfd_open": _pidfd,
    "memfd_create": _memfd,
    "epoll_create": lambda: select.epoll().close(),
}
_LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "address space": resource.RLIMIT_AS,
    "processes": resource.RLIMIT_NPROC,
}


def _refusal(call: Callable[[], None]) -> str:
    try:
        call()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _limit(number: int) -> int | None:
    soft, _ = resource.getrlimit(number)
    return None if soft == resource.RLIM_INFINITY else soft


def quota_of(cgroups: Path) -> float | None:
    """Processors that the container's own control group (v2, or v1) may use; None: all there are."""
    for name in ("cpu.max", "cpu/cpu.cfs_quota_us"):
        with contextlib.suppress(OSError, ValueError):
            quota, *period = (cgroups / name).read_text().split()
            other = period[0] if period else (cgroups / "cpu/cpu.cfs_period_us").read_text()
            return int(quota) / int(other) if int(quota) > 0 else None
    return None


# --- folders ---------------------------------------------------------------------------------------------------------


def place_of(folder: str) -> Place:
    path = Path(folder)
    nearest = next((one for one in (path, *path.parents) if one.exists()), path)
    writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    try:
        free = shutil.disk_usage(nearest).free
    except OSError:
        free = None
    compiled = _compile_cache.compiled_in(path) if path.is_dir() else 0
    return Place(path=folder, exists=path.exists(), writable=writable, free_bytes=free, compiled=compiled)


def _temp() -> Place:
    try:
        return place_of(tempfile.gettempdir())
    except OSError:  # Python has tried every place that it knows
        return Place(path=os.environ.get("TMPDIR", "/tmp"), exists=False, writable=False, free_bytes=None)


# --- devices ---------------------------------------------------------------------------------------------------------


def surveyed(command: Sequence[str] | None = None, within: float = SURVEY_S) -> Survey:
    """What a process of its own tells of the devices. One that crashes or hangs has told what came before."""
    command = command or _start.command(_SURVEY, os.getpid())
    try:
        done = subprocess.run(
            command, env=_start.environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=within
        )
    except subprocess.TimeoutExpired as error:
        return read_survey(error.stdout or b"", f"it did not answer within {within:g} s")
    except OSError as error:
        return read_survey(b"", f"no process could be started: {error.strerror}")
    return read_survey(done.stdout, _ending(done.returncode, done.stderr))


def _ending(status: int, said: bytes) -> str:
    last = said.decode("utf-8", "replace").strip().rpartition("\n")[2][-200:]
    how = f"the process that asked was killed by {_signal(-status)}" if status < 0 else f"it ended with {status}"
    return f"{how}: {last}" if last else how


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read_survey(lines: bytes, ended: str) -> Survey:
    """Of what the process printed; a driver may print as well. What is missing was not told, since it `ended` so."""
    told: dict[str, Any] = {}
    for line in lines.decode("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError, TypeError):
            name, value = json.loads(line)
            told[name] = value
    failed = {name: ended for name in ("parts", "openvino_genai", "devices", "opencl") if name not in told}
    failed |= {name: value for name, value in told.items() if isinstance(value, str)}
    known = {name: value for name, value in told.items() if name not in failed}
    return Survey(
        parts=tuple(Part(name, Defect(seen, do) if seen else None) for name, seen, do in known.get("parts", ())),
        devices=tuple(Device(**fields) for fields in known.get("devices", ())),
        drivers={one["name"]: one["driver"] for one in known.get("opencl", ())},
        failed=failed,
    )
