"""Fixtures for tests on the emulated GPU.

    gpu_environment   dict of the variables that a child process needs to see the GPU (values are complete: those that
                      were set already are kept behind ours). Skips, with the missing part named, where there is none.
    gpu_properties    OpenVINO properties for `device="GPU"`: f32, with a cache of compiled kernels that persists
                      between runs. The first load of a model takes 10 to 40 s, later ones under a second.
    emulated_gpu      sets the variables in this process for the length of the test, so that every child it starts
                      inherits them, and gives the properties:
                      `BoundedPipeline(path, device="GPU", properties=emulated_gpu)`.

Keep one GPU pipeline alive at a time: on the emulated device live ones slow each other down by a factor of ten.
The GPU plugin must never be loaded in the test process itself: LD_PRELOAD acts on newly executed processes only.
Every test in this folder is marked `gpu` and has 300 s, since it may be the one that compiles the kernels.
"""

import os
from pathlib import Path

import pytest
from gpu import emulation


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def gpu_emulation() -> emulation.Emulation:
    try:
        return emulation.prepare()
    except emulation.Absent as why:
        pytest.skip(f"no emulated GPU: {why}")


@pytest.fixture(scope="session")
def gpu_environment(gpu_emulation: emulation.Emulation) -> dict[str, str]:
    return gpu_emulation.environment(os.environ)


@pytest.fixture(scope="session")
def gpu_properties(gpu_emulation: emulation.Emulation) -> dict[str, str]:
    return gpu_emulation.properties()


@pytest.fixture
def emulated_gpu(
    monkeypatch: pytest.MonkeyPatch, gpu_environment: dict[str, str], gpu_properties: dict[str, str]
) -> dict[str, str]:
    for name, value in gpu_environment.items():
        monkeypatch.setenv(name, value)
    return dict(gpu_properties)
