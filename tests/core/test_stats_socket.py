"""`serve_stats`: one real socket and thread, a simulated lane, and clients that mean well or do not."""

import contextlib
import errno
import gc
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import boundedgen as b
from boundedgen import _stats_listener, _stats_socket
from boundedgen.testing import Simulation

GET = b"GET /stats HTTP/1.1\r\nHost: lane\r\n\r\n"
ENDS = 10.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lane.sock"


@pytest.fixture
def sim(nothing_left_behind: None) -> Iterator[Simulation]:
    with Simulation() as simulation:
        yield simulation


def connected(path: Path, patience: float = ENDS) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(patience)
    client.connect(str(path))
    return client


def to_the_end(client: socket.socket) -> bytes:
    with client, contextlib.suppress(ConnectionError):
        return b"".join(iter(lambda: client.recv(1 << 16), b""))
    return b""


def asked(path: Path, request: bytes = GET) -> tuple[int, dict[str, Any]]:
    """Status and body."""
    client = connected(path)
    client.sendall(request)
    head, _, body = to_the_end(client).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def until(done: Any) -> None:
    end = time.monotonic() + ENDS
    while not done():
        assert time.monotonic() < end
        time.sleep(0.002)


def serving() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "boundedgen-stats"]


# --- what is served --------------------------------------------------------------------------------------------------


def test_it_serves_the_document_with_a_row_a_sequence(sim: Simulation, path: Path) -> None:
    inside = sim.pipeline.submit("x", max_new_tokens=5, owner="ann", label="chat 7")
    sim.advance(0.01)
    with sim.pipeline.serve_stats(path, name="gpu-0") as served:
        assert served.path == str(path)
        status, document = asked(path)
    assert status == 200
    assert document == json.loads(json.dumps(sim.pipeline.stats_document("gpu-0")))
    assert list(document) == ["name", "version", "now", "health", "stats"]
    assert document["name"], document["version"] == ("gpu-0", b.__version__)
    assert document["health"] == sim.pipeline.health().to_dict()
    (row,) = document["stats"]["sequences"]
    assert (row["owner"], row["label"], row["bound"]) == ("ann", "chat 7", "total")
    assert row["deadline"] - document["now"] == pytest.approx(600 - row["age_s"])
    inside.cancel()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_reads_it(sim: Simulation, path: Path) -> None:
    with sim.pipeline.serve_stats(path):
        command = ["curl", "--silent", "--fail", "--unix-socket", str(path), "http://lane/stats"]
        said = subprocess.run(command, capture_output=True, timeout=20, check=True).stdout
    assert json.loads(said)["health"]["ready"] is True


def test_it_reads_and_changes_nothing(sim: Simulation, path: Path) -> None:
    before = sim.pipeline.stats()
    with sim.pipeline.serve_stats(path):
        body = b"Content-Length: 3\r\n\r\nabc"
        for method in (b"POST", b"DELETE", b"PUT", b"HEAD", b"OPTIONS"):
            status, said = asked(path, method + b" /stats HTTP/1.1\r\n" + body)
            assert (status, said["error"]) == (405, "this socket is read only: GET")
        assert asked(path, b"GET /close HTTP/1.1\r\n\r\n")[0] == 404
        assert asked(path, b"GET / HTTP/1.0\r\n\r\n")[0] == 200
        assert asked(path, b"GET /stats?pretty HTTP/1.1\r\n\r\n")[0] == 200
        assert asked(path, b"\x16\x03\x01 rubbish\r\n\r\n")[0] == 400
        assert asked(path, b"GET /stats\r\n\r\n")[0] == 400
        assert asked(path, b"GET /" + b"x" * 9000)[0] == 431
        assert asked(path)[0] == 200
    assert sim.pipeline.stats() == before


def test_a_request_that_comes_byte_by_byte_is_answered(sim: Simulation, path: Path) -> None:
    with sim.pipeline.serve_stats(path):
        client = connected(path)
        for byte in GET:
            client.sendall(bytes([byte]))
        assert to_the_end(client).startswith(b"HTTP/1.1 200 OK\r\n")


def test_who_asks_often_is_told_the_same_again_if_it_takes_long_to_make(path: Path) -> None:
    made = []

    def source() -> dict[str, int]:
        time.sleep(0.05)
        made.append(1)
        return {"number": len(made)}

    with _stats_socket.StatsSocket(path, source):
        told = {asked(path)[1]["number"] for _ in range(50)}
    assert told == {1}, "50 of them are answered in less than ten times 0.05 s"


