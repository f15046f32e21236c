"""A tokenizer that the installed release would crash on never reaches it: it is refused first."""

import re
import shutil
from pathlib import Path

import pytest

import boundedgen as bg
from boundedgen._engine import _model_files

PLAIN = Path(__file__).parents[1] / "models" / "plain"

_CONVERTED_BY = re.compile(r'(<openvino_tokenizers_version value=")[^"]*')


@pytest.mark.parametrize("part", ["tokenizer", "detokenizer"])
def test_a_tokenizer_of_a_newer_release_is_refused_before_this_process_loads_it(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(PLAIN, folder)
    for name in ("tokenizer", "detokenizer"):
        xml, version = folder / f"openvino_{name}.xml", "2026.4.1.0-738-9bf" if name == part else "2026.3.1.0-705-77e"
        text = xml.read_text(encoding="utf-8")
        assert _CONVERTED_BY.search(text)
        xml.write_text(_CONVERTED_BY.sub(rf"\g<1>{version}", text), encoding="utf-8")
    monkeypatch.setattr(_model_files, "versions", lambda: {"openvino-genai": "2026.3.1.0"})
    said = (
        rf"openvino_{part}.xml was converted by openvino-tokenizers 2026.4.1.0, which crashes openvino-genai 2026.3.1.0"
    )
    pipeline = bg.BoundedPipeline(str(folder), {"num_kv_blocks": 8})
    with pytest.raises(bg.ModelLoadFailed, match=said) as error, pipeline:
        pipeline.wait_ready(30)
    assert "convert_tokenizer NAME --with-detokenizer" in str(error.value)
