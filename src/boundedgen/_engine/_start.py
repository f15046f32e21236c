"""Processes of ours, which import what this one does: this very package, and all else from the same places.

`python -m` would look into the working directory first, where a server may have a `random.py` of its own; and it would
not find what this process found only because it had changed its `sys.path`. So this file is run by its name instead.
"""

from __future__ import annotations

import json
import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def command(module: str, *arguments: object) -> list[str]:
    """What runs `module` as `python -m` would. The working directory, where it counts for this process, comes last."""
    places = [place for place in sys.path if place] + [""] * ("" in sys.path)
    return [sys.executable, "-P", os.path.abspath(__file__), json.dumps(places), module, *map(str, arguments)]


def environment() -> dict[str, str]:
    """Ours. An empty entry of PYTHONPATH (`PYTHONPATH=/lib:$PYTHONPATH`) is the working directory, also with -P."""
    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


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

    places = json.loads(sys.argv[1])
    sys.path[:] = [*places, *(place for place in sys.path if place not in places)]
    _adopt(_PACKAGE)
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
