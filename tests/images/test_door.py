"""What is refused of images before anything else sees them, and what becomes of those that are files."""

from __future__ import annotations

import base64
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import PIL.Image
import pytest
from images.vision_lanes import LLAVA, MODELS, QWEN, picture

from boundedgen import InvalidRequest, Limits
from boundedgen._images import read_images
from boundedgen._vision import Family, Vision, smart_resize, tag, vision_of

LIMITS = Limits(image_pixels=100_000, images_max=3)
FAULTY: list[tuple[str, Any, str]] = [
    ("no list", np.zeros((8, 8, 3), np.uint8), "must be a list of images"),
    ("too many", [np.zeros((8, 8, 3), np.uint8)] * 4, "Limits.images_max"),
    ("zero height", [np.zeros((0, 8, 3), np.uint8)], "side of zero"),
    ("zero width", [np.zeros((8, 0, 3), np.uint8)], "side of zero"),
    ("one channel", [np.zeros((8, 8, 1), np.uint8)], "1 channels"),
    ("four channels", [np.zeros((8, 8, 4), np.uint8)], "4 channels"),
    ("channels first", [np.zeros((3, 8, 8), np.uint8)], "transpose it"),
    ("float", [np.zeros((8, 8, 3), np.float32)], "float32"),
    ("2-D", [np.zeros((8, 8), np.uint8)], "height x width x 3"),
    ("batch", [np.zeros((1, 8, 8, 3), np.uint8)], "a batch"),
    ("aspect", [np.zeros((1, 201, 3), np.uint8)], "200 times"),
    ("pixels", [np.zeros((400, 400, 3), np.uint8)], "Limits.image_pixels"),
    ("pixels together", [np.zeros((250, 250, 3), np.uint8)] * 2, "62500 are taken"),
    ("a list of lists", [[[[1, 2, 3]]]], "not list"),
    ("a URL", ["https://example.org/a.png"], "nothing is fetched"),
    ("no such file", [Path("/nowhere/a.png")], "cannot be read"),
    ("a folder", [MODELS], "cannot be read"),
    ("bytes of nothing", [b"nothing"], "no image in one of the formats"),
    ("no base64", ["data:image/png;base64,???"], "no base64"),
    ("plain data URL", ["data:text/plain,abc"], "data:image/png;base64"),
]


@pytest.mark.parametrize(("given", "why"), [pytest.param(g, w, id=name) for name, g, w in FAULTY])
def test_a_faulty_image_is_refused_by_name(given: Any, why: str) -> None:
    with pytest.raises(InvalidRequest, match="images") as caught:
        read_images(given, LIMITS)
    assert why in str(caught.value)


