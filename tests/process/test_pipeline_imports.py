"""What an engine's process imports: what its server does, whatever lies about. Another version is refused at once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
from process.engine_life import Life
from process.lanes import MODELS, said, script

import boundedgen
from boundedgen import Limits
from boundedgen._core._events import BootFailed, WireBroken
from boundedgen._engine import _start
from boundedgen._engine._host import start
from boundedgen._engine._versions import replaced, versions

pytestmark = pytest.mark.timeout(110)

PACKAGE = Path(boundedgen.__file__).parent
DECOYS = ("boundedgen", "attrs", "json", "random", "runpy", "importlib", "sitecustomize", "encodings")

SERVE = """
import contextlib, os, sys
where, *places = sys.argv[1:]
sys.path[:0] = places
from process.lanes import engine_pid, kill, simulated_lane, until
import boundedgen, psutil
os.chdir(where)
with contextlib.closing(simulated_lane()) as lane:
    lane.wait_ready(60)
    print(boundedgen.__file__, lane.generate([5], max_new_tokens=3).finish_reason, flush=True)
    print(" ".join(psutil.Process(engine_pid(lane)).cmdline()), flush=True)
    while sys.stdin.readline():
        kill(engine_pid(lane))
        until(lambda: lane.stats().incarnation > 1 and lane.health().state in ("ready", "failed"))
        print(lane.health().state, lane.stats().incarnation, lane.health().reason, flush=True)
"""


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    """A working directory with files that bear the names of what an engine imports."""
    for name in DECOYS:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('a decoy was imported: {name}')\n")
    return tmp_path


def test_an_engine_imports_nothing_from_the_working_directory_of_its_server(decoys: Path) -> None:
    with script(SERVE, decoys) as server:
        assert said(server) == f"{PACKAGE / '__init__.py'} length"


def test_an_engine_finds_what_its_server_found_by_a_path_of_its_own(tmp_path: Path) -> None:
    copy = tmp_path / "vendored" / "boundedgen"
    shutil.copytree(PACKAGE, copy)
    with script(SERVE, tmp_path, copy.parent) as server:
        assert said(server) == f"{copy / '__init__.py'} length"
        assert str(copy / "_engine" / "_start.py") in said(server)


def test_a_package_that_is_upgraded_under_a_server_fails_it_for_good_and_says_so(tmp_path: Path) -> None:
    copy = tmp_path / "boundedgen"
    shutil.copytree(PACKAGE, copy)
    with script(SERVE, "/", tmp_path) as server:
        said(server, "length")
        said(server)
        assert server.stdin is not None
        file = copy / "__init__.py"
        file.write_text(file.read_text().replace(f'"{boundedgen.__version__}"', '"9.9.9"'))
        print(file=server.stdin, flush=True)
        assert said(server) == (
            f"failed 2 boundedgen was upgraded from {boundedgen.__version__} to 9.9.9 under this server; "
            "restart the server"
        )


def test_a_server_that_runs_from_its_own_directory_has_an_engine(tmp_path: Path) -> None:
    """`python -c` there, with the package in it: the working directory comes last, and it comes."""
    shutil.copytree(PACKAGE, tmp_path / "boundedgen")
    source = f"import sys; sys.path.append({str(MODELS.parent)!r}); import os; os.chdir({str(tmp_path)!r})\n"
    source += "sys.path[:] = [p for p in sys.path if 'boundedgen' not in p and not p.endswith('/src')]\n"
    with script(source + SERVE, tmp_path) as server:
        assert said(server) == f"{tmp_path / 'boundedgen' / '__init__.py'} length"


FLAGS = ("isolated", "ignore_environment", "no_user_site", "no_site", "dont_write_bytecode")


def test_the_command_has_what_python_looks_at_in_the_places_of_this_process_and_its_first_directory_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = Path.cwd()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "flags", SimpleNamespace(**dict.fromkeys(FLAGS, 0)))
    monkeypatch.setattr(sys, "path", ["", "/a", Path("/c"), b"/d", "relative", "/b", None])
    python, safe, file, places, *rest = _start.command("some.module", 1, "two")
    assert (python, safe, Path(file)) == (sys.executable, "-P", PACKAGE / "_engine" / "_start.py")
    assert json.loads(places) == ["/a", str(here / "relative"), "/b", str(here)]
    assert rest == ["some.module", "1", "two"]


@pytest.mark.parametrize("flag", FLAGS)
def test_what_this_process_does_not_look_at_its_engine_does_not_either(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "flags", SimpleNamespace(**dict.fromkeys(FLAGS, 0) | {flag: 1}))
        _, _, option, file, *_ = _start.command("some.module")
    assert Path(file).name == "_start.py"
    told = f"import sys; print(sys.flags.{flag})"
    assert subprocess.check_output([sys.executable, option, "-c", told], text=True).strip() == "1"


def test_an_isolated_server_with_relative_places_that_goes_elsewhere_gets_its_next_engine(
    decoys: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A daemon: -I -S, its dependencies in a directory beside it, a Path in its path, PYTHONPATH of somebody else's."""
    home = tmp_path_factory.mktemp("home")
    (home / "vendor").symlink_to(Path(attrs.__file__).parents[1])
    source = "import sys, pathlib; sys.path[:0] = ['vendor', pathlib.Path('/nowhere')]\n" + SERVE
    own = [str(PACKAGE.parent), str(MODELS.parent)]
    with script(source, "/", *own, flags=("-I", "-S"), cwd=home, places=[str(decoys)]) as server:
        assert said(server) == f"{PACKAGE / '__init__.py'} length"
        said(server)
        assert server.stdin is not None
        print(file=server.stdin, flush=True)
        assert said(server) == "ready 2"


# --- another version ------------------------------------------------------------------------------------------------


def test_what_was_replaced_is_named_with_both_versions() -> None:
    ours = {"boundedgen": "1", "openvino-genai": "2"}
    assert replaced(ours, ours) == ""
    assert replaced(ours, {**ours, "openvino-genai": "3"}) == (
        "openvino-genai was upgraded from 2 to 3 under this server; restart the server"
    )
    assert replaced(ours, {"boundedgen": "7"}) == (
        "boundedgen was upgraded from 1 to 7 and openvino-genai was upgraded from 2 to none under this server; "
        "restart the server"
    )


def test_this_process_knows_its_versions() -> None:
    assert versions()["boundedgen"] == boundedgen.__version__
    assert versions()["openvino-genai"][:2] == "20"


def test_an_engine_that_speaks_frames_of_another_version_is_refused_for_good() -> None:
    life = Life(start("process.other_version", 1, Limits()))
    try:
        failed = life.until(lambda report: isinstance(report, BootFailed | WireBroken))
        assert isinstance(failed, BootFailed)
        assert failed.permanent
        assert failed.text == (
            "boundedgen was upgraded from version 1 of the wire to version 2 under this server; restart the server"
        )
    finally:
        life.close()
