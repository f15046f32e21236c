"""A Ray cluster of several nodes on this machine, small, on loopback, gone at its end together with all it started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
MARK = "BOUNDEDGEN_RAY_TESTS"  #: in the environment of everything that is started here, however far down
LOOPBACK = "127.0.0.2"  #: what is called 127.0.0.1, Ray takes for the address of the machine's network
COMMON: dict[str, Any] = {"object_store_memory": 80 << 20, "node_ip_address": LOOPBACK}
#: For Ray and Serve, which read some of it when they are imported.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # on loopback, for two minutes; else it writes a token into the home
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", ""))),
    "PYTHONWARNINGS": "ignore",
    MARK: uuid.uuid4().hex,
}
#: A dead node is noticed within two seconds, also one whose connections stay open.
SYSTEM = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}


@contextlib.contextmanager
def cluster(nodes: int = 2) -> Iterator[Any]:
    """Connected; a head that has no CPU for lanes, and `nodes` with one each. Serve runs without its HTTP proxies."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: there are Unix sockets in it
    os.makedirs(f"{folder}/ray")
    os.environ.update({**ENVIRONMENT, "RAY_TMPDIR": folder})
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    started = None
    try:
        head = {**COMMON, "num_cpus": 0, "include_dashboard": False, "temp_dir": f"{folder}/ray"}
        started = Cluster(initialize_head=True, head_node_args={**head, "_system_config": SYSTEM})
        for _ in range(nodes):
            add_node(started)
        ray.init(address=started.address, _node_ip_address=LOOPBACK, log_to_driver=False, logging_level="ERROR")
        serve.start(proxy_location="Disabled")
        yield started
    finally:
        with contextlib.suppress(Exception):
            if ray.is_initialized():  # else the next line would start a Ray of its own
                serve.shutdown()
            ray.shutdown()
        if started is not None:
            with contextlib.suppress(Exception):
                started.shutdown()
        left = end_all()
        shutil.rmtree(folder, ignore_errors=True)
        assert not left, left


def add_node(started: Any) -> Any:
    return started.add_node(num_cpus=1, **COMMON)


def kill_node(started: Any, node: Any) -> None:
    """As a power cut does: all its processes at one instant, none of which can say a word."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    for process in [*raylet.children(recursive=True), raylet]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    started.remove_node(node, allow_graceful=False)


def of_ours() -> list[psutil.Process]:
    """What has our mark in its environment, without this process."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == ENVIRONMENT[MARK]:
                found.append(process)
    return found


def end_all() -> list[psutil.Process]:
    """Give what is ending a moment, end the rest. What is left then."""
    _, alive = psutil.wait_procs(of_ours(), timeout=5)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _, alive = psutil.wait_procs(alive, timeout=5)
    return list(alive)
