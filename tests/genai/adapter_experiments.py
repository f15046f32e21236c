"""Experiments with LoRA adapters on the raw engine; see `genai.raw`. Adapters are (path, alpha) pairs."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov  # type: ignore[import-untyped,unused-ignore]
import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]
from adapter_files import tensors_of
from genai.raw import F32, add, config, finish, pipeline, unread

PROMPTS = ([1, 2, 3, 4], [5, 9, 20, 33, 70, 8], list(range(10, 45)))
SCHEDULER: Mapping[str, Any] = {"num_kv_blocks": 64, "enable_prefix_caching": False}
Pairs = Sequence[Sequence[Any]]  # path, alpha


def adapter_config(adapters: Pairs, mode: str = "MODE_STATIC") -> Any:
    made = genai.AdapterConfig(getattr(genai.AdapterConfig.Mode, mode))
    for path, alpha in adapters:
        made.add(genai.Adapter(str(path)), alpha)
    return made


def opened(model: str, adapters: Pairs, mode: str = "MODE_STATIC", **more: Any) -> Any:
    properties: dict[str, Any] = {**F32, **more}
    if adapters:
        properties["adapters"] = adapter_config(adapters, mode)
    return pipeline(model, properties=properties, **SCHEDULER)


def tokens(model: str, adapters: Pairs = (), mode: str = "MODE_STATIC", **more: Any) -> list[list[int]]:
    """Twelve greedy tokens of each prompt. `more`: of the configuration of each request."""
    pipe = opened(model, adapters, mode, **({"prompt_lookup": True} if "max_ngram_size" in more else {}))
    handles = [add(pipe, n, prompt, 12, **more) for n, prompt in enumerate(PROMPTS, 1)]
    return finish(pipe, *handles)


def first_logprob(model: str, adapters: Pairs = (), mode: str = "MODE_STATIC") -> float:
    pipe = opened(model, adapters, mode)
    handle = add(pipe, 1, PROMPTS[0], 1, logprobs=1)
    pipe.step()
    (output,) = handle.read().values()
    return float(output.generated_log_probs[0])


def of_a_request(model: str, path: str) -> list[list[int]]:
    """With adapters in its configuration, of a pipeline that has none."""
    pipe = opened(model, ())
    return finish(pipe, add(pipe, 1, PROMPTS[0], 12, adapters=adapter_config([(path, 1.0)])))


def text_tokens(model: str, adapters: Pairs = ()) -> list[int]:
    """Of a text prompt, without images: vision models take no token ids."""
    pipe = opened(model, adapters)
    handle = pipe.add_request(1, "hello there", config(12))
    found: list[int] = []
    while pipe.has_non_finished_requests():
        pipe.step()
        found += unread(handle)
    return found


# --- models that are changed by hand ---------------------------------------------------------------------------------


def merged(model: str, adapters: Pairs, folder: str) -> str:
    """The model with W + alpha * B A in place of W, in f32."""
    changes = [(tensors_of(path), alpha) for path, alpha in adapters]

    def change(name: str, weights: np.ndarray) -> Any:
        for tensors, alpha in changes:
            for key, (_, a) in tensors.items():
                module = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                if f"__module.{module}/" in name:
                    b = tensors[key.replace("lora_A", "lora_B")][1]
                    weights = weights + np.float32(alpha) * (b @ a)
        return ov.opset13.constant(weights.astype(np.float32))

    return _rewritten(model, folder, change)


def quantised(model: str, folder: str) -> str:
    """The model with weights of 8 bits and a scale a row, as compression leaves them."""

    def change(name: str, weights: np.ndarray) -> Any:
        scale = np.abs(weights).max(1, keepdims=True) / 127
        whole = ov.opset13.constant(np.round(weights / scale).astype(np.int8))
        return ov.opset13.multiply(ov.opset13.convert(whole, "f32"), ov.opset13.constant(scale.astype(np.float32)))

    return _rewritten(model, folder, change)


def _rewritten(model: str, folder: str, change: Any) -> str:
    shutil.copytree(model, folder, dirs_exist_ok=True)
    graph = ov.Core().read_model(str(Path(model) / "openvino_model.xml"))
    for node in graph.get_ordered_ops():
        weights = node.input_value(1).get_node() if node.get_type_name() == "MatMul" else None
        if weights is not None and weights.get_type_name() == "Constant":
            node.input(1).replace_source_output(
                change(node.get_friendly_name(), np.array(weights.get_data())).output(0)
            )
    ov.save_model(graph, str(Path(folder) / "openvino_model.xml"), compress_to_fp16=False)
    return folder
