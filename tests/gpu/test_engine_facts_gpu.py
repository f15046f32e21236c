"""The raw engine's scheduler on the real GPU plugin, on an emulated device.

It says nothing about real GPU hardware, its speed or its memory.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from genai import experiments as engine
from genai.raw import HYBRID, PLAIN, Lab, laboratory

both_models = pytest.mark.parametrize("model", [PLAIN, HYBRID], ids=["plain", "hybrid"])


@pytest.fixture(scope="module")
def lab(gpu_environment: dict[str, str]) -> Iterator[Lab]:
    with laboratory(gpu_environment) as made:
        yield made


@both_models
def test_greedy_tokens_equal_the_cpus(lab: Lab, model: str, gpu_properties: dict[str, str]) -> None:
    on_gpu = lab.run_within(200, engine.greedy, "GPU", model, gpu_properties)
    assert on_gpu == lab.run(engine.greedy, "CPU", model)
    assert len({tuple(tokens) for tokens in on_gpu}) == 3


@both_models
def test_a_block_holds_sixteen_tokens(lab: Lab, model: str, gpu_properties: dict[str, str]) -> None:
    percent, block_size = lab.run_within(200, engine.one_block, 8, "GPU", model, gpu_properties)
    assert (percent, block_size) == (12.5, 16)


@both_models
def test_a_stopped_request_keeps_its_blocks_until_the_end_of_the_next_step(
    lab: Lab, model: str, gpu_properties: dict[str, str]
) -> None:
    seen = lab.run_within(200, engine.stop_keeps_blocks, "GPU", model, gpu_properties)
    assert (seen["held"], seen["stopped"], seen["released"]) == (False, False, True)
    before, after, settled = seen["usage"]
    assert before == after
    assert before[0] == 1
    assert settled == [0, 0.0]


@both_models
def test_a_newcomer_needs_one_step_after_the_stop_when_the_cache_is_full(
    lab: Lab, model: str, gpu_properties: dict[str, str]
) -> None:
    at_once = lab.run_within(200, engine.stop_then_newcomer, False, False, "GPU", model, gpu_properties)
    assert at_once == [100.0, "IGNORED", 0, "IGNORED"]
    full, _, tokens, state = lab.run(engine.stop_then_newcomer, False, True, "GPU", model, gpu_properties)
    assert (full, tokens, state) == (100.0, 4, "FINISHED")


@both_models
def test_the_fit_rule_is_exact(lab: Lab, model: str, gpu_properties: dict[str, str]) -> None:
    assert lab.run_within(200, engine.fits, 57, 72, 8, "GPU", model, gpu_properties) == ["FINISHED", 72]
    assert lab.run_within(200, engine.fits, 57, 73, 8, "GPU", model, gpu_properties) == ["IGNORED", 72]


def test_the_environment_alone_makes_the_device_appear(lab: Lab) -> None:
    assert "emulated" in lab.run(engine.device_name)
    with laboratory() as bare:
        assert "emulated" not in bare.run(engine.device_name)


def test_kernels_cut_short_in_the_compile_cache_make_every_load_fail(
    lab: Lab, gpu_properties: dict[str, str], tmp_path: Path
) -> None:
    """What a kill in mid-compile can leave: kernels, the last one half-written, and no blob of the whole model yet."""
    lab.run_within(200, engine.greedy, "GPU", PLAIN, gpu_properties)
    for kernels in Path(gpu_properties["CACHE_DIR"]).glob("*.cl_cache"):
        shutil.copy(kernels, tmp_path)
    for damage in ("cut", "none"):  # and what was cut stays as it is
        with pytest.raises(AssertionError, match=r"\[GPU\] Failed to create program"):
            lab.run_within(200, engine.greedy_with_cache, str(tmp_path), damage, "GPU", gpu_properties)
