"""The black box of a pipeline: the driver hands over what it knows of a lost engine, a thread has it written aside.

The driver reads no file and waits for nothing here. A killed engine gets a stay of execution of at most
`Limits.evidence` seconds, at the end of which the driver kills it, whatever has become of the evidence. Everything that
can block, /proc of a hung process as well as the disk, is read and written by a disposable process, `_witness`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

from attrs import define, evolve, field, frozen

from boundedgen._arguments import kind_of, reading, short
from boundedgen._blackbox import _witness
from boundedgen._blackbox._scene import RawStep, Scene, incident, input_lines, last_that_fit, scene_of, steps_lines
from boundedgen._bounds import Limits
from boundedgen._core import _events as ev
from boundedgen._core._life import Death
from boundedgen._engine._stacks import Sight
from boundedgen._observing import stats_of

if TYPE_CHECKING:
    from boundedgen._driver import Driver

logger = logging.getLogger(__name__)

STEPS_KEPT = 500
AT_ONCE_MOST = 3  #: incidents that are being written; one more is not kept
AFTERWARDS = 2.0  #: seconds to look at the machine when there is no process to be looked at
PATIENCE = 10.0  #: seconds that writing may take
OF_THE_WITNESS = 4096  #: bytes of incident.json
ENGINE_DIED = "the process had ended before anybody could look at it; what it said last is in output.txt"
SHARE = {"incident.json": 1 / 8, "inputs.jsonl": 1 / 2, "steps.jsonl": 1 / 16, "output.txt": 1 / 16}  # of the bytes


@runtime_checkable
class Visible(Protocol):
    """A link of an engine that is a process."""

    def sight(self) -> Sight: ...


@frozen
class Doomed:
    """An engine that is to be killed: at `until`, or as soon as nothing more is wanted of it."""

    incarnation: int
    until: float
    folder: Folder

    def due(self, now: float) -> bool:
        return now >= self.until or self.folder.witnessed


@final
class BlackBox:
    """Used by the driver's thread, but for `join`."""

    def __init__(
        self,
        where: Path,
        limits: Limits,
        configuration: Mapping[str, Any],
    ) -> None:
        self.about = About(where, limits, configuration)
        self.rejected: Callable[[], dict[str, int]] = dict  #: refusals, by name of the error
        self._limits = limits
        self._steps: deque[RawStep] = deque(maxlen=STEPS_KEPT)
        self._to_begin: list[Folder] = []
        self._begun: list[Folder] = []
        self._seen = 0  # the last incarnation whose loss is being kept

    def heard(self, report: ev.Progress, live: int) -> None:
        """The flight recorder."""
        self._steps.append((report.steps, report.began, report.ended, report.scheduled, report.usage, live))

    def killing(self, driver: Driver, effect: ev.Kill, now: float) -> Doomed | None:
        """Its callers are answered. None: there is nothing to wait for, kill it now."""
        death = driver.governor.life.death or Death(effect.cause, effect.detail)
        box = min(self._limits.evidence, self._limits.reap / 2)
        scene, link = self._scene(driver, now), driver.link
        sight = link.sight() if isinstance(link, Visible) and box > 0 else None
        if sight is None:
            self._to_begin.append(Folder(self.about, scene, death, None, "", AFTERWARDS))
            return None
        folder = Folder(self.about, scene, death, sight, sight.output, box)
        self._to_begin.append(folder)
        return Doomed(effect.incarnation, now + box, folder)

    def before_the_end(self, driver: Driver, now: float) -> Scene | None:
        """The process is gone, and the governor has not heard of it. None: this is no incident, or known as one."""
        life = driver.governor.life
        return None if life.orderly or life.incarnation == self._seen else self._scene(driver, now)

    def ended(self, driver: Driver, scene: Scene, report: ev.Exited) -> None:
        """The governor has heard of it, and knows the cause."""
        life = driver.governor.life
        if life.death is not None:
            scene = evolve(scene, failures=life.failures, exit_status=report.status)
            self._to_begin.append(Folder(self.about, scene, life.death, None, report.text, AFTERWARDS))

    def begin(self) -> None:
        """At the end of a wake: everybody who waited for the engine is answered."""
        folders, self._to_begin = self._to_begin, []
        self._begun = [folder for folder in self._begun if folder.busy()]
        for folder in folders:
            folder.scene.answered()
            if len(self._begun) < AT_ONCE_MOST and folder.begin():
                self._begun.append(folder)
            else:
                folder.give_up()

    def join(self, timeout: float) -> None:
        """Wait for what is being written. From any thread."""
        until = time.monotonic() + timeout
        for folder in list(self._begun):
            folder.join(max(0.0, until - time.monotonic()))

    def _scene(self, driver: Driver, now: float) -> Scene:
        stats = stats_of(driver, self.rejected(), now, sequences=False)
        scene = scene_of(driver, stats, self._steps, time.time(), now)
        self._steps.clear()
        self._seen = scene.incarnation
        return scene


