"""The pytest plugin: found by itself, costs nothing where it is not used, gives a simulation that is ready."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

import boundedgen as b
from boundedgen.testing import Fault, SimModel, Simulation


def test_the_fixture_is_a_simulation_that_is_ready(bounded_simulation: Simulation) -> None:
    assert bounded_simulation.pipeline.health().ready
    assert bounded_simulation.pipeline.generate("hello", max_new_tokens=3).completion_tokens == 3


@pytest.mark.bounded_simulation(model=SimModel(step_s=1, token_s=0), limits=b.Limits(waiting_max=1))
class TestMarks:
    def test_a_mark_gives_its_arguments(self, bounded_simulation: Simulation) -> None:
        assert bounded_simulation.pipeline.generate("hello", max_new_tokens=3).total_s == 3

    @pytest.mark.bounded_simulation(model=SimModel(step_s=2, token_s=0), faults=[Fault(kind="crash", at_step=3)])
    def test_the_nearest_one_wins(self, bounded_simulation: Simulation) -> None:
        sim = bounded_simulation
        assert sim.pipeline.generate("hello", max_new_tokens=2).total_s == 4
        first = sim.pipeline.submit("hello", max_new_tokens=2)
        with pytest.raises(b.Saturated):
            sim.pipeline.submit("hello", max_new_tokens=2)
        with pytest.raises(b.EngineLost):
            first.result()


def test_pytest_finds_it_by_its_entry_point() -> None:
    (found,) = entry_points(group="pytest11", name="boundedgen")
    assert found.value == "_boundedgen_pytest"


def test_it_imports_nothing_of_ours_until_the_fixture_is_used() -> None:
    code = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import _boundedgen_pytest\n"
        "assert set(sys.modules) - before == {'_boundedgen_pytest'}, set(sys.modules) - before\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_a_simulation_wants_neither_an_engine_nor_hypothesis_nor_a_thread() -> None:
    code = (
        "import sys, threading\n"
        "from boundedgen.testing import Simulation\n"
        "with Simulation() as sim:\n"
        "    sim.pipeline.generate('hello', max_new_tokens=3)\n"
        "    assert threading.active_count() == 1\n"
        "heavy = {'openvino', 'openvino_genai', 'openvino_tokenizers', 'hypothesis', 'pytest'}\n"
        "assert not heavy & {name.split('.')[0] for name in sys.modules}\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
