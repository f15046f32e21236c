"""What the graph of a detokenizer says about itself: does it do more than join the bytes of its tokens?"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

#: Joins the tokens of a row. What stands before sees one token at a time, what stands after the whole text.
_JOINS: Final = {"FuzeRagged", "CharsToBytes"}
_BEFORE: Final = {"VocabDecoder", "ByteFallback", "RegexNormalization"}
_AFTER: Final = {"UTF8Validate", "StringTensorPack", "Result"}
_PLAIN: Final = {"Parameter", "Const", "Convert", "Slice"}
#: The only change to the whole text that does not depend on where it is cut: openvino_tokenizers' strip_forward_space.
_STRIPS: Final = b"^ "
#: A graph has a few dozen layers; a file of this size is none.
_BYTES_MOST: Final = 1 << 20


def joins_tokens(models_path: Path) -> bool:
    """A text is the bytes of its tokens one after the other, perhaps without a space at the beginning, read as UTF-8.

    For an IR folder its openvino_detokenizer.xml says so: every kind of layer has to be known. What the engine makes
    of a GGUF file is always VocabDecoder and FuzeRagged (its gguf_tokenizer.cpp, 2026.4.1).
    """
    if models_path.is_file():
        return True
    with contextlib.suppress(OSError, ValueError, KeyError, ElementTree.ParseError, AssertionError):
        return _Graph(models_path / "openvino_detokenizer.xml").joins()
    return False


class _Graph:
    def __init__(self, xml: Path) -> None:
        if xml.stat().st_size > _BYTES_MOST:
            raise ValueError(xml)
        self._weights = xml.with_suffix(".bin")
        root = ElementTree.parse(xml).getroot()
        self._layers = list(root.iter("layer"))
        self._by_id = {layer.attrib["id"]: layer for layer in self._layers}
        self._sources = {
            (edge.attrib["to-layer"], edge.attrib["to-port"]): edge.attrib["from-layer"] for edge in root.iter("edge")
        }

    def joins(self) -> bool:
        """Layers are stored in the order in which they run."""
        kinds = [layer.attrib["type"] for layer in self._layers]
        joining = [at for at, kind in enumerate(kinds) if kind in _JOINS]
        if len(joining) != 1 or "VocabDecoder" not in kinds[: joining[0]]:
            return False
        before, after = self._layers[: joining[0]], self._layers[joining[0] + 1 :]
        return all(layer.attrib["type"] in _BEFORE | _PLAIN for layer in before) and all(
            layer.attrib["type"] in _AFTER | _PLAIN or self._strips(layer) for layer in after
        )

    def _strips(self, layer: ElementTree.Element) -> bool:
        if layer.attrib["type"] != "RegexNormalization":
            return False
        inputs = len(layer.findall("input/port"))
        pattern, replacement = (self._constant(layer, port) for port in (inputs - 2, inputs - 1))
        return (pattern, replacement) == (_STRIPS, b"")

    def _constant(self, layer: ElementTree.Element, port: int) -> bytes:
        data = self._by_id[self._sources[layer.attrib["id"], str(port)]].find("data")
        assert data is not None
        with self._weights.open("rb") as weights:
            weights.seek(int(data.attrib["offset"]))
            return weights.read(int(data.attrib["shape"]))  # an empty one takes a byte in the file
