"""LoRA adapters of a pipeline: what a caller names, checked, and a copy of each file that nobody can change.

A file can be replaced, cut off or deleted under a lane that runs for weeks, and an engine that is started again after a
crash has to be the same as before. So what was checked is what every engine gets: each file is copied once into memory
(a sealed memfd), the copy is checked, and the engines inherit its descriptor. To remember a digest instead would notice
the change, and could then only refuse to come back; an open descriptor of the file would still see it written to.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import mmap
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, final

from attrs import frozen

from boundedgen import _forks
from boundedgen._adapter_check import check_layers, check_numbers, pairs_of
from boundedgen._arguments import kind_of, plain_str, reading, real_number, short
from boundedgen._bounds import Limits
from boundedgen._descriptors import above_stdio
from boundedgen._engine._layers import Layers, layers_of
from boundedgen._engine._model_files import model_defect
from boundedgen._safetensors import head_length, tensors_of

_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_WEIGHT_MOST: Final = 1e6
_PATH_MOST: Final = 4096
_FORMS: Final = "the path of a .safetensors file, or a mapping of such paths to weights"


@final
@frozen
class Adapter:
    """One file, as it was when it was named."""

    path: str
    weight: float
    fd: int
    size: int


@final
class AdapterSet:
    """Those that an engine is built with, in order. It holds their copies until `close`."""

    def __init__(self, adapters: tuple[Adapter, ...] = ()) -> None:
        self.adapters = adapters
        _forks.watch(self)

    def spec(self) -> list[dict[str, Any]]:
        """For the boot spec, in JSON types."""
        files = [os.path.basename(one.path) for one in self.adapters]
        names = [file if files.count(file) == 1 else one.path for file, one in zip(files, self.adapters, strict=True)]
        return [
            {"name": name, "weight": one.weight, "fd": one.fd, "size": one.size}
            for name, one in zip(names, self.adapters, strict=True)
        ]

    def filenos(self) -> tuple[int, ...]:
        return tuple(one.fd for one in self.adapters)

    def told(self) -> dict[str, float]:
        """Path -> weight, for the black box."""
        return {one.path: one.weight for one in self.adapters}

    def close(self) -> None:
        """Give the memory back; an engine that has them keeps it for as long as it lives."""
        adapters, self.adapters = self.adapters, ()
        for one in adapters:
            with contextlib.suppress(OSError):
                os.close(one.fd)

    __del__ = close

    def disown(self, parent: int) -> None:
        """A fork of the user's process starts no engine."""
        self.close()


def adapters_of(given: object, models_path: str, limits: Limits) -> AdapterSet:
    """What `given` (None: no adapter) names, checked and copied. TypeError and ValueError name file, tensor, remedy."""
    weights = _weights(given, limits)
    if not weights:
        return AdapterSet()
    layers = _layers(models_path)
    found: list[Adapter] = []
    try:
        left = limits.adapter_bytes
        for path, weight in weights.items():
            with _named(path):
                found.append(_copy(path, weight, left, limits))
                left -= found[-1].size
                _check(found[-1], layers)
    except BaseException:
        AdapterSet(tuple(found)).close()
        raise
    return AdapterSet(tuple(found))


# --- what is given -----------------------------------------------------------------------------------------------


def _weights(given: object, limits: Limits) -> dict[str, float]:
    if given is None:
        return {}
    if isinstance(given, str | os.PathLike):
        return {_path(given): 1.0}
    if not isinstance(given, Mapping):
        raise TypeError(f"adapters must be {_FORMS}, not {kind_of(given)}")
    with reading("adapters", TypeError, ours=(TypeError, ValueError)):
        if len(given) > limits.adapters_max:
            raise ValueError(f"adapters names {len(given)} files; at most {limits.adapters_max} (Limits.adapters_max)")
        pairs = [(plain := _path(path), _weight(plain, weight)) for path, weight in given.items()]
    _once(pairs)
    return dict(pairs)


