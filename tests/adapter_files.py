"""LoRA files for tests: the ones of tests/models/lora, and made ones that are wrong in one way each."""

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

MODELS = Path(__file__).resolve().parent / "models"
PLAIN = MODELS / "plain"
LORA_A, LORA_B = (str(MODELS / "lora" / f"lora_{which}.safetensors") for which in "ab")
PREFIX = "base_model.model."
Q = "model.layers.0.self_attn.q_proj"
A, B = f"{PREFIX}{Q}.lora_A.weight", f"{PREFIX}{Q}.lora_B.weight"
_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F64": np.float64, "I8": np.int8}
Tensors = dict[str, tuple[str, np.ndarray]]


def tensors_of(path: str = LORA_A) -> Tensors:
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8 : 8 + length])
    found = {}
    for name, about in head.items():
        begin, end = (8 + length + at for at in about["data_offsets"])
        array = np.frombuffer(data[begin:end], dtype=_TYPES[about["dtype"]]).reshape(about["shape"])
        found[name] = (about["dtype"], array)
    return found


def packed(tensors: Mapping[str, tuple[str, np.ndarray]], metadata: Mapping[str, str] | None = None) -> bytes:
    head: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, (dtype, array) in tensors.items():
        begin, end = end, end + array.nbytes
        head[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
    return with_head(json.dumps(head).encode()) + b"".join(array.tobytes() for _, array in tensors.values())


def with_head(head: bytes) -> bytes:
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head


def random_pair(module: str, outputs: int, inputs: int, rank: int = 4, *, seed: int = 0, scale: float = 0.3) -> Tensors:
    random = np.random.default_rng(seed)
    name = f"{PREFIX}{module}"
    return {
        f"{name}.lora_A.weight": ("F32", random.normal(0, scale, (rank, inputs)).astype(np.float32)),
        f"{name}.lora_B.weight": ("F32", random.normal(0, scale, (outputs, rank)).astype(np.float32)),
    }


def f32(*shape: int, value: float = 1.0) -> tuple[str, np.ndarray]:
    return "F32", np.full(shape, value, np.float32)


def _without(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(name)


def _with(**tensors: tuple[str, np.ndarray]) -> Callable[[Tensors], object]:
    """`A` and `B` stand for the two tensors of one layer, `NAME_suffix` for one beside them."""
    names = {"A": A, "B": B}
    return lambda given: given.update({names.get(name, name): tensor for name, tensor in tensors.items()})


def _renamed(old: str, new: str) -> Callable[[Tensors], object]:
    def rename(tensors: Tensors) -> None:
        for name in list(tensors):
            tensors[name.replace(old, new)] = tensors.pop(name)

    return rename


def _added(name: str, tensor: tuple[str, np.ndarray]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: tensor})


def _zeros(tensors: Tensors) -> None:
    for name in tensors:
        if "lora_B" in name:
            tensors[name] = ("F32", tensors[name][1] * 0)


#: What is wrong with a file -> how to make it so, and what is said about it.
WRONG: Mapping[str, tuple[Callable[[Tensors], object], str]] = {
    "half a pair": (_without(B), "has lora_A but no lora_B for"),
    "the other half": (_without(A), "has lora_B but no lora_A for"),
    "two ranks": (_with(B=f32(64, 3)), "rank 4 and lora_B with rank 3"),
    "rank 0": (_with(A=f32(0, 64), B=f32(64, 0)), "rank 0 and lora_B with rank 0"),
    "other inputs": (_with(A=f32(4, 63)), "lora_A of .* of 4 x 63; this model needs 4 x 64"),
    "other outputs": (_with(B=f32(63, 4)), "lora_B of .* of 63 x 4; this model needs 64 x 4"),
    "one row for all": (_with(B=f32(1, 4)), "lora_B of .* of 1 x 4; this model needs 64 x 4"),
    "two dtypes": (_with(A=("F16", np.ones((4, 64), np.float16))), "in F16 and lora_B in F32"),
    "doubles": (_with(A=("F64", np.ones((4, 64)))), "lora_A of .* in F64; save it in F32, F16 or BF16"),
    "four dimensions": (_with(A=f32(4, 64, 1, 1)), "with 4 dimensions instead of 2"),
    "not a number": (_with(A=f32(4, 64, value=np.nan)), "NaN or infinite numbers in lora_A"),
    "infinite": (_with(B=f32(64, 4, value=np.inf)), "NaN or infinite numbers in lora_B"),
    "an unknown layer": (_renamed("layers.1.", "layers.7."), "layers.7.*which this model does not have; did you mean"),
    "part of a name": (_renamed("model.layers.0.self_attn.q", "q"), "is for 'q_proj', which this model does not have"),
    "underscores": (_renamed("layers.0.self_attn.q_proj", "layers_0_self_attn_q_proj"), "does not have"),
    "no prefix": (_renamed(PREFIX, ""), "names must begin with 'base_model.model.'"),
    "an embedding": (_renamed("layers.0.self_attn.q_proj", "embed_tokens"), "which this model does not have"),
    "alpha": (_added(f"{PREFIX}{Q}.alpha", f32(1, value=8)), "multiply the adapter's weight by alpha / rank"),
    "dora": (_added(f"{PREFIX}{Q}.lora_magnitude_vector", f32(64)), "part of a DoRA adapter"),
    "a bias": (_added(f"{PREFIX}{Q}.bias", f32(64)), "a bias, which the engine does not apply"),
    "a whole layer": (_added(f"{PREFIX}lm_head.weight", f32(259, 64)), "a whole layer .modules_to_save."),
    "an adapter's name": (_renamed(".weight", ".default.weight"), "save it with PEFT's save_pretrained"),
    "something else": (_added("optimizer.state", f32(1)), "neither a lora_A.weight nor a lora_B.weight"),
    "no effect": (_zeros, "changes nothing"),
    "no tensors": (lambda tensors: tensors.clear(), "holds no tensors"),
}


def wrong(what: str, folder: Path) -> str:
    """A file that is wrong in that way."""
    tensors = tensors_of()
    WRONG[what][0](tensors)
    path = folder / f"{what.replace(' ', '_')}.safetensors"
    path.write_bytes(packed(tensors))
    return str(path)