# --- one incident ----------------------------------------------------------------------------------------------------


@define(eq=False)
class About:
    """What all incidents of a pipeline have in common."""

    where: Path
    limits: Limits
    configuration: Mapping[str, Any]
    model: str = ""  #: its name, for the log
    ring: Callable[[], object] = bool  #: wakes the driver
    beside: Callable[[Callable[[], object]], object] = bool  #: has it done by another thread than the driver's
    witness: Sequence[str] = (sys.executable, "-I", "-S", _witness.__file__)
    complained: bool = False  #: that it could not be written; once, until it can be again
    first_of_row: str = ""  #: the incident that the present row of failures began with
    oom_kills: int | None = field(
        factory=_witness.oom_kills
    )  #: as counted last; this needs no engine, and cannot block

    def row(self, name: str, failures: int) -> str:
        """The first incident of the row that this one is in."""
        if failures <= 1 or not self.first_of_row:
            self.first_of_row = name
        return self.first_of_row

    def complain(self, why: str) -> None:
        if not self.complained:
            self.complained = True
            text, extra = "the black box of a lost engine could not be written to %s: %s", {"event": "incident_lost"}
            about = {"model": self.model, "black_box": str(self.where), "detail": why}
            logger.error(text, self.where, why, extra={**extra, **about})

    def kept(self, name: str, scene: Scene) -> None:
        self.complained = False
        text, folder = "what is known of the loss of engine %d is in %s", str(self.where / name)
        about = {"model": self.model, "incarnation": scene.incarnation, "incident": folder}
        logger.warning(text, scene.incarnation, folder, extra={"event": "incident_kept", **about})


