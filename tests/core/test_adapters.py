"""LoRA files are looked at before an engine is: what is wrong is refused, with the file, the tensor, the remedy."""

import gc
import json
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_files import LORA_A, LORA_B, PLAIN, WRONG, packed, random_pair, tensors_of, with_head, wrong
from attrs import evolve

from boundedgen import BoundedPipeline, Limits
from boundedgen._adapters import AdapterSet, adapters_of
from boundedgen._engine._layers import Layer, layers_of
from boundedgen._safetensors import HEAD_MOST, SafetensorsError, Tensor, head_length
from boundedgen._safetensors import tensors_of as read
from boundedgen.testing import SimHost, Simulation, VirtualClock

GOOD = Path(LORA_A).read_bytes()


def taken(given: object, limits: Limits | None = None, model: str = str(PLAIN)) -> AdapterSet:
    return adapters_of(given, model, Limits() if limits is None else limits)


def refused(given: object, why: str, kind: type[Exception] = ValueError, limits: Limits | None = None) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(kind, match=why) as caught:
        taken(given, limits)
    assert len(str(caught.value)) < 600
    del caught
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before, "what is refused is not kept"


def written(folder: Path, data: bytes, name: str = "made.safetensors") -> str:
    path = folder / name
    path.write_bytes(data)
    return str(path)


# --- what is taken ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, {}])
def test_without_adapters_there_are_none(given: object) -> None:
    assert taken(given).spec() == []


@pytest.mark.parametrize("given", [LORA_A, Path(LORA_A), {LORA_A: 1}, {Path(LORA_A): np.float32(1)}])
def test_a_path_counts_once_and_a_mapping_gives_weights(given: object) -> None:
    found = taken(given)
    (one,) = found.spec()
    assert (one["name"], one["weight"], one["size"]) == ("lora_a.safetensors", 1.0, len(GOOD))
    assert json.dumps(found.spec())
    found.close()


def test_several_keep_their_order_and_two_of_one_name_are_told_by_their_paths(tmp_path: Path) -> None:
    other = written(tmp_path, Path(LORA_B).read_bytes(), "lora_a.safetensors")
    found = taken({LORA_B: 0.3, LORA_A: -0.5, other: 2})
    assert [(one["name"], one["weight"]) for one in found.spec()] == [
        ("lora_b.safetensors", 0.3),
        (LORA_A, -0.5),
        (other, 2.0),
    ]
    found.close()


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_is_taken(tmp_path: Path, dtype: str) -> None:
    def half(array: np.ndarray) -> np.ndarray:
        return array.astype(np.float16) if dtype == "F16" else (array.view(np.uint32) >> 16).astype(np.uint16)

    tensors = {name: (dtype, half(array)) for name, (_, array) in tensors_of().items()}
    taken(written(tmp_path, packed(tensors, metadata={"format": "pt"}))).close()


def test_the_copy_stays_what_it_was_whatever_becomes_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    found = taken(path)
    Path(path).write_bytes(b"something else")
    os.unlink(path)
    (fd,) = found.filenos()
    assert os.pread(fd, len(GOOD) + 1, 0) == GOOD
    for change in (lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 10), lambda: os.ftruncate(fd, 1 << 20)):
        with pytest.raises(PermissionError):
            change()
    found.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    link = tmp_path / "link.safetensors"
    link.symlink_to(LORA_A)
    assert [one["name"] for one in taken(link).spec()] == ["link.safetensors"]


# --- what is given ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "why", "kind"),
    [
        (5, "adapters must be the path of a .safetensors file, or a mapping", TypeError),
        ([LORA_A], "adapters must be .*not list", TypeError),
        ({5: 1.0}, "it names 5", TypeError),
        (b"a.safetensors", "not bytes", TypeError),
        ("", "give a path that a file can have", ValueError),
        ("a\0.safetensors", "give a path that a file can have", ValueError),
        ("a" * 5000 + ".safetensors", "a str of 5012 characters", ValueError),
        (str(PLAIN), "give the .safetensors file itself", ValueError),
        ("adapter.gguf", "convert it to .safetensors", ValueError),
        ({LORA_A: "1"}, "must be a number, the weight", TypeError),
        ({LORA_A: True}, "must be a number, the weight", TypeError),
        ({LORA_A: float("nan")}, "a weight must be finite", ValueError),
        ({LORA_A: float("-inf")}, "a weight must be finite", ValueError),
        ({LORA_A: 1e7}, "a weight must be finite, at most 1e.06", ValueError),
        ({LORA_A: 0}, "with that weight it changes nothing; leave it out", ValueError),
        ({LORA_A: 1e-60}, "with that weight it changes nothing", ValueError),
        ({LORA_A: 1, os.path.relpath(LORA_A): 1, "/nowhere.safetensors": 1}, "twice; give the sum", ValueError),
        ({f"{n}.safetensors": 1 for n in range(9)}, "names 9 files; at most 8 .Limits.adapters_max", ValueError),
    ],
)
def test_what_is_no_path_with_a_weight_is_refused(given: object, why: str, kind: type[Exception]) -> None:
    refused(given, why, kind)