def _path(given: object) -> str:
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"adapters must be {_FORMS}; it names {short(given)}")
    with reading("adapters", TypeError):
        path = os.fspath(given)
    plain = plain_str(path) if isinstance(path, str) else ""
    if not plain or "\0" in plain or len(plain) > _PATH_MOST:
        raise ValueError(f"adapters names {short(path)}; give a path that a file can have, as a str")
    if not plain.endswith(".safetensors"):
        what = "convert it to .safetensors" if plain.endswith(".gguf") else "give the .safetensors file itself"
        raise ValueError(f"adapters names {short(plain)}; {what}")
    return os.path.abspath(plain)


def _weight(path: str, given: object) -> float:
    with reading("adapters", TypeError):
        number = real_number(given)
    if number is None:
        raise TypeError(f"adapters[{short(path)}] must be a number, the weight, not {short(given)}")
    if not math.isfinite(number) or abs(number) > _WEIGHT_MOST:
        raise ValueError(
            f"adapters[{short(path)}] is {short(given)}; a weight must be finite, at most {_WEIGHT_MOST:g}"
        )
    if not struct.unpack("f", struct.pack("f", number))[0]:
        raise ValueError(
            f"adapters[{short(path)}] is {short(given)}: with that weight it changes nothing; leave it out"
        )
    return number


def _once(pairs: list[tuple[str, float]]) -> None:
    """One file under two names is a slip of the pen; the engine would add it up."""
    seen: set[object] = set()
    for path, _ in pairs:
        try:
            known: object = os.stat(path)[1:3]  # inode and device
        except OSError:
            known = path
        if known in seen:
            raise ValueError(f"adapters names {short(path)} twice; give the sum of the weights once")
        seen.add(known)


# --- the files ---------------------------------------------------------------------------------------------------


class _named:  # noqa: N801
    """What is raised inside becomes a ValueError that names the file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise ValueError(f"adapter {self._path} cannot be read: {error.strerror or error}") from None
        if isinstance(error, ValueError):
            raise ValueError(f"adapter {self._path} {error}") from None


def _layers(models_path: str) -> Layers | None:
    """None: the model cannot be read either, which is told when the engine is started."""
    path = Path(models_path)
    if path.is_file():
        raise ValueError(
            f"adapters cannot be used with {short(models_path)}: the engine loads them beside a GGUF model without "
            "effect; export the model to a folder (optimum-cli export openvino) and give that"
        )
    if model_defect(path) is not None:
        return None
    try:
        return layers_of(path)
    except (OSError, SyntaxError):
        return None


def _copy(path: str, weight: float, most: int, limits: Limits) -> Adapter:
    """Never waits for a FIFO, and reads nothing but plain files."""
    source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        about = os.fstat(source)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("is no plain file")
        if about.st_size > most:
            raise ValueError(
                f"has {about.st_size} bytes, which with the others is more than {limits.adapter_bytes} "
                "(Limits.adapter_bytes); the files are copied into memory"
            )
        head_length(os.pread(source, 8, 0), about.st_size)
        return Adapter(path, weight, _sealed(source, about.st_size), about.st_size)
    finally:
        os.close(source)


def _sealed(source: int, size: int) -> int:
    fd = above_stdio(os.memfd_create("boundedgen-adapter", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    try:
        at = 0
        while at < size and (sent := _send(fd, source, at, size - at)):
            at += sent
        if at < size:
            raise ValueError(f"became shorter while it was read, {at} instead of {size} bytes")
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _send(fd: int, source: int, at: int, most: int) -> int:
    try:
        return os.sendfile(fd, source, at, min(most, 1 << 30))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):  # a file system from which the kernel cannot copy by itself
            raise
        return os.write(fd, os.pread(source, min(most, 1 << 20), at))


def _check(adapter: Adapter, layers: Layers | None) -> None:
    data = mmap.mmap(adapter.fd, adapter.size, prot=mmap.PROT_READ)  # not closed: what is raised may refer to it
    length = head_length(data[:8], adapter.size)
    pairs = pairs_of(tensors_of(data[8 : 8 + length], adapter.size))
    if layers is not None:
        check_layers(pairs, layers)
    check_numbers(pairs, data)
