"""The adapters of the boot spec as OpenVINO GenAI takes them, in the engine's process.

MODE_STATIC, which adds two small products to each layer: measured on 2026.4.1, it gives what a model with the adapter
merged by hand gives, to the token, and takes quantised weights. MODE_FUSE merges them itself, but computes in the
processor's own precision (bf16 where it has it) whatever INFERENCE_PRECISION_HINT says, and refuses quantised weights;
the dynamic modes change nothing before a call of `generate`. alpha is a factor of lora_B x lora_A, and all there is:
neither adapter_config.json nor a tensor `alpha` counts.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov  # type: ignore[import-untyped,unused-ignore]
import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]


def adapter_properties(adapters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Properties of the pipeline; empty without adapters."""
    if not adapters:
        return {}
    config = genai.AdapterConfig(genai.AdapterConfig.Mode.MODE_STATIC)
    for one in adapters:
        config.add(genai.Adapter(_tensor(one["fd"], one["size"])), one["weight"])
    return {"adapters": config}


def _tensor(fd: int, size: int) -> Any:
    """What was checked, and nothing else: the parent's sealed copy. It takes no memory of this process's own."""
    os.set_inheritable(fd, False)
    data = np.frombuffer(mmap.mmap(fd, size, access=mmap.ACCESS_COPY), dtype=np.int8)
    _mapped.append(data)
    return ov.Tensor(data, shared_memory=True)


_mapped: list[Any] = []  # for as long as the process lives: the engine keeps the addresses, and not the tensors
