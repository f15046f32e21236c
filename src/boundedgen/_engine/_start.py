"""Processes of ours, which import what this one does: this very package, and all else from the same places.

`python -m` would look into the working directory first, where a server may have a `random.py` of its own; and it would
not find what this process found only because it had changed its `sys.path`. So this file is run by its name instead.
"""

from __future__ import annotations

import json
import os
import sys

_FILE = os.path.abspath(__file__)
_PACKAGE = os.path.dirname(os.path.dirname(_FILE))
#: What this process does not look at must not be looked at by its children either.
_FLAGS = {
    "isolated": "-I",
    "ignore_environment": "-E",
    "no_user_site": "-s",
    "no_site": "-S",
    "dont_write_bytecode": "-B",
}


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed; what is relative to it is found nowhere
        return ""


_HERE = _working_directory()  #: where this process was when it imported boundedgen


def places() -> list[str]:
    """Where this process imports from; the working directory, where it counts, comes last.

    Python ignores what is no str in its path. A server that goes elsewhere later (a daemon, to /) has imported already
    what its path named from where it was; its next engine has yet to.
    """
    known = [place for place in sys.path if isinstance(place, str)]
    return [os.path.join(_HERE, place) for place in known if place] + [_HERE] * ("" in known)


def command(module: str, *arguments: object) -> list[str]:
    """What runs `module` as `python -m` would, with this process's places."""
    flags = [flag for name, flag in _FLAGS.items() if getattr(sys.flags, name)]
    return [sys.executable, "-P", *flags, _FILE, json.dumps(places()), module, *map(str, arguments)]


def environment() -> dict[str, str]:
    """Ours. An empty entry of PYTHONPATH (`PYTHONPATH=/lib:$PYTHONPATH`) is the working directory, also with -P."""
    named = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(named)}


def _adopt(package: str) -> None:
    """Import the package from where it is, whatever bears its name elsewhere."""
    import importlib.util

    name, file = os.path.basename(package), os.path.join(package, "__init__.py")
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[package])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


if __name__ == "__main__":
    import runpy

    first = json.loads(sys.argv[1])
    sys.path[:] = [*first, *(place for place in sys.path if place not in first)]
    _adopt(_PACKAGE)
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # see boundedgen._unreported
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
