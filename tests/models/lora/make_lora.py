"""Writes lora_a.safetensors and lora_b.safetensors, byte for byte as they are: `python make_lora.py [FOLDER]`.

Random LoRA adapters of rank 4 for the model in ../plain, named as PEFT saves them. Needs numpy alone.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

RANK, SCALE, LAYERS = 4, 0.5, 2
#: outputs and inputs of the linear layers that are adapted
SIZES = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.down_proj": (64, 128),
}
SEEDS = {"lora_a": 1, "lora_b": 2}


def tensors(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    found = {}
    for layer in range(LAYERS):
        for module, (outputs, inputs) in SIZES.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            found[f"{name}.lora_A.weight"] = random.normal(0, SCALE, (RANK, inputs)).astype(np.float32)
            found[f"{name}.lora_B.weight"] = random.normal(0, SCALE, (outputs, RANK)).astype(np.float32)
    return found


def safetensors(arrays: dict[str, np.ndarray]) -> bytes:
    """The length of the head, the head padded to 8 bytes, the numbers."""
    head, end = {}, 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        head[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in arrays.values())


def main(folder: Path) -> None:
    for name, seed in SEEDS.items():
        (folder / f"{name}.safetensors").write_bytes(safetensors(tensors(seed)))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
