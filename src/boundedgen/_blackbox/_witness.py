"""The disposable process that looks at a lost engine and writes the folder. Standard library only: it is run as a file.

    python -I -S _witness.py FOLDER NAME KEEP BYTES UNTIL LAST PID PIDFD STACKS STARTED

Reading /proc and /sys of a process that is stuck inside a driver can block for ever, and so can writing to a disk that
is gone. So neither is done in the server's process; and here each kind of evidence is gathered in a thread of its own,
which is left behind when it does not come back. "gathered" on the standard output: nothing more is wanted of the engine
(at UNTIL, a monotonic instant, at the latest). Then what the server knows is read from the standard input, as JSON, and
all of it is written. The last line says "wrote NAME" or "failed: …". At LAST it ends, whatever it does.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z-\d+-\d+-[a-z_]+")
MARGIN = 0.15  #: seconds before UNTIL at which what has not answered is given up
THREADS = 256  #: described one by one
SMALL = 1 << 16  #: bytes read of one file of the kernel's
STACK_WAIT = 0.8  #: seconds for the engine to write its stacks
SHARE = {"stacks.txt": 1 / 16, "threads.txt": 1 / 8, "machine.txt": 1 / 16}  # of BYTES
KERNEL_LINES, NAMING, LINE = 200, 10, 300  #: those that name the engine go into incident.json, of so many characters
KERNEL_WORDS = re.compile(
    r"\b(xe|i915|drm|gpu|oom|oom_reaper|segfault)\b|out of memory|killed process|hung task|blocked for more than"
    r"|\btraps: |general protection",
    re.IGNORECASE,
)
KERNEL_SLACK = 2.0  #: seconds that the log's clock may differ by
MOMENT = 10.0  #: seconds: a line that has the engine's name, not its pid, is about it if it is no older
Naming = Callable[[str, float], bool]  # a line, and its age
Lines = list[str]
UNLIMITED = 1 << 60  #: bytes: what control groups of version 1 say where there is no limit


def read(path: str | Path, most: int = SMALL) -> str:
    """The beginning of a file, or why it cannot be read, in angle brackets."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(most).decode("utf-8", "replace").strip()
    except OSError as error:
        return f"<not readable: {error.strerror}>"


