"""The layers of a model that an adapter can change, from the names in its openvino_model.xml.

The engine puts an adapter's tensors on each MatMul whose name contains the tensors' name (2026.4.1, openvino.genai
src/cpp/src/lora/adapter.cpp). An export from PyTorch names one by its module: `__module.MODULE/aten::linear/MatMul`.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

from attrs import frozen

from boundedgen._engine._model_files import IR

_MODULE: Final = "__module."


@final
@frozen
class Layer:
    """A linear layer: y = x Wᵀ with W of `outputs` x `inputs`."""

    inputs: int
    outputs: int


@final
@frozen
class Layers:
    by_module: Mapping[str, Layer]  #: "model.layers.0.self_attn.q_proj" -> its sizes
    names: tuple[str, ...]  #: of every MatMul, as the engine compares them

    def met_by(self, module: str) -> int:
        """On how many of them the engine would put tensors of that name."""
        return sum(module in name or module in name.replace(".", "_") for name in self.names)


def layers_of(models_path: Path) -> Layers:
    """Raises OSError and SyntaxError (ParseError) if the model's file cannot be read."""
    names: list[str] = []
    found: dict[str, Layer] = {}
    for _, element in ET.iterparse(_xml(models_path)):
        if element.tag != "layer":
            continue
        if element.get("type") == "MatMul":
            name = element.get("name", "")
            names.append(name)
            module, layer = name.removeprefix(_MODULE).partition("/")[0], _layer(element)
            if layer is not None and name.startswith(_MODULE):
                found[module] = layer
        element.clear()
    return Layers(found, tuple(names))


def _xml(models_path: Path) -> Path:
    return next((path for name in IR if (path := models_path / name).is_file()), models_path / IR[0])


def _layer(matmul: ET.Element) -> Layer | None:
    """None: its weights are no matrix of known size."""
    dimensions = [one.text or "" for one in matmul.findall("./input/port[@id='1']/dim")]
    data = matmul.find("data")
    if len(dimensions) != 2 or not all(one.isdecimal() for one in dimensions) or data is None:
        return None
    first, second = map(int, dimensions)
    transposed = data.get("transpose_b", "").lower() in ("true", "1")
    return Layer(inputs=second, outputs=first) if transposed else Layer(inputs=first, outputs=second)
