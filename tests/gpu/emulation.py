"""The emulated GPU: what it needs, how it is built, and the environment of a process that shall see it.

It emulates a device for functional tests. It says nothing about real GPU hardware, its speed or its memory.
"""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

SOURCE = Path(__file__).with_name("emulated_gpu.c")
RUNTIME = {"intel-opencl-rt": "2026.2.0", "intel-cmplr-lib-rt": "2026.2.0"}
RUNTIME_HINT = (
    "pip install " + " ".join(f"{name}=={version}" for name, version in RUNTIME.items()) + " (proprietary, Intel EULA)"
)
RUNTIME_FILES = ("libintelocl.so", "libOpenCL.so.1", "libtbb.so.12", "libsvml.so")


class Absent(Exception):
    """A part of the emulation is not on this machine; the message names it and how to get it."""


@frozen
class Emulation:
    """A layer that is built, beside the runtime that it needs."""

    layer: Path
    runtime: Path  #: the folder of libintelocl.so
    kernels: Path  #: kernels that were compiled before, kept between runs; belongs to this layer, runtime and OpenVINO

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The variables to set for a process that shall see the GPU. They act on a newly executed process only."""
        return {
            "LD_LIBRARY_PATH": _before(str(self.runtime), inherited.get("LD_LIBRARY_PATH")),
            # OpenVINO's own older libtbb would win otherwise, and no GPU would be listed, silently.
            "LD_PRELOAD": _before(str(self.runtime / "libtbb.so.12"), inherited.get("LD_PRELOAD")),
            "OCL_ICD_FILENAMES": str(self.runtime / "libintelocl.so"),
            "OPENCL_LAYERS": str(self.layer),
        }

    def properties(self) -> dict[str, str]:
        """f32 everywhere: greedy tokens equal the CPU's. A cold load takes 10 to 40 s, a warm one under a second."""
        return {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "CACHE_DIR": str(self.kernels)}


def prepare() -> Emulation:
    """Find the runtime, build the layer unless its source was built before. Raises Absent."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise Absent("the emulated GPU runs on x86-64 Linux only")
    runtime = _runtime()
    cache = _cache() / _fingerprint(SOURCE.read_bytes())
    layer = cache / "libemulatedgpu.so"
    if not layer.exists():
        _build(layer)
    kernels = cache / ("kernels-" + _fingerprint("\n".join(_owners()).encode()))
    kernels.mkdir(parents=True, exist_ok=True)
    return Emulation(layer, runtime, kernels)


def _before(first: str, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else first


def _fingerprint(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _runtime() -> Path:
    for name, version in RUNTIME.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise Absent(f"{name} is not installed: {RUNTIME_HINT}") from None
        if found != version:
            raise Absent(f"{name} is {found}, the emulation was checked with {version}: {RUNTIME_HINT}")
    files = importlib.metadata.files("intel-opencl-rt") or []
    folder = next((Path(str(f.locate())).resolve().parent for f in files if f.name == "libintelocl.so"), None)
    missing = [name for name in RUNTIME_FILES if folder is None or not (folder / name).exists()]
    if folder is None or missing:
        raise Absent(f"the OpenCL runtime is incomplete ({', '.join(missing)}): {RUNTIME_HINT}")
    return folder


def _compiler() -> list[str]:
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if found:
        return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise Absent("no C compiler to build the emulated GPU: apt-get install gcc, or pip install ziglang")


def _build(layer: Path) -> None:
    layer.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=layer.parent) as folder:
        fresh = Path(folder, layer.name)
        command = [*_compiler(), "-O1", "-shared", "-fPIC", str(SOURCE), "-o", str(fresh)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        ctypes.CDLL(str(fresh))
        fresh.replace(layer)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "boundedgen-tests")


def _owners() -> list[str]:
    """What compiled kernels depend on. The processor is among it: they are machine code for its instruction set."""
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    return [importlib.metadata.version("openvino"), *RUNTIME.values(), flags]
