"""Why an engine did not start, in words for the person who has to mend it: what is missing, what to install or do.

`preflight` looks before any process is started, `diagnose` after the engine's constructor raised; `model_defect`,
`absent_device` and `gpu_parts` are what both are made of, for whoever asks before anything has failed. Nothing here
imports openvino before it is needed. All that is looked at on the machine goes through `Host`, so that tests can fake
it.
"""

from __future__ import annotations

import ctypes
import grp
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from attrs import field, frozen

from boundedgen._engine._defect import Defect
from boundedgen._engine._model_files import AGAIN, GIVE, TOKENIZER, model_defect
from boundedgen._unreported import unreported

Kind = Literal["device", "model", "memory", "other"]


class Diagnosis(NamedTuple):
    kind: Kind
    text: str  #: what is wrong, what to do, and the engine's own words
    permanent: bool  #: trying again cannot help


# --- the machine -----------------------------------------------------------------------------------------------------


def _load(library: str) -> str:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return ""


def _listed() -> tuple[str, ...]:
    with unreported():
        import openvino  # type: ignore[import-untyped,unused-ignore]
    return tuple(openvino.Core().available_devices)


def _usable(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def _group_of(path: Path) -> str:
    gid = path.stat().st_gid
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


@frozen
class Host:
    """The machine, as far as a diagnosis looks at it."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(factory=lambda: os.environ)
    load: Callable[[str], str] = _load  #: try to load a shared library; "" or the loader's own words
    listed: Callable[[], tuple[str, ...]] = _listed  #: devices that OpenVINO lists
    usable: Callable[[Path], bool] = _usable  #: may this process read and write it?
    group_of: Callable[[Path], str] = _group_of
    user: Callable[[], str] = lambda: f"uid {os.geteuid()}"

    def render_nodes(self) -> list[Path]:
        return sorted((self.root / "dev/dri").glob("renderD*"))

    def drivers(self) -> list[str]:
        """Libraries of the OpenCL drivers that the loader would try."""
        if named := self.environ.get("OCL_ICD_FILENAMES"):
            return [name for name in named.split(":") if name]
        vendors = Path(self.environ.get("OCL_ICD_VENDORS") or self.root / "etc/OpenCL/vendors")
        return [line for path in sorted(vendors.glob("*.icd")) if (line := path.read_text().strip())]


HOST = Host()


# --- before a process is started -------------------------------------------------------------------------------------


def preflight(models_path: str | os.PathLike[str], device: str) -> Diagnosis | None:
    """What can be known to be wrong before a process is started; None: nothing. Looks at the head of a GGUF at most."""
    if not device:
        return Diagnosis("device", _NO_NAME, permanent=True)
    defect = model_defect(Path(models_path))
    return Diagnosis("model", f"models_path {defect}", permanent=True) if defect else None


_NO_NAME = "device is empty. Give the name of an OpenVINO device: CPU, GPU, or GPU.1 for the second one."


# --- after the engine refused ----------------------------------------------------------------------------------------

_MEMORY = re.compile(
    r"bad_alloc|out of memory|OUT_OF_(HOST_MEMORY|RESOURCES|DEVICE_MEMORY)|MEM_OBJECT_ALLOCATION_FAILURE"
    r"|INVALID_BUFFER_SIZE|exceeds? (the )?(available|max|device|global)|more memory than available"
    r"|can(no|')t allocate|failed to allocate|\bENOMEM\b",
    re.IGNORECASE,
)
_LOST = re.compile(
    r"DEVICE_(LOST|NOT_AVAILABLE)|device (is )?lost|CL_INVALID_COMMAND_QUEUE|context (was|is) lost", re.IGNORECASE
)
#: the engine's words, and what to do about them; the first that matches
_MODEL = (
    (r"LoRA", "The engine does not take one of the adapters beside this model. Use one that was trained for it."),
    (r"could not find a model in the directory", f"There is no model at that path. {GIVE}"),
    (
        r"incorrect weights in bin file|is_valid_weights_range",
        f"openvino_model.bin is cut short or belongs to another openvino_model.xml. {AGAIN}",
    ),
    (r"pugi|error parsing element|xml_deserialize", f"openvino_model.xml is cut short or damaged. {AGAIN}"),
    (
        r"unable to read the model|could not open the file|failed to open weights",
        "The model files cannot be read as OpenVINO IR. Export the model again, for the installed version of openvino.",
    ),
    (
        r"unsupported model (architecture|type)",
        "This version of openvino-genai does not know the model's architecture. Upgrade it, or use another model.",
    ),
    (
        r"gguf",
        (
            "The GGUF file cannot be loaded: it is damaged, or quantised in a way that this version of openvino-genai "
            "does not know. Use another quantisation (Q4_0, Q4_1, Q8_0, F16), or an OpenVINO export."
        ),
    ),
    (r"tokenizer", f"The tokenizer cannot be used. {TOKENIZER}"),
    (
        r"unsupported op|cannot create .* layer|opset|no frontend",
        "This version of openvino does not know an operation of the model. Upgrade openvino, or export it again.",
    ),
)
_PROPERTY = re.compile(r"unsupported property (\S+)", re.IGNORECASE)


def diagnose(device: str, error_text: str, *, served: bool = False, host: Host = HOST) -> Diagnosis:
    """Why the engine's constructor raised `error_text` on `device`. Never raises.

    `served`: an earlier incarnation was ready, so the device was there once. One that is gone now may be in a reset,
    and is not permanent.
    """
    kind, text, permanent = _cause(device, error_text, served, host)
    words = engine_words(error_text)
    return Diagnosis(kind, f"{text}{_SAID}{words}" if words else text, permanent)


_SAID = " The engine said: "


def parted(text: str) -> tuple[str, str]:
    """A diagnosis, as it is told to callers: what is wrong and what to do; the engine's own words, or nothing."""
    advice, _, words = text.partition(_SAID)
    return advice, words


def _cause(device: str, said: str, served: bool, host: Host) -> Diagnosis:
    if _MEMORY.search(said):
        return Diagnosis("memory", _memory_advice(device), permanent=False)
    if (missing := _missing_device(device, host)) is not None:
        return missing if not served else missing._replace(permanent=False)
    if _LOST.search(said):
        return Diagnosis(
            "device", f"{device} is listed, but was lost while it was used. Look for a reset in dmesg.", permanent=False
        )
    for pattern, advice in _MODEL:
        if re.search(pattern, said, re.IGNORECASE):
            return Diagnosis("model", advice, permanent=True)
    if found := _PROPERTY.search(said):
        return Diagnosis(
            "other",
            f"properties name {found[1]}, which {device} does not have. Remove it or correct its name.",
            permanent=True,
        )
    return Diagnosis("other", f"The engine could not be started on {device}.", permanent=False)


def _memory_advice(device: str) -> str:
    where = "device or shared memory" if device.startswith("GPU") else "memory"
    return (
        f"{device} has not enough {where} for the weights and the cache. "
        "Lower cache_size or num_kv_blocks, or end what else uses it."
    )


def engine_words(text: str, limit: int = 600) -> str:
    """The engine's message without the places in its own sources, in one line of at most `limit` characters."""
    lines = (re.sub(r"( failed)? at (/|src/)\S+:\d+:?$", "", line.strip()) for line in text.splitlines())
    kept = " ".join(
        line
        for line in lines
        if line and not re.match(r"(\w+: )?(Exception from|\[\d\d:\d\d:\d\d\]) ?\S*:\d+:?$", line)
    )
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


# --- devices ---------------------------------------------------------------------------------------------------------


def _wanted(device: str) -> list[str]:
    """The devices that must be there: of `HETERO:GPU,CPU` both, of AUTO none by itself."""
    whole, _, list_ = device.partition(":")
    names = [whole] if not list_ else [name.strip() for name in list_.split(",")]
    return [
        re.sub(r"\(.*\)$", "", name)
        for name in names
        if name and name not in ("AUTO", "MULTI", "HETERO", "BATCH") and not name.startswith("-")
    ]


def _is_listed(name: str, listed: tuple[str, ...]) -> bool:
    """GPU, GPU.0 and a list of GPU.0, GPU.1 name each other."""
    return name in listed or f"{name}.0" in listed or (name.endswith(".0") and name[:-2] in listed)


def _missing_device(device: str, host: Host) -> Diagnosis | None:
    try:
        listed = host.listed()
    except Exception as error:
        return Diagnosis("device", str(unlisted(str(error))), permanent=True)
    defect = absent_device(device, listed, gpu_parts(host))
    return Diagnosis("device", str(defect), permanent=True) if defect else None


def unlisted(said: str) -> Defect:
    """OpenVINO could not even list its devices, and `said` why."""
    return Defect(f"OpenVINO cannot list its devices ({engine_words(said)}).", "Install openvino again.")


def absent_device(device: str, listed: tuple[str, ...], parts: Iterable[Part]) -> Defect | None:
    """Which device of those that `device` names OpenVINO does not list; None: it lists them all. `parts`: the GPU's."""
    absent = next((name for name in _wanted(device) if not _is_listed(name, listed)), None)
    if absent is None:
        return None
    have = f"OpenVINO lists: {', '.join(listed) or 'none'}."
    if is_gpu(absent) and not any(map(is_gpu, listed)):
        missing = next((part.defect for part in parts if part.defect), _NOTHING_FOUND)
        return Defect(f"The GPU cannot be used: {missing.seen} {have}", missing.remedy)
    return Defect(f"There is no device {absent}. {have}", _OTHER_DRIVERS.get(absent.partition(".")[0], _AS_LISTED))


def is_gpu(device: str) -> bool:
    """One of those that `device` names is a GPU."""
    return any(name.partition(".")[0] == "GPU" for name in _wanted(device))


_AS_LISTED = "Give one of these, as it is written there."
_OTHER_DRIVERS = {"NPU": "An NPU needs Intel's linux-npu-driver and /dev/accel/accel0."}
_NOTHING_FOUND = Defect(
    "loader, driver and render node are there, but the driver finds no Intel GPU that OpenVINO supports.",
    "Install a newer intel-opencl-icd and see what clinfo (apt-get install clinfo) lists.",
)


class Part(NamedTuple):
    """Of the way from OpenVINO to a GPU."""

    name: str
    defect: Defect | None  #: None: it is there


def gpu_parts(host: Host = HOST) -> Iterator[Part]:
    """Each part of the way to a GPU, nearest first, with what is wrong with it. Looks at one when it is asked for."""
    yield Part("loader", _loader(host))
    yield Part("driver", _driver(host))
    yield Part("render node", _node(host))
    if nodes := host.render_nodes():
        yield Part("permission", _rights(host, nodes))


def _loader(host: Host) -> Defect | None:
    words = host.load("libOpenCL.so.1")
    return (
        Defect(
            f"the OpenCL loader is missing ({words}).",
            "Install it: apt-get install ocl-icd-libopencl1 intel-opencl-icd.",
        )
        if words
        else None
    )


def _driver(host: Host) -> Defect | None:
    drivers = host.drivers()
    if not drivers:
        return Defect(
            "no OpenCL driver is installed (no *.icd in /etc/OpenCL/vendors).",
            "Install Intel's: apt-get install intel-opencl-icd.",
        )
    refusals = [words for name in drivers if (words := host.load(name))]
    if len(refusals) < len(drivers):
        return None
    return Defect(
        f"no OpenCL driver can be loaded ({'; '.join(refusals)}).",
        "Install Intel's again: apt-get install --reinstall intel-opencl-icd.",
    )


def _node(host: Host) -> Defect | None:
    if host.render_nodes():
        return None
    return Defect(
        "there is no render node (/dev/dri/renderD*).",
        "In a container: start it with --device /dev/dri. "
        "On the host: the kernel driver (i915 or xe) has not found the card; look into dmesg and lspci.",
    )


def _rights(host: Host, nodes: list[Path]) -> Defect | None:
    if any(host.usable(node) for node in nodes):
        return None
    group = host.group_of(nodes[0])
    return Defect(
        f"{host.user()} may not open {nodes[0]}, which belongs to the group {group}.",
        f"usermod -aG {group} USER and log in again; in a container: --group-add with that group's number.",
    )
