"""How `top` asks: of lanes that answer, and of what is none, hangs, drips or lies; and its command line."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from boundedgen.__main__ import main
from boundedgen._top import _lanes, _terminal
from boundedgen._top._lanes import Lane, NoAnswerError, Watch, ask
from boundedgen.testing import Simulation

OK = b"HTTP/1.1 200 OK\r\n"


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server over TCP on this machine, which answers each connection so, one after the other: its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.recv(1 << 16)
                        answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def with_body(body: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def why(address: str, patience: float = 5.0) -> str:
    with pytest.raises(NoAnswerError) as refused:
        ask(address, patience)
    return str(refused.value)


def hang(connection: socket.socket) -> None:
    connection.settimeout(10)
    connection.recv(1)


def drip(connection: socket.socket) -> None:
    connection.sendall(OK + b"Content-Length: 1000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.02)


# --- asking ----------------------------------------------------------------------------------------------------------


def test_a_url_and_a_socket_are_asked_alike(tmp_path: Path) -> None:
    with Simulation() as sim, sim.pipeline.serve_stats(tmp_path / "lane.sock", name="gpu-0"):
        document = sim.pipeline.stats_document("gpu-0")
        told = json.loads(json.dumps(document))
        assert ask(str(tmp_path / "lane.sock")) == told
        with answering(with_body(json.dumps(document).encode())) as url:
            assert ask(url) == told
            assert ask(f"{url}/lane/3?x=y") == told


def test_what_does_not_answer_is_named(tmp_path: Path) -> None:
    assert why(str(tmp_path / "none.sock")) == "there is no such socket: its process has ended, or serves elsewhere"
    assert why("localhost:1/stats").endswith("for a URL write http://localhost:1/stats")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead.sock"))
    assert why(str(tmp_path / "dead.sock")) == "nobody listens there"
    (tmp_path / "file").write_text("x")
    assert why(str(tmp_path / "file")) == why(str(tmp_path)) == "that is no socket"
    assert why("/" + "x" * 200)
    with answering(with_body(b"x")) as url:
        port = url
    assert why(port) == "nobody listens there"


def test_a_socket_of_somebody_else_says_who_may_open_it() -> None:
    """Said of the error, since root may open everything."""
    assert (
        _lanes._why(PermissionError(13, "x"), "/x.sock") == "this user may not open it: run this as the server's user"
    )
    assert _lanes._why(PermissionError(13, "x"), "http://x") == "x"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda connection: None, "Remote end closed connection without response"),
        (lambda connection: connection.sendall(b"\x1b[2J rubbish\r\n\r\n"), "\\x1b[2J rubbish"),
        (lambda connection: connection.sendall(b"HTTP/1.1 503 Gone\x1b[1m\r\n\r\n"), "HTTP 503 Gone\\x1b[1m"),
        (
            lambda connection: connection.sendall(b"HTTP/1.1 404 No\r\n\r\n"),
            "404 No; is it the page of pipeline.stats_d",
        ),
        (with_body(b"<html>"), "the answer is no JSON; is it the page of pipeline.stats_document()?"),
        (with_body(b"[" * 100_000), "the answer is no JSON"),
        (with_body(b"[]"), "the answer is not pipeline.stats_document()"),
        (with_body(b'{"health": {"a": 1}, "stats": 3}'), "the answer is not pipeline.stats_document()"),
        (lambda connection: connection.sendall(OK + b"Content-Length: 9\r\n\r\nx"), "the answer is no JSON"),
    ],
)
def test_what_answers_otherwise_is_named(answer: Callable[[socket.socket], None], expected: str) -> None:
    with answering(answer) as url:
        assert expected in why(url)


@pytest.mark.parametrize("answer", [hang, drip])
def test_what_hangs_or_drips_is_given_up(answer: Callable[[socket.socket], None]) -> None:
    with answering(answer) as url:
        began = time.monotonic()
        assert why(url, 0.3) == "no answer within 0.3 s"
        assert time.monotonic() - began < 3


def test_what_is_too_much_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lanes, "BYTES_MOST", 1 << 20)
    with answering(with_body(b" " * (2 << 20))) as url:
        assert why(url) == "the answer has more than 1 MiB"


# --- a lane over time ------------------------------------------------------------------------------------------------


def test_a_lane_that_stops_answering_keeps_what_it_said_and_since_when(tmp_path: Path) -> None:
    path = str(tmp_path / "lane.sock")
    lane = Lane(path, patience=0.2)
    assert lane.seen().problem == "not asked yet"
    with Simulation() as sim:
        with sim.pipeline.serve_stats(path, name="gpu-0"):
            lane.ask()
            first = lane.seen()
            assert (first.problem, first.name, first.before_s) == ("", "gpu-0", 0.0)
            assert first.lately("finished_total") == {}
            sim.pipeline.generate("x", max_new_tokens=3)
            end = time.monotonic() + 10
            while not lane.seen().lately("finished_total"):  # what was made a moment before is told once more
                assert time.monotonic() < end
                lane.ask()
            assert lane.seen().lately("finished_total") == {"length": 1}
        lane.ask()
        gone = lane.seen()
        assert gone.problem.startswith("there is no such socket")
        assert gone.name == "gpu-0"
        assert 0 < gone.silent_s == gone.answered_ago_s
        with sim.pipeline.serve_stats(path, name="gpu-0"):
            lane.ask()
        assert lane.seen().problem == ""


def test_one_that_hangs_is_said_not_to_answer_and_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    path = str(tmp_path / "lane.sock")
    with Simulation() as sim, sim.pipeline.serve_stats(path), answering(drip) as url:
        lanes = [Lane(url, patience=0.1), Lane(path, patience=5)]
        watch = Watch(lanes, every=0.05)
        try:
            end = time.monotonic() + 10
            while lanes[1].seen().document is None or not lanes[0].seen().problem.startswith("no answer within"):
                assert time.monotonic() < end
                time.sleep(0.01)
            assert lanes[1].seen().problem == ""
        finally:
            watch.close()


# --- the command line ------------------------------------------------------------------------------------------------


def test_once_prints_a_frame_and_its_status_is_for_scripts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "lane.sock")
    with Simulation() as sim, sim.pipeline.serve_stats(path, name="gpu-0"):
        assert main(["top", "--once", path]) == 0
        assert "READY  gpu-0" in capfd.readouterr().out
        assert main(["top", "--once", path, path + "x"]) == 2
        said = capfd.readouterr().out
        assert "1 of 2 lanes ready" in said
        assert "NO ANSWER" in said
        sim.pipeline.serve_stats(path + "2")
    assert main(["top", "--once", path]) == 2


@pytest.mark.parametrize("more", [["--once"], ["--every", "0.1"]])
def test_whoever_has_read_enough_ends_it_with_the_status_of_the_lanes(tmp_path: Path, more: list[str]) -> None:
    """`top --once LANE | grep -q READY`, in a script with pipefail."""
    path = str(tmp_path / "lane.sock")
    with Simulation() as sim, sim.pipeline.serve_stats(path):
        command = [sys.executable, "-W", "error", "-m", "boundedgen", "top", path, *more]
        shown = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert shown.stdout is not None
        assert shown.stderr is not None
        shown.stdout.close()
        with shown.stderr as said:
            assert (said.read(), shown.wait(30.0)) == (b"", 0)


def test_a_lane_that_is_not_ready_is_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sim = Simulation()
    with sim.pipeline.serve_stats(tmp_path / "lane.sock"):
        assert main(["top", "--once", str(tmp_path / "lane.sock")]) == 1
        assert "STARTING" in capfd.readouterr().out
    sim.close()


@pytest.mark.parametrize("argument", ["", "ftp://x/stats", "http://", "http://x:port/"])
def test_what_is_no_address_is_refused(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", argument]) == 2
    assert "boundedgen top: " in capsys.readouterr().err


def run(code: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    given = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, timeout=30, env=given)


def test_without_rich_it_says_what_to_install_and_the_rest_works() -> None:
    code = "import sys; sys.modules['rich'] = None\nfrom boundedgen.__main__ import main\n"
    ended = run(f"{code}sys.exit(main(['top', '--once', 'x']))")
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert ended.stderr == b"boundedgen top needs rich: pip install 'boundedgen[top]'\n"
    assert run(f"{code}main(['incident', 'nowhere'])").returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whoever_presses_ctrl_c_again_does_not_interrupt_what_gives_the_terminal_back(number: int) -> None:
    before, given_back = signal.getsignal(number), False
    with contextlib.suppress(KeyboardInterrupt), _terminal._told_to_end():
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)
            signal.raise_signal(signal.SIGINT)
            given_back = True
    assert given_back
    assert signal.getsignal(number) is before


def test_a_terminal_that_knows_ascii_only_gets_that(tmp_path: Path) -> None:
    path = str(tmp_path / "lane.sock")
    with Simulation() as sim, sim.pipeline.serve_stats(path, name="größe"):
        sim.pipeline.generate("x", max_new_tokens=3)
        code = f"import sys; from boundedgen.__main__ import main; sys.exit(main(['top', '--once', {path!r}]))"
        ended = run(code, PYTHONIOENCODING="ascii", LC_ALL="C", TERM="dumb")
        assert (ended.returncode, ended.stderr) == (0, b"")
        assert ended.stdout.isascii()
        assert b"gr??e" in ended.stdout
        assert b"\x1b" not in ended.stdout
