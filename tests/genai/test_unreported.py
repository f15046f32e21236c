"""OpenVINO's package reports its import by forking whoever imports it; with boundedgen nobody is forked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAIN = Path(__file__).parent.parent / "models" / "plain"
_NO_STUB = "openvino.tools.ovc.telemetry_utils"
#: What a server does: no CI, a home in which nobody has said no, a pipeline, a generation.
SERVER = f"""
import sys
forks = []
sys.addaudithook(lambda event, args: forks.append(event) if event in ("os.fork", "os.forkpty") else None)
import boundedgen
with boundedgen.BoundedPipeline({str(PLAIN)!r}, {{"num_kv_blocks": 64}}, "CPU") as pipeline:
    assert pipeline.generate("abc", max_new_tokens=2).completion_tokens
    with open(f"/proc/{{pipeline.stats().engine_pid}}/task/{{pipeline.stats().engine_pid}}/children") as children:
        assert children.read() == ""
reports = sys.modules[{_NO_STUB!r}].tm
print(reports.__name__, "openvino_telemetry" in sys.modules, forks)
"""


def test_a_server_is_not_forked_by_what_it_imports(tmp_path: Path) -> None:
    pytest.importorskip("openvino_telemetry")
    kept = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [sys.executable, "-c", SERVER], env={**kept, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "openvino.tools.ovc.telemetry_stub False []\n", done.stderr