def test_a_bug_in_it_is_told_and_logged_and_is_not_its_end(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    documents: list[Any] = [{"figure": float("nan")}, {"figure": 1}]
    with _stats_socket.StatsSocket(path, lambda: documents.pop(0)):
        status, said = asked(path)
        assert (status, said["error"]) == (500, "a bug: ValueError; please report it with the log")
        until(lambda: asked(path) == (200, {"figure": 1}) if documents else True)
    assert "stats could not be served" in caplog.text


# --- clients that do not mean well -----------------------------------------------------------------------------------


def test_clients_that_say_nothing_keep_nobody_out(sim: Simulation, path: Path) -> None:
    with sim.pipeline.serve_stats(path), contextlib.ExitStack() as held:
        for number in range(40):
            client = held.enter_context(connected(path))
            client.sendall(b"GET /sta" if number % 2 else b"")
        began = time.monotonic()
        assert asked(path)[0] == 200
        assert time.monotonic() - began < _stats_socket.PATIENCE / 2


def test_a_client_that_says_nothing_or_reads_nothing_is_cut_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stats_socket, "PATIENCE", 0.3)
    large = {"text": "x" * 5_000_000}  # more than any socket keeps
    with _stats_socket.StatsSocket(path, lambda: large) as served:
        silent, deaf = connected(path), connected(path)
        deaf.sendall(GET)
        until(lambda: len(served._clients) == 2)
        until(lambda: not served._clients)
        assert to_the_end(silent) == b""
        assert 0 < len(to_the_end(deaf)) < 5_000_000
        assert len(asked(path)[1]["text"]) == 5_000_000


def test_clients_that_hang_up_anywhere_harm_nobody(sim: Simulation, path: Path) -> None:
    with sim.pipeline.serve_stats(path):
        for piece in (b"", b"GET", GET):
            for _ in range(20):
                client = connected(path)
                client.sendall(piece)
                client.close()
        assert asked(path)[0] == 200


