"""What OpenVINO and OpenCL know of this machine's devices: `python -m boundedgen._engine._survey PARENT`.

In a process of its own: what is looked at here are shared libraries of drivers, which can crash or hang whoever loads
them. One JSON object a line, as soon as it is known, so that what came before a crash is not lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from boundedgen._engine._devices import gpu_parts
from boundedgen._engine._parent import die_with

#: The properties that a device may have, by the names that are told.
_PROPERTIES: Final = {
    "full_name": "FULL_DEVICE_NAME",
    "kind": "DEVICE_TYPE",  # integrated or discrete
    "memory_bytes": "GPU_DEVICE_TOTAL_MEM_SIZE",
    "driver": "NPU_DRIVER_VERSION",  # of GPUs only OpenCL tells
}
_GPU, _DEVICE_NAME, _DRIVER_VERSION = 4, 0x102B, 0x102D  # of OpenCL's CL/cl.h
_MOST = 64  #: platforms, and devices of one


def survey() -> Iterator[tuple[str, Any]]:
    """Name by name, the quickest and safest first."""
    yield "parts", _or_words(lambda: [_part(*part) for part in gpu_parts()])
    yield "openvino_genai", _or_words(_import_genai)
    yield "devices", _or_words(_devices)
    yield "opencl", _or_words(lambda: list(_opencl()))


def _or_words(look: Callable[[], Any]) -> Any:
    """What it finds, or in words why it cannot."""
    try:
        return look()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _part(name: str, defect: tuple[str, str] | None) -> list[str]:
    return [name, *(defect or ("", ""))]


def _import_genai() -> dict[str, str]:
    import openvino_genai  # type: ignore[import-untyped,unused-ignore]

    return {"version": openvino_genai.get_version()}


def _devices() -> list[dict[str, Any]]:
    import openvino  # type: ignore[import-untyped,unused-ignore]

    core = openvino.Core()
    return [{"name": name, **_properties(core, name)} for name in core.available_devices]


def _properties(core: Any, device: str) -> dict[str, Any]:
    found = {}
    for name, key in _PROPERTIES.items():
        with contextlib.suppress(Exception):  # it has none of that name
            value = core.get_property(device, key)
            found[name] = value if isinstance(value, int) else str(getattr(value, "name", value))
    return found


# --- OpenCL, for the versions of GPU drivers --------------------------------------------------------------------------


def _opencl() -> Iterator[dict[str, str]]:
    cl = ctypes.CDLL("libOpenCL.so.1")
    for platform in _handles(cl.clGetPlatformIDs):
        for device in _handles(lambda *rest, of=platform: cl.clGetDeviceIDs(of, ctypes.c_uint64(_GPU), *rest)):
            yield {"name": _told(cl, device, _DEVICE_NAME), "driver": _told(cl, device, _DRIVER_VERSION)}


def _handles(listed: Callable[..., int]) -> list[ctypes.c_void_p]:
    found, count = (ctypes.c_void_p * _MOST)(), ctypes.c_uint()
    if listed(ctypes.c_uint(_MOST), found, ctypes.byref(count)):
        return []
    return [ctypes.c_void_p(handle) for handle in found[: count.value]]


def _told(cl: ctypes.CDLL, device: ctypes.c_void_p, what: int) -> str:
    text = ctypes.create_string_buffer(256)
    failed = cl.clGetDeviceInfo(device, ctypes.c_uint(what), ctypes.c_size_t(len(text)), text, None)
    return "" if failed else text.value.decode("utf-8", "replace").strip()


if __name__ == "__main__":
    die_with(int(sys.argv[1]))  # a driver may hang for ever
    for name, found in survey():
        print(json.dumps([name, found]), flush=True)
