"""Detokenizers of openvino_tokenizers' own layers, in the order in which its converter puts them, as IR folders."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import openvino
from core.detokenizers import JOINING, OTHER, Detokenizer
from openvino import opset12 as opset
from openvino_tokenizers.constants import UTF8ReplaceMode  # type: ignore[import-untyped,unused-ignore]
from openvino_tokenizers.tokenizer_pipeline import (  # type: ignore[import-untyped,unused-ignore]
    ByteFallbackStep,
    CharsToBytesStep,
    FuseStep,
    RegexDecodingStep,
    UTF8ValidateStep,
    VocabDecoderStep,
)

PLAIN = Path(__file__).parent.parent / "models" / "plain"


def _replacing() -> Any:
    return UTF8ValidateStep(mode=UTF8ReplaceMode.REPLACE)


def _sentencepiece() -> list[Any]:
    return [RegexDecodingStep.replace_sp_spaces(), ByteFallbackStep(), FuseStep()]


#: By the name of the family in core.detokenizers that has the same layers.
JOINING_LAYERS: dict[str, Callable[[], list[Any]]] = {
    "byte level, replacing": lambda: [FuseStep(), _replacing()],
    "byte level, ignoring": lambda: [FuseStep(), UTF8ValidateStep(mode=UTF8ReplaceMode.IGNORE)],
    "byte level, not validated": lambda: [FuseStep()],
    "byte level in GPT-2's characters": lambda: [CharsToBytesStep(), _replacing()],
    "SentencePiece with byte fallback": lambda: [
        *_sentencepiece(),
        RegexDecodingStep.strip_forward_space(),
        _replacing(),
    ],
    "SentencePiece that strips nothing": lambda: [*_sentencepiece(), _replacing()],
    "words": lambda: [FuseStep(), RegexDecodingStep.strip_forward_space(), _replacing()],
}
OTHER_LAYERS: dict[str, Callable[[], list[Any]]] = {
    "cleans up": lambda: [FuseStep(), _replacing(), RegexDecodingStep.clean_up_tokenization_spaces()],
    "WordPiece": lambda: [FuseStep(), _replacing(), RegexDecodingStep.replace_continuing_subword_prefix()],
    "strips before what is no space": lambda: [
        *_sentencepiece(),
        RegexDecodingStep.strip_forward_space_before_not_space(),
        _replacing(),
    ],
    "strips the end": lambda: [FuseStep(), _replacing(), RegexDecodingStep(r"\n$", "")],
}


def model_of(name: str, folder: Path) -> Detokenizer:
    """Writes the folder, with the tokenizer of the plain model; returns the same detokenizer in Python."""
    joining = name in JOINING_LAYERS
    simulated = JOINING[name]() if joining else OTHER[name]()
    layers = JOINING_LAYERS[name]() if joining else OTHER_LAYERS[name]()
    for file in ("openvino_tokenizer.xml", "openvino_tokenizer.bin", "config.json"):
        shutil.copy(PLAIN / file, folder)
    _save(simulated.entries, sorted(simulated.skipped), layers, folder / "openvino_detokenizer.xml")
    return simulated


def _save(entries: Sequence[bytes], skipped: Sequence[int], layers: Sequence[Any], xml: Path) -> None:
    ids = opset.parameter([-1, -1], openvino.Type.i64)
    outputs: Any = [opset.convert(ids, "i32").output(0)]
    for layer in [VocabDecoderStep(vocab=list(entries), skip_tokens=list(skipped)), *layers]:
        outputs = layer.get_ov_subgraph(outputs)
    from openvino_tokenizers import _get_opset_factory  # type: ignore[import-untyped,unused-ignore]

    packed = _get_opset_factory("opset15").create("StringTensorPack", outputs).outputs()
    model = openvino.Model(packed, [ids], "detokenizer")
    model.output().tensor.add_names({"string_output"})
    openvino.save_model(model, xml, compress_to_fp16=False)
