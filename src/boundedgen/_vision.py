"""What is known of a model that sees: how many tokens its images take, how they are placed in the text, and what the
text must not hold.

Measured with openvino-genai 2026.4.1 (docs/engine-facts.md, "Images"). The engine puts an image where its tag
`<ov_genai_image_0>`, `<ov_genai_image_1>`, … stands, without one before everything; a family's own tags mean the same.
Of a family that is not known here the tokens of an image are learned from the engine, by its size.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

from attrs import define, field, frozen

from boundedgen._errors import InvalidRequest

TOLD: Final = 20  #: findings that are kept
LEARNED: Final = 4096  #: sizes of images that are remembered
_TAG = re.compile(r"<ov_genai_(?:image|video)_[^>]*>")
_ENGINES: Final = ("<ov_genai_image_", "<ov_genai_video_")
#: Of a family that is not known: whatever special token has to do with what is seen.
_SEEN = re.compile(r"image|img|video|vision|slice|patch|audio", re.IGNORECASE)

Size = tuple[int, int]  #: height and width, in pixels


def tag(number: int) -> str:
    """Where the engine is to put the image of this number, from 0."""
    return f"<ov_genai_image_{number}>"


@frozen
class Family:
    """How a model reads its images."""

    name: str
    native: str  #: its own tag
    stand_in: str  #: what the engine puts in place of a tag, with one image token
    reserved: tuple[str, ...]  #: strings that are part of an image to it, wherever they come from
    tokens: Callable[[Size], int]  #: image tokens of a size; 0: it would be scaled to nothing


def smart_resize(size: Size, factor: int, least: int, most: int) -> Size:
    """As the engine scales for Qwen2-VL: to multiples of `factor`, half up, between `least` and `most` pixels."""
    height, width = (math.floor(side / factor + 0.5) * factor for side in size)
    area = size[0] * size[1]
    if height * width > most:
        shrink = math.sqrt(area / most)
        height, width = (math.floor(side / shrink / factor) * factor for side in size)
    elif height * width < least:
        grow = math.sqrt(least / area)
        height, width = (math.ceil(side * grow / factor) * factor for side in size)
    return height, width


def _qwen(config: Mapping[str, Any], processor: Mapping[str, Any]) -> Family:
    factor = processor["patch_size"] * processor["merge_size"]
    least, most = processor["min_pixels"], processor["max_pixels"]

    def tokens(size: Size) -> int:
        height, width = smart_resize(size, factor, least, most)
        return int(height // factor) * int(width // factor)

    native = "<|vision_start|><|image_pad|><|vision_end|>"
    reserved = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
    return Family(str(config["model_type"]), native, native, reserved, tokens)


def _llava(config: Mapping[str, Any], processor: Mapping[str, Any]) -> Family:
    crop, patch = processor["crop_size"], config["vision_config"]["patch_size"]
    whole = config["vision_feature_select_strategy"] == "full"
    count: int = (crop["height"] // patch) * (crop["width"] // patch) + whole
    return Family("llava", "<image>", "<image>\n", ("<image>",), lambda _: count)


_FAMILIES: Final[Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Family]]] = {
    "qwen2_vl": _qwen,
    "qwen2_5_vl": _qwen,
    "llava": _llava,
}


def sees(models_path: Path) -> bool:
    """It is a model that takes images, by its files."""
    return (models_path / "openvino_vision_embeddings_model.xml").is_file()


def vision_of(models_path: Path) -> Vision | None:
    """What the folder of a model tells; None: it takes no images. Raises nothing."""
    if not sees(models_path):
        return None
    config, processor = (_read(models_path / name) for name in ("config.json", "preprocessor_config.json"))
    known = _FAMILIES.get(str(config.get("model_type")))
    try:
        family = None if known is None else known(config, processor)
        if family is not None and family.tokens((1000, 1000)) < 1:
            family = None
    except (KeyError, TypeError, ValueError, ArithmeticError):
        family = None  # of another make than those that are known
    return Vision(family, () if family else tuple(_special(models_path)))


def vision_in(host: object) -> Vision | None:
    """What an engine's host knows of it; one of a caller's own may know nothing."""
    found = getattr(host, "vision", None)
    return found if isinstance(found, Vision) else None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _special(models_path: Path) -> list[str]:
    """Its special tokens that have to do with images."""
    added = _read(models_path / "tokenizer_config.json").get("added_tokens_decoder")
    rows = added.values() if isinstance(added, dict) else ()
    names = [str(row.get("content", "")) for row in rows if isinstance(row, dict)]
    known = ["<image>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
    return sorted({name for name in names if _SEEN.search(name)} | set(known))


@final
@define(eq=False)
class Vision:
    """Of one model. Used by callers' threads and by the driver's; each change is one assignment."""

    family: Family | None  #: None: not known; what its images take is learned
    special: tuple[str, ...] = ()  #: for one that is not known: what the text must not hold
    findings: tuple[str, ...] = ()  #: where the engine counted otherwise
    _learned: dict[Size, int] = field(factory=dict)
    _more: int = 0  #: tokens an image, beyond what the family's rule says
    _more_text: int = 0  #: tokens a prompt

    # --- text ----------------------------------------------------------------------------------------------------

    def placed(self, text: str, images: int) -> str:
        """A caller's own text, with a tag for each image: at the beginning unless they stand in it, in their order."""
        if not images or _TAG.search(text):
            return text
        native = self.family.native if self.family else ""
        if native and text.count(native) == images:
            head, *rest = text.split(native)
            return head + "".join(tag(at) + part for at, part in enumerate(rest))
        return "".join(map(tag, range(images))) + text

    def check(self, text: str, images: int) -> None:
        """The text as the engine gets it. InvalidRequest where it would read other images in it than there are."""
        found = _TAG.findall(text)
        if found != [tag(at) for at in range(images)]:
            raise InvalidRequest(
                f"prompt holds {len(found)} tags like {tag(0)}, and there are {images} images: each must stand there "
                f"once, from 0 on and in order (or none of them). Take {_ENGINES[0]!r} out of what users write"
            )
        bare = _TAG.sub("", text)
        reserved = (*_ENGINES, *(self.family.reserved if self.family else self.special))
        for word in reserved:
            if word in bare:
                raise InvalidRequest(
                    f"prompt holds {word!r}, which this model reads as part of an image; take it out, or write it "
                    "another way (a space after its first character)"
                )

    # --- tokens --------------------------------------------------------------------------------------------------

    def text_to_count(self, text: str) -> str:
        """What is to be encoded to count the tokens of a prompt, images aside."""
        return _TAG.sub(self.family.stand_in if self.family else "", text)

    def tokens(self, text_tokens: int, sizes: Sequence[Size]) -> int | None:
        """Of the whole prompt, where encoding `text_to_count` gave `text_tokens`. None: not known yet."""
        total = text_tokens + self._more_text
        for size in sizes:
            each = self._each(size)
            if each is None:
                return None
            total += each
        return total

    def _each(self, size: Size) -> int | None:
        """Tokens of an image beyond those that `text_to_count` has of it."""
        if self.family is None:
            return self._learned.get(size)
        tokens = self.family.tokens(size)
        if tokens < 1:
            raise InvalidRequest(
                f"images: one of {size[0]} x {size[1]} pixels would be scaled to nothing by this model; crop it"
            )
        return tokens - 1 + self._more

    def counted(self, text_tokens: int, sizes: Sequence[Size], tokens: int) -> None:
        """The engine counted `tokens`. From now on at least as many are expected."""
        expected = self.tokens(text_tokens, sizes)
        if expected is None:
            self._learn(text_tokens, sizes, tokens)
        elif tokens != expected:
            self._find(expected, sizes, tokens)
            if tokens > expected:
                self._expect_more(tokens - expected, sizes)

    def _learn(self, text_tokens: int, sizes: Sequence[Size], tokens: int) -> None:
        """Of images of one size; of several it is not known which took what."""
        if len(set(sizes)) == 1 and len(self._learned) < LEARNED:
            left = tokens - text_tokens - self._more_text
            self._learned[sizes[0]] = max(0, -(-left // len(sizes)))

    def _expect_more(self, lacking: int, sizes: Sequence[Size]) -> None:
        if not sizes:
            self._more_text += lacking
        elif self.family is not None:
            self._more += -(-lacking // len(sizes))
        else:
            each = -(-lacking // len(sizes))
            self._learned.update({size: self._learned[size] + each for size in set(sizes)})

    def _find(self, expected: int, sizes: Sequence[Size], tokens: int) -> None:
        name = self.family.name if self.family else "a family that is not known"
        shown = ", ".join(f"{height} x {width}" for height, width in sizes[:4]) or "none"
        found = f"the engine counted {tokens} prompt tokens where {expected} were expected ({name}; images: {shown})"
        if len(self.findings) < TOLD and found not in self.findings:
            self.findings = (*self.findings, found)