def test_many_at_once_are_all_answered(sim: Simulation, path: Path) -> None:
    """No more than the socket holds; who comes beyond that takes the place of the one that is there for longest."""
    said: list[int] = []
    with sim.pipeline.serve_stats(path):
        threads = [threading.Thread(target=lambda: said.append(asked(path)[0])) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(ENDS)
    assert said == [200] * 6


# --- the file --------------------------------------------------------------------------------------------------------


def test_it_is_its_owner_s_alone_from_the_first_instant(
    sim: Simulation, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the umask is, which is the whole process's and is not touched."""
    modes: list[int] = []
    identity = _stats_listener._identity

    def look(at: str) -> Any:
        modes.append(stat.S_IMODE(os.lstat(at).st_mode))
        return identity(at)

    monkeypatch.setattr(_stats_listener, "_identity", look)
    before = os.umask(0)
    try:
        with sim.pipeline.serve_stats(path):
            assert os.umask(0) == 0
            assert set(modes) == {0o600}
    finally:
        os.umask(before)


def test_it_is_gone_when_it_is_closed_and_when_the_pipeline_is(sim: Simulation, path: Path) -> None:
    served = sim.pipeline.serve_stats(path)
    served.close()
    served.close()
    assert not path.exists()
    assert not serving()
    sim.pipeline.serve_stats(path)
    sim.pipeline.serve_stats(path.with_name("other.sock"))
    assert len(serving()) == 2
    sim.pipeline.close()
    assert not list(path.parent.iterdir())
    assert not serving()
    with pytest.raises(b.PipelineClosed, match="not served any more"):
        sim.pipeline.serve_stats(path)


def left_to_the_collector(path: Path) -> b.StatsSocket:
    served = Simulation().pipeline.serve_stats(path)
    gc.collect()
    return served


def test_it_ends_with_a_pipeline_that_nobody_holds(path: Path) -> None:
    with pytest.warns(ResourceWarning, match="unclosed"):
        served = left_to_the_collector(path)
    until(lambda: not serving())
    assert not path.exists()
    served.close()


def test_another_s_file_at_its_path_is_left_alone(sim: Simulation, path: Path) -> None:
    with sim.pipeline.serve_stats(path):
        path.unlink()
        path.write_text("mine")
    assert path.read_text() == "mine"


def test_a_dead_socket_is_replaced_and_a_living_one_is_refused(sim: Simulation, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with sim.pipeline.serve_stats(path):
        with pytest.raises(b.StatsSocketError, match=r"a living process serves there .* a path of its own") as refused:
            sim.pipeline.serve_stats(path)
        assert (refused.value.errno, refused.value.filename) == (errno.EADDRINUSE, str(path))
        assert asked(path)[0] == 200


def test_one_whose_backlog_is_full_is_alive(sim: Simulation, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as held:
        busy.bind(str(path))
        busy.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                client = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
                client.connect(str(path))
        with pytest.raises(b.StatsSocketError, match="a living process"):
            sim.pipeline.serve_stats(path)


def test_what_is_no_socket_is_left_alone(sim: Simulation, path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(b.StatsSocketError, match="no socket is there, and is left alone") as refused:
        sim.pipeline.serve_stats(path)
    assert refused.value.errno == errno.EEXIST
    assert path.read_text() == "mine"
    path.unlink()
    path.symlink_to("elsewhere")
    with pytest.raises(b.StatsSocketError, match="no socket is there"):
        sim.pipeline.serve_stats(path)


def test_a_path_that_no_socket_can_have_is_refused(sim: Simulation, tmp_path: Path) -> None:
    long = tmp_path / ("é" * 60)
    with pytest.raises(b.StatsSocketError, match=r"has at most 107 bytes, this one has \d+; use a shorter") as refused:
        sim.pipeline.serve_stats(long)
    assert refused.value.errno == errno.ENAMETOOLONG
    with pytest.raises(b.StatsSocketError, match="its folder does not exist") as refused:
        sim.pipeline.serve_stats(tmp_path / "none" / "lane.sock")
    assert refused.value.errno == errno.ENOENT
    of_no_path: tuple[Any, ...] = (b"bytes", 7, None)
    for wrong in of_no_path:
        with pytest.raises(TypeError, match="path must be that of a socket"):
            sim.pipeline.serve_stats(wrong)
    for empty in ("", "a\0b"):
        with pytest.raises(ValueError, match="path is "):
            sim.pipeline.serve_stats(empty)
    with pytest.raises(TypeError, match="name must be a str"):
        sim.pipeline.serve_stats(tmp_path / "x", name=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name is a str of 300 characters"):
        sim.pipeline.serve_stats(tmp_path / "x", name="n" * 300)
    assert not list(tmp_path.iterdir())
    assert not serving()


def test_the_longest_path_that_there_is_serves(sim: Simulation, tmp_path: Path) -> None:
    longest = tmp_path / ("x" * (_stats_listener.BYTES_MOST - len(str(tmp_path)) - 1))
    with sim.pipeline.serve_stats(longest):
        assert asked(longest)[0] == 200


# --- processes -------------------------------------------------------------------------------------------------------

FORKS = """
import os, signal, sys, time
from boundedgen import PipelineClosed
from boundedgen.testing import Simulation
sim = Simulation()
served = sim.pipeline.serve_stats(sys.argv[1])
child = os.fork()
if child == 0:
    try:
        sim.pipeline.serve_stats(sys.argv[1] + "2")
    except PipelineClosed as error:
        print("refused:", error, flush=True)
    served.close()
    sim.pipeline.close()
    print(os.path.exists(sys.argv[1]), os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def test_a_fork_does_not_serve_and_does_not_keep_a_dead_server_s_socket_alive(sim: Simulation, path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        refused, (there, child) = server.stdout.readline(), server.stdout.readline().split()
        try:
            assert "after a fork, build one of your own" in refused
            assert there == "True", "the fork has removed its parent's file"
            assert asked(path)[0] == 200
            server.kill()
            server.wait(ENDS)
            with sim.pipeline.serve_stats(path):
                assert asked(path)[0] == 200
        finally:
            server.kill()
            os.kill(int(child), signal.SIGKILL)


def test_a_process_that_ends_with_it_open_says_nothing(path: Path) -> None:
    code = (
        "import sys; from boundedgen.testing import Simulation\n"
        "with Simulation() as sim:\n    sim.pipeline.serve_stats(sys.argv[1])\nprint('over')"
    )
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", code, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "over\n", "")
    assert not path.exists()


@pytest.mark.parametrize("what", ["Bell", "Listener", "threading.Thread"])
def test_where_it_cannot_be_opened_nothing_is_left(
    sim: Simulation, path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """No descriptor left, no thread: the fixture looks at the rest."""

    class NoneLeft(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    def none_left(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    place = f"boundedgen._stats_socket.{what}"
    monkeypatch.setattr(place, NoneLeft if "Thread" in what else none_left)
    with pytest.raises((OSError, RuntimeError)):
        sim.pipeline.serve_stats(path)
    monkeypatch.undo()
    assert not path.exists()
    with sim.pipeline.serve_stats(path):
        assert asked(path)[0] == 200