def test_one_file_under_two_names_is_a_slip_of_the_pen(tmp_path: Path) -> None:
    link = tmp_path / "same.safetensors"
    link.symlink_to(LORA_A)
    refused({LORA_A: 0.5, link: 0.5}, "same.safetensors' twice|a str of .* twice")


def test_a_gguf_model_takes_no_adapter(tmp_path: Path) -> None:
    model = written(tmp_path, b"GGUF", "model.gguf")
    with pytest.raises(ValueError, match="a GGUF model without effect; export the model to a folder"):
        taken(LORA_A, model=model)


def test_a_model_that_is_not_there_is_told_of_when_it_is_loaded(tmp_path: Path) -> None:
    taken(LORA_A, model=str(tmp_path)).close()
    refused(wrong("two ranks", tmp_path), "rank")


def test_an_engine_of_the_users_own_takes_no_adapter() -> None:
    with Simulation() as sim:
        with pytest.raises(ValueError, match="adapters are for a model that boundedgen loads"):
            BoundedPipeline(None, engine=SimHost(VirtualClock()), adapters=LORA_A)
        with pytest.raises(ValueError, match="adapters are for a model that boundedgen loads"):
            sim.pipeline.switch_adapters(LORA_A)


# --- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "cannot be read: No such file"),
        (lambda path: path.mkdir(), "is no plain file"),
        (os.mkfifo, "is no plain file"),
        (lambda path: path.symlink_to("/dev/zero"), "is no plain file"),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
        (lambda path: path.symlink_to(path.parent / "gone"), "cannot be read: No such file"),
        (lambda path: path.write_bytes(b""), "is 0 bytes long, no safetensors file"),
        (lambda path: path.write_bytes(b"x" * 9), "is 9 bytes long"),
    ],
    ids=["missing", "directory", "fifo", "device", "loop", "dangling", "empty", "tiny"],
)
def test_what_is_no_file_with_something_in_it_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], object], why: str
) -> None:
    path = tmp_path / "made.safetensors"
    make(path)
    refused(path, f"adapter {path} {why}")


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "hole.safetensors"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    refused(path, "has 1099511627776 bytes.*Limits.adapter_bytes")
    limits = evolve(Limits(), adapter_bytes=2 * len(GOOD) - 1)
    refused({LORA_A: 1, LORA_B: 1}, "which with the others is more than", limits=limits)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (GOOD[:-1], "bytes; it was not copied or downloaded completely"),
        (GOOD[:-15_000], "was not copied or downloaded completely"),
        (GOOD[:100], "ends within its head; it has 100 of at least"),
        (GOOD + b"\0", "has 1 bytes behind its last tensor"),
        (struct.pack("<Q", 2**62) + b"{}", "has a head of 4611686018427387904 bytes, more than"),
        (struct.pack("<Q", HEAD_MOST + 1) + b" " * (HEAD_MOST + 1), "more than"),
        (with_head(b"nonsense"), "has a head that is no JSON"),
        (with_head(b"[" * 100_000), "has a head that is no JSON"),
        (with_head(b"[]"), "is no JSON object"),
        (with_head(b"\xff\xfe{}"), "has a head that is no JSON"),
        (with_head(b'{"a": ' + b"1" * 5000 + b"}"), "has a head that is no JSON"),
        (with_head(b'{"a": {}, "a": {}}'), "names something twice"),
        (with_head(b'{"a": 1}'), "has no dtype, shape and data_offsets for tensor 'a'"),
        (with_head(b'{"a": {"dtype": "Q4", "shape": [], "data_offsets": [0, 0]}}'), "unknown dtype, 'Q4'"),
        (with_head(b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}}'), "without a shape"),
        (with_head(b'{"a": {"dtype": "F32", "shape": [true], "data_offsets": [0, 0]}}'), "without a shape"),
        (with_head(b'{"a": {"dtype": "F32", "shape": [0], "data_offsets": [0]}}'), "without two data_offsets"),
        (with_head(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 0]}}'), "not as long as its shape says"),
        (with_head(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}'), "not as long as its shape says"),
        (
            with_head(b'{"a": {"dtype": "F32", "shape": [1099511627776], "data_offsets": [0, 4398046511104]}}'),
            "bytes; it was not copied",
        ),
        (
            with_head(
                b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
                b' "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
            )
            + b"\0" * 4,
            "a gap or an overlap before tensor 'b'",
        ),
        (
            with_head(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}') + b"\0" * 8,
            "a gap or an overlap before tensor 'a'",
        ),
        (with_head(b'{"' + b"n" * 600 + b'": {}}'), "whose name is 600 characters long"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    refused(written(tmp_path, data), why)


def test_a_file_that_becomes_shorter_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    path = written(tmp_path, GOOD)
    send = os.sendfile

    def cut(*arguments: Any) -> int:
        os.truncate(path, 50)
        return send(*arguments)

    monkeypatch.setattr("boundedgen._adapters.os.sendfile", cut)
    refused(path, "became shorter while it was read, 50 instead of")


def test_a_file_system_from_which_the_kernel_does_not_copy_is_read(tmp_path: Path, monkeypatch: Any) -> None:
    def no(*arguments: Any) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("boundedgen._adapters.os.sendfile", no)
    found = taken(LORA_A)
    assert os.pread(found.filenos()[0], len(GOOD), 0) == GOOD


# --- what is in it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", WRONG)
def test_an_adapter_that_would_not_do_what_it_says_is_refused(tmp_path: Path, what: str) -> None:
    path = wrong(what, tmp_path)
    refused(path, f"adapter {path} .*{WRONG[what][1]}")


def test_the_wrong_one_of_several_is_named_and_none_is_kept(tmp_path: Path) -> None:
    path = wrong("two ranks", tmp_path)
    refused({LORA_A: 1, path: 1}, f"adapter {path} ")


def test_a_name_that_is_in_that_of_two_layers_is_refused(tmp_path: Path) -> None:
    """The engine would change both, the second one with a matrix that is not its own."""
    model = tmp_path / "model"
    model.mkdir()
    for file in PLAIN.iterdir():
        if file.name != "openvino_model.xml":
            (model / file.name).symlink_to(file)
    text = (PLAIN / "openvino_model.xml").read_text()
    text = text.replace("__module.model.layers.1.self_attn.q_proj/", "__module.vision.model.layers.0.self_attn.q_proj/")
    (model / "openvino_model.xml").write_text(text)
    path = written(tmp_path, packed(random_pair("model.layers.0.self_attn.q_proj", 64, 64)))
    with pytest.raises(ValueError, match="the engine would change 2 layers with that name in it"):
        taken(path, model=str(model))


def test_the_layers_of_a_model_are_read_from_its_graph() -> None:
    layers = layers_of(PLAIN)
    assert len(layers.by_module) == 15
    assert layers.by_module["model.layers.1.mlp.down_proj"] == Layer(inputs=128, outputs=64)
    assert layers.by_module["model.layers.0.self_attn.k_proj"] == Layer(inputs=64, outputs=32)
    assert layers.met_by("q_proj") == 2
    assert layers.met_by("model_layers_0_self_attn_q_proj") == 1


# --- the head alone --------------------------------------------------------------------------------------------------


def test_random_heads_are_read_or_refused_and_nothing_else() -> None:
    """A byte changed, left out or put in: never another exception, and what is read lies in the file."""
    random = np.random.default_rng(11)
    length = head_length(GOOD[:8], len(GOOD))
    head = GOOD[8 : 8 + length]
    taken_in = 0
    for _ in range(2000):
        at = int(random.integers(length))
        change = [head[at + 1 :], bytes([int(random.integers(256))]) + head[at + 1 :], b'"' + head[at:]]
        changed = head[:at] + change[int(random.integers(3))]
        size = len(GOOD) - length + len(changed)
        try:
            found = read(changed, size)
        except SafetensorsError:
            continue
        taken_in += 1
        assert sum(tensor.end - tensor.begin for tensor in found.values()) == size - 8 - len(changed)
    assert taken_in < 2000


def test_a_head_says_where_its_tensors_are() -> None:
    length = head_length(GOOD[:8], len(GOOD))
    first = next(iter(read(GOOD[8 : 8 + length], len(GOOD)).values()))
    assert first == Tensor("F32", (4, 64), 8 + length, 8 + length + 1024)


def test_a_pipeline_with_a_bad_adapter_starts_nothing(tmp_path: Path) -> None:
    threads = threading.active_count()
    with pytest.raises(ValueError, match="no tensors"):
        BoundedPipeline(PLAIN, device="CPU", adapters=wrong("no tensors", tmp_path))
    assert threading.active_count() == threads


def test_adapters_and_a_draft_model_are_refused_together() -> None:
    draft = PLAIN.parent / "draft"
    with pytest.raises(ValueError, match="adapters cannot be used with draft: the engine puts them on the draft model"):
        BoundedPipeline(PLAIN, {"num_kv_blocks": 64}, "CPU", draft=draft, adapters=LORA_A)