def names(folder: str | Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def there(text: str) -> bool:
    return not text.startswith("<not readable")


# --- of the process --------------------------------------------------------------------------------------------------


def state_of(task: str) -> str:
    """The letter that the kernel gives: R, S, D, T, Z, …"""
    stat = read(f"{task}/stat")
    return stat.rpartition(")")[2].split()[0] if there(stat) and ")" in stat else "?"


def threads(pid: int) -> Iterator[str]:
    """State, wait channel, system call and kernel stack of each."""
    tasks = sorted(names(f"/proc/{pid}/task"), key=int)
    if not tasks:
        yield "the process was gone"
        return
    yield f"{len(tasks)} threads; R running, S sleeping, D stuck inside the kernel, T stopped; wchan 0: outside of it"
    for number in tasks[:THREADS]:
        task = f"/proc/{pid}/task/{number}"
        yield f"\nthread {number} ({read(f'{task}/comm')}){' main' if int(number) == pid else ''}: {state_of(task)}"
        yield f"  wchan    {read(f'{task}/wchan')}"
        yield f"  syscall  {read(f'{task}/syscall')}"
        stack = read(f"{task}/stack").splitlines() or ["<empty>"]
        yield from (f"  {'stack' if n == 0 else '':8} {line}" for n, line in enumerate(stack[:24]))


def memory(pid: int) -> Iterator[str]:
    """Of the process, and how much the kernel wants to end it."""
    wanted = re.compile(r"(State|Threads|Vm(Peak|Size|HWM|RSS|Swap)|Rss\w*|Sig(Q|Pnd|Blk)|ShdPnd)\b")
    status = read(f"/proc/{pid}/status").splitlines()
    yield from (line for line in status if wanted.match(line) or line.startswith("<"))
    yield f"oom_score {read(f'/proc/{pid}/oom_score')}, oom_score_adj {read(f'/proc/{pid}/oom_score_adj')}"


def mappings(pid: int) -> Iterator[str]:
    """Needs the lock of the process's memory, which a hung one may hold."""
    yield read(f"/proc/{pid}/smaps_rollup")


def of_the_device(pid: int) -> Iterator[str]:
    """What the graphics driver tells of this process: engine times and memory by client."""
    for number in names(f"/proc/{pid}/fdinfo"):
        lines = [line for line in read(f"/proc/{pid}/fdinfo/{number}").splitlines() if line.startswith("drm-")]
        if lines:
            yield f"descriptor {number}"
            yield from (f"  {line}" for line in lines)


def stacks(pid: int, pidfd: int, memory_fd: int) -> Iterator[str]:
    """Ask for them; one that is stopped is continued for it: nobody listens to it any more."""
    before, size = state_of(f"/proc/{pid}"), os.fstat(memory_fd).st_size
    signal.pidfd_send_signal(pidfd, signal.SIGUSR2)
    if before == "T":
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        yield "the process was stopped (SIGSTOP or the like) and was continued for this, after it had been given up"
    text = written(memory_fd, size)
    if text:
        yield text
    else:
        now = state_of(f"/proc/{pid}/task/{pid}")
        yield f"no stack: it was asked and has not answered within {STACK_WAIT:g} s; its main thread is in state {now}"


def written(memory_fd: int, begin: int) -> str:
    """What the engine wrote of its stacks beyond `begin`, once it has stopped growing."""
    size, end = begin, time.monotonic() + STACK_WAIT
    while time.monotonic() < end:
        time.sleep(0.02)
        grown = os.fstat(memory_fd).st_size
        if begin < grown == size:
            break
        size = grown
    return os.pread(memory_fd, size - begin, begin).decode("utf-8", "replace").strip() if size > begin else ""


# --- of the machine --------------------------------------------------------------------------------------------------


def groups() -> Iterator[Path]:
    """The control groups of this server and its engines that may count memory."""
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            root = Path("/sys/fs/cgroup") / controllers
            yield next((p for p in (root / path.lstrip("/"), root) if names(p)), root)


def control_groups(facts: dict[str, Any]) -> Iterator[str]:
    """Memory that this server and its engines may have together, and how often they wanted more."""
    facts["oom_kills"], facts["memory"] = oom_kills(), memory_of_groups()
    for at in groups():
        for name in names(at):
            if re.fullmatch(
                r"memory\.(current|max|high|peak|events|pressure|usage_in_bytes|limit_in_bytes"
                r"|max_usage_in_bytes|failcnt|oom_control|swap\.current|swap\.max)",
                name,
            ):
                yield f"{at / name}: {'; '.join(read(at / name).splitlines())}"


def memory_of_groups() -> dict[str, int | None]:
    """Bytes used now, at most so far, and allowed; None: not known, or no limit."""
    return {
        "used": _number("memory.current", "memory.usage_in_bytes"),
        "most": _number("memory.peak", "memory.max_usage_in_bytes"),
        "limit": _number("memory.max", "memory.limit_in_bytes"),
    }


def _number(*files: str) -> int | None:
    found = [text for at in groups() for file in files if (text := read(at / file)).isdigit()]
    return int(found[0]) if found and int(found[0]) < UNLIMITED else None


def oom_kills() -> int | None:
    """Processes that the kernel has ended for want of memory: of this group or, where that does not say, of all."""
    counters = [at / file for at in groups() for file in ("memory.events", "memory.oom_control")]
    for counter in (*counters, Path("/proc/vmstat")):
        if (found := re.search(r"^oom_kill (\d+)$", read(counter), re.MULTILINE)) is not None:
            return int(found[1])
    return None


def load() -> Iterator[str]:
    yield f"/proc/loadavg: {read('/proc/loadavg')}"
    yield from (line for line in read("/proc/meminfo").splitlines() if re.match("(MemTotal|MemAvailable|Swap)", line))
    for name in names("/proc/pressure"):
        yield f"/proc/pressure/{name}: {'; '.join(read(f'/proc/pressure/{name}').splitlines())}"


def kernel_log(pid: int, started: float, facts: dict[str, Any]) -> Iterator[str]:
    """Its lines since the engine was started about graphics, memory that ran out and crashes, and all that name it."""
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        facts["kernel_log_not_readable"] = str(error.strerror)
        yield f"<not readable: {error.strerror}>"
        return
    now = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)  # which nobody adjusts either
    found, naming = told_since(messages(log), now, time.monotonic() - started, naming_it(pid))
    os.close(log)
    facts["kernel_log"] = [line[:LINE] for line in naming[-NAMING:]]
    yield from found[-KERNEL_LINES:] or ["nothing about graphics, memory or crashes since the engine was started"]