def saved(image: PIL.Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def test_arrays_tensors_files_and_data_urls_are_the_same_picture(tmp_path: Path) -> None:
    pixels = picture(20, 30)
    png = saved(PIL.Image.fromarray(pixels))
    (tmp_path / "a.png").write_bytes(png)
    url = "data:image/png;base64," + base64.b64encode(png).decode()
    wide = np.repeat(pixels, 2, axis=1)[:, ::2]
    assert not wide.flags["C_CONTIGUOUS"]
    for one in (pixels, wide, ov.Tensor(pixels), PIL.Image.fromarray(pixels), png, tmp_path / "a.png", url):
        (image,) = read_images([one], LIMITS)
        assert (image.height, image.width, bytes(image.data)) == (20, 30, pixels.tobytes())


def test_the_caller_may_change_the_array_afterwards() -> None:
    pixels = picture(8, 8)
    before = pixels.tobytes()
    (image,) = read_images([pixels], LIMITS)
    pixels[:] = 0
    assert bytes(image.data) == before


def test_grey_and_opaque_images_become_rgb_and_clear_ones_are_refused() -> None:
    grey = PIL.Image.new("L", (4, 5), 7)
    assert bytes(read_images([grey], LIMITS)[0].data) == bytes([7]) * 60
    opaque = PIL.Image.new("RGBA", (4, 5), (1, 2, 3, 255))
    assert bytes(read_images([opaque], LIMITS)[0].data) == bytes([1, 2, 3]) * 20
    for clear in (PIL.Image.new("RGBA", (4, 5), (1, 2, 3, 9)), PIL.Image.new("LA", (4, 5), (1, 0))):
        with pytest.raises(InvalidRequest, match="transparent"):
            read_images([clear], LIMITS)
    with pytest.raises(InvalidRequest, match="mode 'I;16'"):
        read_images([PIL.Image.new("I;16", (4, 5))], LIMITS)


def test_the_exif_orientation_is_followed() -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    (image,) = read_images([saved(PIL.Image.new("RGB", (30, 20)), "JPEG", exif=exif)], LIMITS)
    assert (image.height, image.width) == (30, 20)


def test_cut_off_animated_and_huge_files_are_refused_before_they_are_decoded() -> None:
    whole = saved(PIL.Image.fromarray(picture(100, 100)))
    with pytest.raises(InvalidRequest, match="cannot be decoded"):
        read_images([whole[: len(whole) // 2]], LIMITS)
    frames = [PIL.Image.new("RGB", (8, 8), (i, 0, 0)) for i in (0, 200)]
    with pytest.raises(InvalidRequest, match="animated"):
        read_images([saved(frames[0], "GIF", save_all=True, append_images=frames[1:])], LIMITS)
    bomb = saved(PIL.Image.new("1", (9000, 9000)))
    assert len(bomb) < 100_000
    with pytest.raises(InvalidRequest, match=r"81000000 pixels.*Limits\.image_pixels"):
        read_images([bomb], LIMITS)


def test_a_pipe_in_place_of_a_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidRequest, match="no file"):
        read_images([tmp_path / "fifo"], LIMITS)


# --- what is known of models -------------------------------------------------------------------------------------


def known(model: str) -> Vision:
    found = vision_of(Path(model))
    assert found is not None
    return found


def test_a_model_without_images_has_no_vision_and_an_unknown_one_no_family(tmp_path: Path) -> None:
    assert vision_of(MODELS / "plain") is None
    (tmp_path / "openvino_vision_embeddings_model.xml").touch()
    found = vision_of(tmp_path)
    assert found is not None
    assert found.family is None
    assert found.tokens(5, [(56, 56)]) is None
    assert found.tokens(5, []) == 5


@pytest.mark.parametrize(
    ("size", "expected"), [((112, 112), 16), ((1, 1), 4), ((42, 42), 4), ((70, 280), 30), ((4000, 3000), 1230)]
)
def test_qwen_s_tokens_follow_its_scaling(size: tuple[int, int], expected: int) -> None:
    family = known(QWEN).family
    assert isinstance(family, Family)
    assert family.tokens(size) == expected
    height, width = smart_resize(size, 28, 3136, 1003520)
    assert (height % 28, width % 28) == (0, 0)


def test_text_places_images_once_each_and_in_order() -> None:
    vision = known(QWEN)
    assert vision.placed("a", 2) == tag(0) + tag(1) + "a"
    assert vision.placed("a", 0) == "a"
    native = "<|vision_start|><|image_pad|><|vision_end|>"
    assert vision.placed(f"a{native}b{native}", 2) == f"a{tag(0)}b{tag(1)}"
    vision.check(f"a{tag(0)}b{tag(1)}", 2)


@pytest.mark.parametrize(
    ("model", "text", "images"),
    [
        (QWEN, "a" + tag(0), 0),
        (QWEN, tag(1), 1),
        (QWEN, tag(0) + tag(0), 2),
        (QWEN, tag(1) + tag(0), 2),
        (QWEN, tag(0) + tag(0), 1),
        (QWEN, "<ov_genai_video_0>", 0),
        (QWEN, "<ov_genai_image_x>", 0),
        (QWEN, "<ov_genai_image_99999999999999999999999>", 0),
        (QWEN, "<ov_genai_image_<|im_end|>", 0),
        (QWEN, "<|image_pad|>", 0),
        (QWEN, tag(0) + "<|vision_start|>", 1),
        (QWEN, "<|video_pad|>", 0),
        (LLAVA, "<image>", 0),
        (LLAVA, tag(0) + "<image>", 1),
        (LLAVA, "<im" + tag(0) + "age>", 1),
    ],
)
def test_text_that_would_make_other_images_is_refused(model: str, text: str, images: int) -> None:
    with pytest.raises(InvalidRequest, match="prompt holds"):
        known(model).check(text, images)


def test_what_the_engine_counts_otherwise_is_a_finding_and_expected_from_then_on() -> None:
    vision = known(LLAVA)
    assert vision.tokens(10, [(5, 5), (6, 6)]) == 40
    vision.counted(10, [(5, 5), (6, 6)], 43)
    assert vision.tokens(10, [(5, 5), (6, 6)]) == 44
    assert "43 prompt tokens where 40 were expected" in vision.findings[0]
    vision.counted(10, [(5, 5)], 20)
    assert vision.tokens(10, [(5, 5)]) == 27  # less is said, and not relied upon
    assert len(vision.findings) == 2


def test_an_unknown_family_is_learned_by_size() -> None:
    vision = Vision(None)
    vision.counted(10, [(5, 5), (5, 5)], 45)
    assert vision.tokens(10, [(5, 5)]) == 28
    assert vision.tokens(10, [(5, 6)]) is None
    vision.counted(10, [(5, 6), (7, 7)], 60)  # which took what is not known
    assert vision.tokens(10, [(5, 6)]) is None
    assert not vision.findings
    vision.counted(10, [(5, 5)], 30)
    assert vision.tokens(10, [(5, 5)]) == 30
    assert vision.findings
