"""Whether a LoRA adapter does to a model what its file says. The engine looks at little of it.

Measured on 2026.4.1 (tests/genai/test_adapter_facts.py): names that no layer has are left out, a part of a name changes
every layer that it is in, lora_B of one row is spread over all of them, an empty lora_A ends the process, and alpha,
bias, DoRA and the rest of a file are passed over. So all of it is looked at here, before an engine is started.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from boundedgen._arguments import short, suggestion
from boundedgen._engine._layers import Layer, Layers
from boundedgen._safetensors import Tensor

PREFIX: Final = "base_model.model."  #: of every name, as PEFT saves it; the engine leaves out what has another
_FACTOR: Final = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])\.weight", re.DOTALL)
#: dtype -> numpy's type of a word, the bits without the sign, and those of the exponent: all set in NaN and infinities
_WORDS: Final[Mapping[str, tuple[str, int, int]]] = {
    "F32": ("<u4", 0x7FFF_FFFF, 0x7F80_0000),
    "F16": ("<u2", 0x7FFF, 0x7C00),
    "BF16": ("<u2", 0x7FFF, 0x7F80),
}
#: What else may be in such a file, and why it is refused.
_OTHERS: Final = (
    (".alpha", "a scale of its own, which the engine does not read; multiply the adapter's weight by alpha / rank"),
    ("lora_magnitude_vector", "part of a DoRA adapter, which the engine does not apply; merge it into the model"),
    (".bias", "a bias, which the engine does not apply; merge the adapter into the model"),
    ("lora_embedding", "for an embedding, which the engine does not apply; merge the adapter into the model"),
    (".default.weight", "named after an adapter; save it with PEFT's save_pretrained, which leaves that name out"),
    ("lm_head.weight", "a whole layer (modules_to_save) and no LoRA; merge the adapter into the model"),
    ("embed_tokens.weight", "a whole layer (modules_to_save) and no LoRA; merge the adapter into the model"),
)
_MADE_FOR: Final = "was the adapter trained for another model, or exported with other names?"


class AdapterError(ValueError):
    """What is wrong with an adapter: a clause that follows the name of its file."""


def pairs_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """lora_A and lora_B by module. Raises AdapterError unless all the tensors are whole pairs."""
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        module, part = _factor(name)
        halves.setdefault(module, {})[part] = tensor
    if not halves:
        raise AdapterError("holds no tensors")
    return {module: _pair(module, parts) for module, parts in halves.items()}


def _factor(name: str) -> tuple[str, str]:
    found = _FACTOR.fullmatch(name)
    if found is None:
        why = next((why for mark, why in _OTHERS if mark in name), "neither a lora_A.weight nor a lora_B.weight")
        raise AdapterError(f"holds {short(name)}, which is {why}")
    if not name.startswith(PREFIX):
        raise AdapterError(f"holds {short(name)}, which the engine leaves out: names must begin with {PREFIX!r}")
    return found["module"][len(PREFIX) :], found["part"]


def _pair(module: str, parts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    for part, other in (("A", "B"), ("B", "A")):
        if part not in parts:
            raise AdapterError(f"has lora_{other} but no lora_{part} for {short(module)}; it was not saved completely")
    a, b = parts["A"], parts["B"]
    for part, tensor in (("A", a), ("B", b)):
        if tensor.dtype not in _WORDS:
            raise AdapterError(f"has lora_{part} of {short(module)} in {tensor.dtype}; save it in F32, F16 or BF16")
        if len(tensor.shape) != 2:
            raise AdapterError(f"has lora_{part} of {short(module)} with {len(tensor.shape)} dimensions instead of 2")
    if a.dtype != b.dtype:
        raise AdapterError(f"has lora_A of {short(module)} in {a.dtype} and lora_B in {b.dtype}; save both in one")
    if a.shape[0] != b.shape[1] or not a.shape[0]:
        raise AdapterError(
            f"has lora_A of {short(module)} with rank {a.shape[0]} and lora_B with rank {b.shape[1]}; "
            "both must be the same, and more than 0"
        )
    return a, b


def check_layers(pairs: Mapping[str, tuple[Tensor, Tensor]], layers: Layers) -> None:
    """Each pair changes one layer of the model, and fits it. Raises AdapterError."""
    for module, (a, b) in pairs.items():
        layer = layers.by_module.get(module)
        if layer is None:
            raise AdapterError(_unknown(module, layers))
        if (met := layers.met_by(module)) != 1:
            raise AdapterError(f"is for {short(module)}, and the engine would change {met} layers with that name in it")
        _check_shapes(module, layer, a, b)


def _unknown(module: str, layers: Layers) -> str:
    near = suggestion(module, layers.by_module, {})
    return f"is for {short(module)}, which this model does not have{near}; {_MADE_FOR}"


def _check_shapes(module: str, layer: Layer, a: Tensor, b: Tensor) -> None:
    for part, tensor, needed in (
        ("A", a, (a.shape[0], layer.inputs)),
        ("B", b, (layer.outputs, a.shape[0])),
    ):
        if tensor.shape != needed:
            shape, wanted = (" x ".join(map(str, one)) for one in (tensor.shape, needed))
            raise AdapterError(f"has lora_{part} of {short(module)} of {shape}; this model needs {wanted}; {_MADE_FOR}")


def check_numbers(pairs: Mapping[str, tuple[Tensor, Tensor]], data: Any) -> None:
    """`data`: the bytes of the file. All are finite, and some pair changes something. Raises AdapterError."""
    effect = False
    for module, pair in pairs.items():
        both = [_any(data, tensor, module, part) for tensor, part in zip(pair, "AB", strict=True)]
        effect = effect or all(both)
    if not effect:
        raise AdapterError("changes nothing: in every layer lora_A or lora_B is all zeros; was it trained?")


def _any(data: Any, tensor: Tensor, module: str, part: str) -> bool:
    """Some number in it is not zero."""
    import numpy as np

    kind, number, exponent = _WORDS[tensor.dtype]
    count = (tensor.end - tensor.begin) // np.dtype(kind).itemsize
    words = np.frombuffer(data, dtype=kind, count=count, offset=tensor.begin)
    if bool(np.any((words & exponent) == exponent)):
        raise AdapterError(f"has NaN or infinite numbers in lora_{part} of {short(module)}; it cannot be used")
    return bool(np.any(words & number))