def messages(log: int) -> Iterator[tuple[float, str]]:
    """Seconds on the log's own clock, and what was said."""
    with contextlib.suppress(BlockingIOError):
        while True:
            with contextlib.suppress(BrokenPipeError):  # it was overwritten while it was read: the next one is there
                head, _, text = os.read(log, 1 << 13).decode("utf-8", "replace").partition(";")
                yield int(head.split(",")[2]) / 1e6, text.splitlines()[0] if text else ""


def naming_it(pid: int) -> Naming:
    """Whether a line of that age is about the engine. Within a container the kernel's log may have other pids than we,
    and a thread that crashes has one of its own; a crash is told with the name then.
    """
    by_pid = re.compile(rf"(process |pid[ =:]+|[\[(:] ?){pid}\b")
    comm = next((text for at in (pid, "self") if there(text := read(f"/proc/{at}/comm"))), "")  # the same executable
    by_name = re.compile(rf"\b{re.escape(comm)}\b" if comm else "(?!)")
    return lambda line, age: bool((pid and by_pid.search(line)) or (age <= MOMENT and by_name.search(line)))


def told_since(log: Iterable[tuple[float, str]], now: float, lived: float, naming: Naming) -> tuple[Lines, Lines]:
    """With the time of day: all that matter and are no older than the engine, and those that name it."""
    found, about_it, wall = [], [], time.time()
    for at, text in log:
        age = now - at
        if age > lived + KERNEL_SLACK:
            continue
        when = datetime.fromtimestamp(wall - age, UTC)
        line = f"{when:%Y-%m-%dT%H:%M:%SZ} [{at:.6f}] {text}"
        about_it += [line] if (named := naming(text, age)) else []
        found += [line] if named or KERNEL_WORDS.search(text) else []
    return found, about_it


def graphics() -> Iterator[str]:
    """Frequencies, throttling and errors of i915 and xe."""
    cards = [Path("/sys/class/drm") / name for name in names("/sys/class/drm") if re.fullmatch(r"card\d+", name)]
    known = ("gt_*_freq_mhz", "gt/gt*/rps_*_freq_mhz", "gt/gt*/throttle_reason_*", "error", "device/power/runtime_*",
             "device/tile*/gt*/freq*/*_freq", "device/tile*/gt*/freq*/throttle/*", "engine/*/name",
             "device/tile*/gt*/gtidle/*", "device/devcoredump/failing_device")  # fmt: skip
    for card in cards:
        for pattern in known:
            yield from (f"{path}: {read(path, 4096)}" for path in sorted(card.glob(pattern)) if path.is_file())
    if not cards:
        yield "there is no /sys/class/drm/card*"


# --- gathering -------------------------------------------------------------------------------------------------------

Source = Callable[[], Iterable[str]]
Kind = tuple[str, str, Source]  # the file, a title in it


class Gathering:
    """One kind of evidence. `text` is what there is of it so far."""

    def __init__(self, file: str, title: str, source: Source) -> None:
        self.file, self.title, self._source = file, title, source
        self._lines: list[str] = []
        self._done = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for line in self._source():
                self._lines.append(line)
        except Exception as error:
            self._lines.append(f"<{type(error).__name__}: {error}>")
        self._done = True

    def over(self, until: float) -> bool:
        self._thread.join(max(0.0, until - time.monotonic()))
        return self._done

    @property
    def text(self) -> str:
        left = "" if self._done else "\n<this did not come to an end in time>"
        return f"== {self.title}\n" + ("\n".join(self._lines) or "nothing") + left + "\n"


def sources(pid: int, pidfd: int, stack_memory: int, started: float, facts: dict[str, Any]) -> list[Kind]:
    """`facts`: what of it goes into incident.json as well."""
    machine: list[Kind] = [
        ("machine.txt", "control group", lambda: control_groups(facts)),
        ("machine.txt", "load and memory", load),
        ("machine.txt", "kernel log", lambda: kernel_log(pid, started, facts)),
        ("machine.txt", "graphics", graphics),
    ]
    if pidfd < 0:
        return machine
    return [
        ("threads.txt", "threads", lambda: threads(pid)),
        ("stacks.txt", "Python stacks", lambda: stacks(pid, pidfd, stack_memory)),
        ("threads.txt", "process", lambda: memory(pid)),
        ("threads.txt", "memory", lambda: mappings(pid)),
        ("threads.txt", "graphics clients", lambda: of_the_device(pid)),
        *machine,
    ]


