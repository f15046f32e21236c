"""The doctor on the GPU plugin, on an emulated device: as a command, since the variables act on new processes only."""

import json
import os
import subprocess
import sys

from genai.lanes import PLAIN


def test_the_doctor_finds_the_gpu_its_driver_and_its_blocks(
    gpu_environment: dict[str, str], gpu_properties: dict[str, str]
) -> None:
    command = [
        *(sys.executable, "-m", "boundedgen", "doctor", PLAIN, "--beside", "--json", "--max-tokens", "200"),
        *("--scheduler", '{"num_kv_blocks": 64}', "--properties", json.dumps(gpu_properties)),
    ]
    environment = {**os.environ, **gpu_environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    told = json.loads(done.stdout)
    findings = {(one["check"], one["level"]): one["seen"] for one in told["findings"]}
    assert (done.returncode, told["device"]) == (0, "GPU"), (done.stderr, findings)
    assert "GPU: " in " ".join(one["seen"] for one in told["findings"] if one["check"] == "device")
    seen = " ".join(one["seen"] for one in told["findings"] if one["check"] == "gpu")
    assert "driver 20" in seen, "as OpenCL tells it"
    assert ("no render node" in seen) == (not os.path.exists("/dev/dri"))
    assert told["measured"]["block_size"] == 16
    assert told["measured"]["sequences_that_fit"] == 64 // -(-199 // 16)
    assert told["recommended"]["limits"]["boot"] >= 300
    assert ("probe", "ok") in findings
