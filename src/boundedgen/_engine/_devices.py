"""Why an engine did not start, in words for the person who has to mend it: what is missing, what to install or do.

`preflight` looks before any process is started, `diagnose` after the engine's constructor raised. Nothing here imports
openvino before it is needed. All that is looked at on the machine goes through `Host`, so that tests can fake it.
"""

import ctypes
import grp
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from attrs import field, frozen

from boundedgen._engine import _gguf

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

_IR = ("openvino_model.xml", "openvino_language_model.xml")
_CHECKPOINT = ("*.safetensors", "pytorch_model*.bin", "*.pt")


def preflight(models_path: str | os.PathLike[str], device: str) -> Diagnosis | None:
    """What can be known to be wrong before a process is started; None: nothing. Looks at the head of a GGUF at most."""
    path = Path(models_path)
    try:
        text = _device_defect(device) or _named(_path_defect(path))
    except OSError as error:
        text = f"models_path {path} cannot be read: {error.strerror or error}. Give the process the right to read it."
    kind: Kind = "model" if device else "device"
    return Diagnosis(kind, text, permanent=True) if text else None


def _device_defect(device: str) -> str:
    return (
        "" if device else "device is empty. Give the name of an OpenVINO device: CPU, GPU, or GPU.1 for the second one."
    )


def _named(defect: str) -> str:
    return f"models_path {defect}" if defect else ""


def _path_defect(path: Path) -> str:
    if not path.exists():
        return f"{path} does not exist. {_HUB if _like_a_hub_id(path) else _GIVE}"
    if path.is_dir():
        return _folder_defect(path)
    if path.suffix.lower() != ".gguf":
        folder = f" {path.parent}" if path.name in _IR else ""
        return (
            f"{path} is neither a model folder nor a .gguf file. Give the folder{folder} that holds openvino_model.xml."
        )
    defect = _gguf.defect(path)
    return f"{path} is not a whole GGUF file: {defect}." if defect else ""


_GIVE = "Give an OpenVINO model folder or a .gguf file."
_AGAIN = "Copy or export the model again."
_HUB = (
    "It looks like the name of a model on a hub; nothing is downloaded. "
    "Export it to a folder with optimum-cli export openvino -m NAME FOLDER and give that."
)


def _like_a_hub_id(path: Path) -> bool:
    return (
        not path.is_absolute()
        and len(path.parts) == 2
        and not path.parts[0].startswith(".")
        and not path.parent.exists()
    )


def _folder_defect(path: Path) -> str:
    present = [name for name in _IR if (path / name).is_file()]
    if not present:
        return f"{path} holds no OpenVINO model (openvino_model.xml). {_remedy_for_folder(path)}"
    weights = path / present[0].replace(".xml", ".bin")
    if not weights.is_file() or not weights.stat().st_size:
        return f"{path} has {present[0]} but no weights ({weights.name}). {_AGAIN}"
    missing = [name for name in ("openvino_tokenizer.xml", "openvino_detokenizer.xml") if not (path / name).is_file()]
    return f"{path} has no {' and no '.join(missing)}. {_TOKENIZER}" if missing else ""


_TOKENIZER = (
    "Convert the tokenizer beside the model: pip install openvino-tokenizers[transformers], then "
    "convert_tokenizer NAME --with-detokenizer -o FOLDER; or copy both from where the model came from."
)


def _remedy_for_folder(path: Path) -> str:
    if files := sorted(path.glob("*.gguf")):
        return f"For a GGUF model give the file itself: {files[0]}."
    if any(next(path.glob(pattern), None) for pattern in _CHECKPOINT):
        return f"It is a checkpoint: export it with optimum-cli export openvino -m {path} FOLDER, and give that folder."
    if inner := sorted(path.glob("*/openvino_model.xml")):
        return f"There is one in {inner[0].parent}: give that."
    return "Export a model with optimum-cli export openvino -m NAME FOLDER, or give a .gguf file."


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
    (r"could not find a model in the directory", f"There is no model at that path. {_GIVE}"),
    (
        r"incorrect weights in bin file|is_valid_weights_range",
        f"openvino_model.bin is cut short or belongs to another openvino_model.xml. {_AGAIN}",
    ),
    (r"pugi|error parsing element|xml_deserialize", f"openvino_model.xml is cut short or damaged. {_AGAIN}"),
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
    (r"tokenizer", f"The tokenizer cannot be used. {_TOKENIZER}"),
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
    return Diagnosis(kind, f"{text} The engine said: {words}" if words else text, permanent)


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
        return Diagnosis(
            "device",
            f"OpenVINO cannot list its devices ({engine_words(str(error))}). Install openvino again.",
            permanent=True,
        )
    absent = next((name for name in _wanted(device) if not _is_listed(name, listed)), None)
    if absent is None:
        return None
    have = f"OpenVINO lists: {', '.join(listed) or 'none'}."
    if absent.partition(".")[0] != "GPU":
        return Diagnosis("device", f"There is no device {absent}. {have}{_other_driver(absent)}", permanent=True)
    if any(_is_listed(name, ("GPU",)) or name.startswith("GPU.") for name in listed):
        return Diagnosis("device", f"There is no device {absent}. {have}", permanent=True)
    return Diagnosis("device", f"The GPU cannot be used: {_missing_part(host)} {have}", permanent=True)


def _other_driver(name: str) -> str:
    return " An NPU needs Intel's linux-npu-driver and /dev/accel/accel0." if name.startswith("NPU") else ""


def _missing_part(host: Host) -> str:
    """Which part of the way to the GPU is missing, nearest first, and what to do about it."""
    return _loader(host) or _driver(host) or _node(host) or _rights(host) or _nothing_found(host)


def _loader(host: Host) -> str:
    words = host.load("libOpenCL.so.1")
    return (
        f"the OpenCL loader is missing ({words}). Install it: apt-get install ocl-icd-libopencl1 intel-opencl-icd."
        if words
        else ""
    )


def _driver(host: Host) -> str:
    drivers = host.drivers()
    if not drivers:
        return (
            "no OpenCL driver is installed (no *.icd in /etc/OpenCL/vendors). "
            "Install Intel's: apt-get install intel-opencl-icd."
        )
    refusals = [words for name in drivers if (words := host.load(name))]
    if len(refusals) < len(drivers):
        return ""
    return (
        f"no OpenCL driver can be loaded ({'; '.join(refusals)}). "
        "Install Intel's again: apt-get install --reinstall intel-opencl-icd."
    )


def _node(host: Host) -> str:
    if host.render_nodes():
        return ""
    return (
        "there is no render node (/dev/dri/renderD*). In a container: start it with --device /dev/dri. "
        "On the host: the kernel driver (i915 or xe) has not found the card; look into dmesg and lspci."
    )


def _rights(host: Host) -> str:
    nodes = host.render_nodes()
    if any(host.usable(node) for node in nodes):
        return ""
    group = host.group_of(nodes[0])
    return (
        f"{host.user()} may not open {nodes[0]}, which belongs to the group {group}. "
        f"usermod -aG {group} USER and log in again; in a container: --group-add with that group's number."
    )


def _nothing_found(host: Host) -> str:
    return (
        f"loader, driver and render node ({host.render_nodes()[0]}) are there, "
        "but the driver finds no Intel GPU that OpenVINO supports. Install a newer intel-opencl-icd "
        "and see what clinfo (apt-get install clinfo) lists."
    )
