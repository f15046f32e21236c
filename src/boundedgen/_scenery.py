"""A prompt for a model that sees: text with tags where its images belong, the images, and how many tokens they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from boundedgen._door import Place
from boundedgen._vision import Size, Vision
from boundedgen.abc import Image


@final
class Scenery:
    """What goes to the engine in place of token ids. Its length is that of the prompt in tokens, images included.

    The images are kept until it shows its first token: until then another engine may have to be given them.
    """

    def __init__(self, vision: Vision, text: str, text_tokens: int, images: Sequence[Image]) -> None:
        self.text, self.text_tokens = text, text_tokens
        self.images: Sequence[Image] = tuple(images)
        self.sizes: tuple[Size, ...] = tuple((image.height, image.width) for image in images)
        self.room: Place | None = None
        self._vision = vision
        tokens = vision.tokens(text_tokens, self.sizes)
        self.known = tokens is not None
        self._tokens = text_tokens if tokens is None else tokens

    def __len__(self) -> int:
        return self._tokens

    def alone(self, tokens: int) -> None:
        """What its images take is not known: everything is reserved for it."""
        self._tokens = max(self._tokens, tokens)

    def counted(self, tokens: int) -> None:
        """By the engine, which has let go of it."""
        self._vision.counted(self.text_tokens, self.sizes, tokens)

    def forget(self) -> None:
        """It is never given to an engine again."""
        self.images = ()
        if self.room is not None:
            self.room.back()
