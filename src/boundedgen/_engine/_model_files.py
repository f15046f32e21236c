"""What the files of a model tell before any process is started: whether it is all there, and of which kind it is."""

import re
from pathlib import Path

from boundedgen._engine import _gguf
from boundedgen._engine._defect import Defect
from boundedgen._engine._releases import tokenizer_defect
from boundedgen._engine._versions import versions

IR = ("openvino_model.xml", "openvino_language_model.xml")
_CHECKPOINT = ("*.safetensors", "pytorch_model*.bin", "*.pt")

GIVE = "Give an OpenVINO model folder or a .gguf file."
AGAIN = "Copy or export the model again."
_HUB = (
    "It looks like the name of a model on a hub; nothing is downloaded. "
    "Export it to a folder with optimum-cli export openvino -m NAME FOLDER and give that."
)


def model_defect(path: Path) -> Defect | None:
    """Why there is no model at `path`, as far as its files tell; None: nothing is wrong with them."""
    try:
        return _path_defect(path)
    except OSError as error:
        return Defect(f"{path} cannot be read: {error.strerror or error}.", "Give the process the right to read it.")


def _path_defect(path: Path) -> Defect | None:
    if not path.exists():
        return Defect(f"{path} does not exist.", _HUB if _like_a_hub_id(path) else GIVE)
    if path.is_dir():
        return _folder_defect(path)
    if path.suffix.lower() != ".gguf":
        folder = f" {path.parent}" if path.name in IR else ""
        return Defect(
            f"{path} is neither a model folder nor a .gguf file.",
            f"Give the folder{folder} that holds openvino_model.xml.",
        )
    defect = _gguf.defect(path)
    return Defect(f"{path} is not a whole GGUF file: {defect}.", "Copy or download it again.") if defect else None


def _like_a_hub_id(path: Path) -> bool:
    return (
        not path.is_absolute()
        and len(path.parts) == 2
        and not path.parts[0].startswith(".")
        and not path.parent.exists()
    )


def _folder_defect(path: Path) -> Defect | None:
    present = [name for name in IR if (path / name).is_file()]
    if not present:
        return Defect(f"{path} holds no OpenVINO model (openvino_model.xml).", _remedy_for_folder(path))
    weights = path / present[0].replace(".xml", ".bin")
    if not weights.is_file() or not weights.stat().st_size:
        return Defect(f"{path} has {present[0]} but no weights ({weights.name}).", AGAIN)
    missing = [name for name in _TOKENIZERS if not (path / name).is_file()]
    if missing:
        return Defect(f"{path} has no {' and no '.join(missing)}.", TOKENIZER)
    return next((defect for name in _TOKENIZERS if (defect := _tokenizer_defect(path / name))), None)


_TOKENIZERS = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")
_CONVERTED_BY = re.compile(rb'<openvino_tokenizers_version value="([\w.]{1,40})')
_TAIL = 1 << 20  #: bytes: it stands near the end of the file, behind the chat template


def _tokenizer_defect(xml: Path) -> Defect | None:
    """One that the installed release would crash on, in the server's own process: seen before it is loaded."""
    with xml.open("rb") as file:
        file.seek(max(0, xml.stat().st_size - _TAIL))
        found = _CONVERTED_BY.search(file.read())
    version = found[1].decode() if found else ""
    words = tokenizer_defect(version, versions()["openvino-genai"])
    return Defect(f"{xml.name} {words}.", f"Upgrade openvino-genai, or: {CONVERT}") if words else None


CONVERT = (
    "Convert the tokenizer beside the model: pip install openvino-tokenizers[transformers], then "
    "convert_tokenizer NAME --with-detokenizer -o FOLDER."
)
TOKENIZER = f"{CONVERT[:-1]}; or copy both from where the model came from."


def _remedy_for_folder(path: Path) -> str:
    if files := sorted(path.glob("*.gguf")):
        return f"For a GGUF model give the file itself: {files[0]}."
    if any(next(path.glob(pattern), None) for pattern in _CHECKPOINT):
        return f"It is a checkpoint: export it with optimum-cli export openvino -m {path} FOLDER, and give that folder."
    if inner := sorted(path.glob("*/openvino_model.xml")):
        return f"There is one in {inner[0].parent}: give that."
    return "Export a model with optimum-cli export openvino -m NAME FOLDER, or give a .gguf file."


def weights_bytes(path: Path) -> int:
    """Of a whole model: all that its files of weights take, or its one file."""
    files = path.glob("openvino_*.bin") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)
