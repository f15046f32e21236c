"""What the test kit exports, and that each says what it is."""

import inspect

import pytest

from boundedgen import testing


@pytest.mark.parametrize("name", testing.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    thing = getattr(testing, name)
    assert inspect.getdoc(thing)
    assert inspect.ismodule(thing) or vars(thing).get("__doc__"), f"{name} inherits its docstring"


@pytest.mark.parametrize("kind", [testing.Simulation, testing.VirtualClock, testing.SimEngine, testing.Fault])
def test_every_public_method_says_what_it_does(kind: type) -> None:
    for name, member in vars(kind).items():
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            assert inspect.getdoc(member), f"{kind.__name__}.{name}"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        testing.nothing  # type: ignore[attr-defined]  # noqa: B018