def gather(kinds: list[Kind], until: float) -> tuple[dict[str, str], list[str]]:
    """The texts by file, and the titles of what has not come to an end before `until`."""
    found: list[Gathering] = []
    for kind in kinds:
        found.append(Gathering(*kind))
        if kind[0] == "threads.txt" and kind[1] == "threads":
            found[0].over(min(until, time.monotonic() + 0.3))  # before the signal for the stacks disturbs them
    late = [one.title for one in found if not one.over(until)]
    texts: dict[str, str] = {}
    for one in found:
        texts[one.file] = texts.get(one.file, "") + one.text + "\n"
    return texts, late


# --- writing ---------------------------------------------------------------------------------------------------------


def write(folder: Path, name: str, files: dict[str, bytes]) -> None:
    """All files or, if incident.json at least is whole, as many whole ones as possible; then OSError all the same."""
    part = folder / f".{name}.part"
    part.mkdir(mode=0o700)
    try:
        for file, data in files.items():
            with open(os.open(part / file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.write(data)
    except OSError:
        (part / file).unlink(missing_ok=True)  # half of it cannot be read
        known = (part / "incident.json").is_file()
        part.rename(folder / name) if known else shutil.rmtree(part, ignore_errors=True)
        raise
    part.rename(folder / name)


def prune(folder: Path, keep: int, just_written: str, first: str) -> None:
    """`keep` incidents stay: the one just written, whatever the clock said when the others were, the `first` of its row
    of failures, which has the cause of the others, and the newest. Nothing else in the folder is touched but unfinished
    ones of old.
    """
    incidents = sorted(name for name in names(folder) if NAME.fullmatch(name) and name != just_written)
    room = keep - 1
    if first in incidents and room:
        incidents.remove(first)
        room -= 1
    for name in incidents[: max(0, len(incidents) - room)]:
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in names(folder):
        if name.startswith(".") and name.endswith(".part") and NAME.fullmatch(name[1:-5]):
            with contextlib.suppress(OSError):
                if time.time() - (folder / name).stat().st_mtime > 3600:
                    shutil.rmtree(folder / name, ignore_errors=True)


def clipped(text: str, most: int) -> bytes:
    data = text.encode("utf-8", "replace")
    return data if len(data) <= most else data[: max(0, most - 40)] + b"\n<cut off: the file is full>\n"


def say(word: str) -> None:
    with contextlib.suppress(OSError):
        os.write(1, f"{word}\n".encode())


def main(argv: list[str]) -> None:
    folder, name, keep, most, until, last, pid, pidfd, stack_memory, started = argv
    signal.setitimer(signal.ITIMER_REAL, max(0.1, float(last) - time.monotonic()))
    began = time.monotonic()
    facts: dict[str, Any] = {}
    kinds = sources(int(pid), int(pidfd), int(stack_memory), float(started), facts)
    texts, late = gather(kinds, float(until) - MARGIN)
    seconds = time.monotonic() - began
    say("gathered")
    told = json.loads(sys.stdin.buffer.read())
    told["incident"]["evidence"] = {"seconds": round(seconds, 3), "not_in_time": late}
    if (now := facts.get("oom_kills")) is not None:
        say(f"counted {now}")
    told["incident"]["machine"] = {"oom_kills_before": told["oom_kills_before"], **facts}
    files = {"incident.json": json.dumps(told["incident"], indent=1, ensure_ascii=False).encode()}
    texts = {"stacks.txt": told["no_stack"], "threads.txt": told["no_stack"], **texts}
    files |= {file: clipped(text, int(int(most) * SHARE[file])) for file, text in texts.items()}
    files |= {file: text.encode("utf-8", "replace") for file, text in told["files"].items()}
    try:
        write(Path(folder), name, files)
        prune(Path(folder), int(keep), name, told["incident"]["first_of_row"])
        say(f"wrote {name}")
    except OSError as error:
        say(f"failed: {error}")
    os._exit(0)  # without waiting for what did not come back


if __name__ == "__main__":
    main(sys.argv[1:])
