"""Images as callers give them, looked at before anything else sees them: as rows of red, green and blue bytes.

What the engine does with others is measured (docs/engine-facts.md, "Images"): one with a side of zero ends its process,
one or four channels are misread, a batch of two is taken for two images.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from boundedgen._arguments import kind_of, reading, short
from boundedgen._bounds import Limits
from boundedgen._errors import InvalidRequest
from boundedgen.abc import Image

ASPECT_MOST: Final = 200  #: times the shorter side; Qwen2-VL refuses more
FORMATS: Final = ("PNG", "JPEG", "WEBP", "BMP", "GIF")  #: that files may have: those whose readers only read
_PLAIN: Final = ("RGB", "L", "1", "CMYK", "YCbCr", "HSV", "LAB")  #: Pillow's modes that become RGB without a choice
_CLEAR: Final = ("RGBA", "LA", "PA", "La", "RGBa")
_HEAD: Final = 1 << 16  #: bytes of a file beside its pixels


def read_images(given: object, limits: Limits, name: str = "images") -> list[Image]:
    """Copies of all of them. InvalidRequest names the argument, what is wrong with it, and what to do."""
    if not isinstance(given, list | tuple):
        raise InvalidRequest(f"{name} must be a list of images, not {kind_of(given)}; put a single one into a list")
    if len(given) > limits.images_max:
        raise InvalidRequest(f"{name} holds {len(given)} images; at most {limits.images_max} (Limits.images_max)")
    found: list[Image] = []
    left = limits.image_pixels
    for at, one in enumerate(given):
        image = read_image(one, f"{name}[{at}]", limits, left)
        left -= image.height * image.width
        found.append(image)
    return found


def read_image(given: Any, name: str, limits: Limits, left: int) -> Image:
    """One, of at most `left` pixels."""
    pillow = sys.modules.get("PIL.Image")
    with reading(name):
        if pillow is not None and isinstance(given, pillow.Image):
            return _of_pillow(given, name, limits, left)
        if isinstance(given, bytes | bytearray | memoryview):
            return _of_file(bytes(given), name, limits, left)
        if isinstance(given, str | os.PathLike):
            return _of_file(_content(given, name, limits), name, limits, left)
        return _of_array(given, name, limits, left)


# --- arrays ------------------------------------------------------------------------------------------------------


def _of_array(given: Any, name: str, limits: Limits, left: int) -> Image:
    import numpy as np

    array = given.data if type(given).__name__ == "Tensor" else given
    if not isinstance(array, np.ndarray):
        raise InvalidRequest(
            f"{name} must be a uint8 array of height x width x 3, an openvino.Tensor, a PIL image, a path or the bytes "
            f"of a file, not {kind_of(given)}"
        )
    array = np.asarray(array)  # of no other class
    shape = list(array.shape)
    if array.dtype != np.uint8:
        raise InvalidRequest(f"{name} holds {array.dtype}; give uint8 from 0 to 255")
    if array.ndim == 4:
        raise InvalidRequest(f"{name} has the shape {shape}: a batch; give each image by itself (array[0])")
    if array.ndim != 3:
        raise InvalidRequest(f"{name} has the shape {shape[:6]}; it must be height x width x 3")
    if shape[2] != 3:
        hint = "; with channels first, transpose it" if shape[0] == 3 else "; convert it to RGB"
        raise InvalidRequest(f"{name} has {shape[2]} channels (shape {shape}); it must be height x width x 3{hint}")
    _check(shape[0], shape[1], name, limits, left)
    return Image(shape[0], shape[1], array.tobytes())


def _check(height: int, width: int, name: str, limits: Limits, left: int) -> None:
    if not height or not width:
        raise InvalidRequest(f"{name} has a side of zero ({height} x {width}); it would end the engine: leave it out")
    if max(height, width) > ASPECT_MOST * min(height, width):
        raise InvalidRequest(
            f"{name} is {height} x {width}: one side is more than {ASPECT_MOST} times the other; crop or cut it"
        )
    if height * width > left:
        used = "" if left == limits.image_pixels else f", of which {limits.image_pixels - left} are taken"
        raise InvalidRequest(
            f"{name} has {height * width} pixels ({height} x {width}); all images of a request may have "
            f"{limits.image_pixels} (Limits.image_pixels){used}: scale it down"
        )


# --- files -------------------------------------------------------------------------------------------------------


def _content(given: str | os.PathLike[str], name: str, limits: Limits) -> bytes:
    if isinstance(given, str) and given[:5].lower() == "data:":
        return data_url(given, name, limits)
    if isinstance(given, str) and "://" in given:
        raise InvalidRequest(f"{name} is a URL, and nothing is fetched; give the image itself, or a data: URL")
    try:
        path = Path(given)
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise InvalidRequest(f"{name} is {short(str(path))}, which is no file; give the path of an image")
            return file.read(_file_most(limits) + 1)
    except OSError as error:
        raise InvalidRequest(f"{name}: {short(os.fspath(given))} cannot be read: {error.strerror or error}") from None


def data_url(given: str, name: str, limits: Limits) -> bytes:
    """The bytes of a base64 data: URL."""
    head, _, body = given.partition(",")
    if head[:5].lower() != "data:" or not head.lower().endswith(";base64"):
        raise InvalidRequest(f"{name} must be a URL like 'data:image/png;base64,…'; nothing is fetched")
    if len(body) > 2 * _file_most(limits):
        raise InvalidRequest(f"{name} has {len(body)} characters, more than Limits.image_pixels needs: scale it down")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{name} is no base64; encode the bytes of the file") from None


def _file_most(limits: Limits) -> int:
    return 4 * limits.image_pixels + _HEAD


def _of_file(content: bytes, name: str, limits: Limits, left: int) -> Image:
    if len(content) > _file_most(limits):
        raise InvalidRequest(f"{name} is a file of more bytes than Limits.image_pixels needs; scale it down")
    try:
        import PIL.Image
    except ImportError:
        raise InvalidRequest(
            f"{name} is a file, which only Pillow reads: pip install 'boundedgen[images]', or give a uint8 array"
        ) from None
    try:
        opened = PIL.Image.open(io.BytesIO(content), formats=FORMATS)
    except PIL.UnidentifiedImageError:
        raise InvalidRequest(f"{name} is no image in one of the formats {', '.join(FORMATS)}") from None
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning):
        raise InvalidRequest(f"{name} has more pixels than Pillow opens; scale it down") from None
    with opened:
        return _of_pillow(opened, name, limits, left)


def _of_pillow(given: Any, name: str, limits: Limits, left: int) -> Image:
    """As it is to be looked at: turned as its EXIF orientation says."""
    width, height = given.size
    _check(height, width, name, limits, left)
    if given.format != "MPO" and getattr(given, "n_frames", 1) > 1:  # of a camera's pair the first is the picture
        raise InvalidRequest(f"{name} is animated ({given.n_frames} frames); give one frame of it")
    try:
        given.load()
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise InvalidRequest(f"{name} cannot be decoded, it may be cut off: {short(str(error))}") from None
    import numpy as np
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(given)
    array = np.asarray(_opaque(upright, name))
    return Image(array.shape[0], array.shape[1], array.tobytes())


def _opaque(image: Any, name: str) -> Any:
    if image.mode in _CLEAR or "transparency" in image.info:
        clear = image.convert("RGBA")
        if clear.getextrema()[3][0] < 255:
            raise InvalidRequest(
                f"{name} is transparent in places (mode {image.mode}), and the model sees no background; put it on "
                "one, or convert it to 'RGB'"
            )
        return clear.convert("RGB")
    if image.mode not in (*_PLAIN, "P"):
        raise InvalidRequest(f"{name} has the mode {short(image.mode)}; convert it to 'RGB', with 8 bits a channel")
    return image.convert("RGB")


# --- chat messages -----------------------------------------------------------------------------------------------


def without_images(prompt: Sequence[object], put: Any) -> list[object]:
    """Chat messages in which each part that is an image has become the text that `put(value, where)` makes of it."""
    return [_message(row, put, f"prompt, message {at}") for at, row in enumerate(prompt)]


def _message(row: object, put: Any, where: str) -> object:
    content = row.get("content") if isinstance(row, Mapping) else None
    if not isinstance(row, Mapping) or not isinstance(content, list | tuple):
        return row
    return {**row, "content": [_part(part, put, f"{where}, part {at}") for at, part in enumerate(content)]}


def _part(part: object, put: Any, where: str) -> object:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind not in ("image", "image_url"):
        return part
    value = part.get(kind)
    if kind == "image_url":
        value = value.get("url") if isinstance(value, Mapping) else value
        if not isinstance(value, str) or value[:5].lower() != "data:":
            raise InvalidRequest(f"{where}: image_url must hold a data: URL under 'url'; nothing is fetched")
    elif isinstance(value, str) and value[:5].lower() != "data:":
        raise InvalidRequest(
            f"{where}: an image is named by a str; messages may come from clients, so give a pathlib.Path, the bytes "
            "or the image itself"
        )
    return {"type": "text", "text": put(value, where)}
