"""From a call to a prompt for a model that sees (`_scenery`), or a typed refusal. In callers' threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from boundedgen._arguments import reading
from boundedgen._bounds import Limits
from boundedgen._call import Call
from boundedgen._door import Door, Place
from boundedgen._errors import InvalidRequest, Saturated
from boundedgen._images import read_image, read_images, without_images
from boundedgen._prompt import is_chat
from boundedgen._scenery import Scenery
from boundedgen._vision import Vision, tag
from boundedgen.abc import Image, Tokenizer


@final
class Seeing:
    """Makes them of calls. `vision` None: the model takes no images."""

    def __init__(self, vision: Vision | None, door: Door, limits: Limits) -> None:
        self.vision = vision
        self._door = door
        self._limits = limits

    def split(self, call: Call) -> tuple[object, list[Image]]:
        """The prompt with tags in place of its images, and these. Raises InvalidRequest."""
        if self.vision is None:
            self._refuse_images(call)
            return call.prompt, []
        if not is_chat(call.prompt):
            images = [] if call.images is None else read_images(call.images, self._limits)
            if isinstance(call.prompt, str):
                return self.vision.placed(str.__str__(call.prompt), len(images)), images
            return call.prompt, images
        if call.images is not None:
            raise InvalidRequest(
                "images is for a prompt that is text; in chat messages put each into the content of the message it "
                'belongs to: {"type": "image", "image": array}'
            )
        return self._of_chat(call.prompt)

    def _of_chat(self, prompt: Any) -> tuple[object, list[Image]]:
        images: list[Image] = []
        left = self._limits.image_pixels

        def put(value: object, where: str) -> str:
            nonlocal left
            if len(images) >= self._limits.images_max:
                most = self._limits.images_max
                raise InvalidRequest(f"{where}: more than {most} images (Limits.images_max); leave some out")
            images.append(image := read_image(value, where, self._limits, left))
            left -= image.height * image.width
            return tag(len(images) - 1)

        with reading("prompt"):
            read = getattr(prompt, "get_messages", None)
            return without_images(read() if callable(read) else prompt, put), images

    def _refuse_images(self, call: Call) -> None:
        if call.images is not None:
            raise InvalidRequest("images: this model takes text only; send them to one that sees")

    def scenery(self, text: str, images: Sequence[Image], tokenizer: Tokenizer, *, templated: bool) -> Scenery:
        """`templated`: it went through the chat template, which writes the special tokens by itself."""
        vision = self.vision
        assert vision is not None
        vision.check(text, len(images))
        if templated:
            text = _as_the_engine_reads(text, tokenizer)
        tokens = len(tokenizer.encode(vision.text_to_count(text), add_special_tokens=True))
        if not tokens and not images:
            raise InvalidRequest("prompt is empty; give at least one token")
        made = Scenery(vision, text, tokens, images)
        if images:
            made.room = self._room(sum(len(image.data) for image in images))
        return made

    def _room(self, size: int) -> Place:
        room = self._door.pictures(size)
        if not room.take():
            raise Saturated(
                f"the images of those that wait, and these, are more than {self._limits.image_bytes} bytes "
                "(Limits.image_bytes); try again when some have been shown to the engine",
                retry_after_s=1.0,
            )
        return room


def _as_the_engine_reads(text: str, tokenizer: Tokenizer) -> str:
    """The engine adds special tokens to every text. Where the template has written the first one, it is taken out."""
    begin = getattr(tokenizer, "begin", "")
    if begin and text.startswith(begin):
        bare = text[len(begin) :]
        if tokenizer.encode(bare, add_special_tokens=True) == tokenizer.encode(text, add_special_tokens=False):
            return bare
    return text