@final
class Folder:
    """One folder in the making, by a thread of its own. `sight` None: there is no process to look at any more."""

    def __init__(self, about: About, scene: Scene, death: Death, sight: Sight | None, output: str, box: float) -> None:
        self.witnessed = sight is None  #: nothing more is wanted of the process
        self._about, self.scene, self._death, self._sight, self._output = about, scene, death, sight, output
        self._box = box
        self._first = about.row(self.name, scene.failures)
        self._thread = threading.Thread(target=self._run, name="boundedgen-blackbox", daemon=True)

    def begin(self) -> bool:
        """False: no thread can be started."""
        try:
            self._thread.start()
        except RuntimeError:
            return False
        return True

    def busy(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def give_up(self) -> None:
        """It will not be written."""
        self._let_go()
        why = "too many are being written, or no thread can be started"
        self._about.beside(lambda: self._failed(why))  # this is the driver's thread

    def _failed(self, why: str) -> None:
        """The next one begins the row, if this one was to."""
        if self._about.first_of_row == self.name:
            self._about.first_of_row = ""
        self._about.complain(why)

    def _let_go(self) -> None:
        sight, self._sight = self._sight, None
        if sight is not None:
            sight.close()
        self.witnessed = True
        self._about.ring()

    @property
    def name(self) -> str:
        when = datetime.fromtimestamp(self.scene.wall, UTC)
        stamp = f"{when:%Y%m%dT%H%M%S}.{when.microsecond // 1000:03}Z"
        return f"{stamp}-{self.scene.pid}-{self.scene.incarnation}-{self._death.cause.value}"

    def _run(self) -> None:
        try:
            self._end(self._have_it_written())
        except Exception as error:
            self._failed(f"{type(error).__name__}: {error}")
        finally:
            self._let_go()

    def _have_it_written(self) -> str:
        """The witness's last words."""
        until = time.monotonic() + self._box
        last = until + PATIENCE
        process = self._witness(until, last)
        try:
            words = _until_gathered(process, until)
            self._let_go()
            rest, _ = process.communicate(self._told(), timeout=max(0.1, last - time.monotonic()))
            return (words + rest).decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            return f"it was not written within {PATIENCE:g} s"
        finally:
            _dispose(process)

    def _witness(self, until: float, last: float) -> subprocess.Popen[bytes]:
        about, sight = self._about, self._sight
        seen = (self.scene.pid, -1, -1) if sight is None else (sight.pid, sight.pidfd, sight.stacks)
        limits = about.limits
        arguments = (
            about.where,
            self.name,
            limits.incidents_kept,
            limits.incident_bytes,
            until,
            last,
            *seen,
            self.scene.started_at,
        )
        return subprocess.Popen(
            [*about.witness, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            pass_fds=() if sight is None else (sight.pidfd, sight.stacks),
            process_group=0,
        )

    def _told(self) -> bytes:
        """What the server itself knows, for the witness to write."""
        scene, limits, about = self.scene, self._about.limits, self._about
        room = {name: int(limits.incident_bytes * share) for name, share in SHARE.items()}
        told = incident(scene, self._death, limits, about.configuration, room["incident.json"] - OF_THE_WITNESS)
        told["first_of_row"] = self._first
        files = {
            "steps.jsonl": last_that_fit(steps_lines(scene), room["steps.jsonl"]),
            "inputs.jsonl": last_that_fit(input_lines(scene.inputs), room["inputs.jsonl"]),
            "output.txt": last_that_fit(self._output.splitlines(), room["output.txt"]),
        }
        rest = {"no_stack": ENGINE_DIED, "oom_kills_before": about.oom_kills}
        return json.dumps({"incident": told, "files": files, **rest}).encode("utf-8", "replace")

    def _end(self, words: str) -> None:
        last = words.strip().rpartition("\n")[2]
        if (counted := re.search(r"^counted (\d+)$", words, re.MULTILINE)) is not None:
            self._about.oom_kills = int(counted[1])
        if last == f"wrote {self.name}":
            self._about.kept(self.name, self.scene)
        else:
            self._failed(last.removeprefix("failed: ") or "the process that writes it has ended")


def _until_gathered(process: subprocess.Popen[bytes], until: float) -> bytes:
    """What it said up to then, at `until` at the latest."""
    assert process.stdout is not None
    words = b""
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    while b"gathered\n" not in words and (left := until - time.monotonic()) > 0:
        if poll.poll(left * 1000):
            said = os.read(process.stdout.fileno(), 1 << 12)
            if not said:
                break
            words += said
    return words


_left_behind: list[subprocess.Popen[bytes]] = []  # killed, and stuck inside the kernel


def _dispose(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(0.5)
    except subprocess.TimeoutExpired:
        _left_behind.append(process)
    for other in [one for one in _left_behind if one.poll() is not None]:
        _left_behind.remove(other)


# --- the constructor's argument --------------------------------------------------------------------------------------


def box_of(black_box: object, limits: Limits, configuration: Mapping[str, Any]) -> BlackBox | None:
    """None: there is to be none. TypeError and ValueError name `black_box`."""
    return None if black_box is None else BlackBox(folder_for(black_box), limits, configuration)


def install(box: BlackBox | None, driver: Driver, rejected: Callable[[], dict[str, int]]) -> None:
    """Before the driver is started. The box knows nothing of the driver but how to wake it."""
    if box is not None:
        box.about.beside, box.about.model = driver.beside, driver.journal.model
        box.rejected, box.about.ring, driver.leaving.black_box = rejected, driver.ring, box


def folder_for(black_box: object) -> Path:
    """A folder that can be written to, made if it is not there."""
    if not isinstance(black_box, str | os.PathLike):
        raise TypeError(f"black_box must be the path of a folder, not {kind_of(black_box)}")
    with reading("black_box", TypeError):
        path = os.fspath(black_box)
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError(f"black_box is {short(path)}; give the path of a folder, as a str")
    where = Path(os.path.abspath(path))
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".boundedgen-", dir=where) as probe:
            Path(probe, "probe").write_bytes(bytes(4096))
    except FileExistsError:
        raise ValueError(f"black_box is {short(path)}, which is not a folder") from None
    except OSError as error:
        raise ValueError(f"black_box is {short(path)}, which cannot be written to: {error.strerror}") from error
    return where
