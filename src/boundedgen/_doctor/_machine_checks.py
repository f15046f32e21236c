"""Whether this machine, and this process on it, have what a lane needs. A check's docstring says when all is well."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from boundedgen._doctor._asked import Asked
from boundedgen._doctor._finding import Check, Finding, amount, count, note, ok, problem, warning
from boundedgen._doctor._machine import ENGINE, Device, Machine, Place
from boundedgen._engine._devices import absent_device, is_gpu, unlisted
from boundedgen._engine._findings import TESTED, is_of
from boundedgen._scheduler_config import default_cache_gb

FILES_LEAST = 1024  #: open files: an engine takes a dozen, each caller of a server a few
PROCESSES_LEAST = 256  #: threads count as well, and OpenVINO starts some for each processor
MEMORY_LEAST = 2 << 30
TEMP_LEAST = 64 << 20
CACHE_LEAST = 2 << 30  #: for compiled models and kernels


@frozen
class Case:
    asked: Asked
    machine: Machine


def may_load(case: Case) -> bool:
    """Nobody is known to run an engine on the device, or the doctor was told to load beside it."""
    return case.asked.beside or not _occupied(case)


def _occupied(case: Case) -> bool:
    """The lock of the device tells for sure; without one, every engine that is seen may be on it."""
    if case.asked.device_lock is not None:
        return case.machine.holder is not None or bool(case.machine.lock_failed)
    return bool(case.machine.engines)


# --- software --------------------------------------------------------------------------------------------------------


def python(case: Case) -> Iterator[Finding]:
    """Python is of a version that this library is tested with."""
    machine = case.machine
    told, known = f"Python {machine.python} on {machine.system}", ", ".join(machine.pythons)
    if not machine.pythons:
        yield note(f"{told}; boundedgen is not installed as a package, so its requirements are not known here")
    elif machine.python.rpartition(".")[0] in machine.pythons:
        yield ok(told)
    else:
        yield warning(f"{told}: not tested; tested are {known}.", f"Use one of those: {machine.pythons[-1]}.")


def versions(case: Case) -> Iterator[Finding]:
    """OpenVINO, GenAI and its tokenizers are installed, in one release, and one that this library is tested with."""
    found = case.machine.versions
    told = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    best = f"pip install openvino=={TESTED[0]} openvino-genai=={TESTED[0]}"
    if absent := [name for name in ENGINE if not found.get(name)]:
        yield problem(f"{told}; not installed: {', '.join(absent)}.", f"Install them: {best}.")
        return
    releases = {".".join(found[name].split(".")[:3]) for name in ENGINE}
    if len(releases) > 1:
        yield problem(f"{told}: of different releases, which are not built for each other.", f"{best}.")
    elif is_of(found["openvino-genai"], TESTED):
        yield ok(f"{told}: known to work")
    else:
        yield warning(f"{told}: nobody has tried this release; {', '.join(TESTED)} were.", f"{best}, or try it well.")
    if words := case.machine.survey.failed.get("openvino_genai"):
        yield problem(f"openvino_genai cannot be imported: {words}.", f"Install it again: {best} --force-reinstall.")


def kernel(case: Case) -> Iterator[Finding]:
    """The kernel and the sandbox allow the calls by which an engine is watched (Linux 5.3 or newer)."""
    refused = {name: words for name, words in case.machine.kernel.items() if words}
    for name, words in refused.items():
        yield problem(f"{name} is refused: {words}.", "Use Linux 5.4 or newer; in a container allow it (seccomp).")
    if not refused:
        yield ok(f"{', '.join(case.machine.kernel)}: allowed")


# --- limits ----------------------------------------------------------------------------------------------------------


def limits(case: Case) -> Iterator[Finding]:
    """No limit of the process (ulimit) is in the way."""
    given = case.machine.limits
    files, space, processes = (given.get(name) for name in ("open files", "address space", "processes"))
    if files is not None and files < FILES_LEAST:
        do = f"ulimit -n {FILES_LEAST}, LimitNOFILE= of systemd, or --ulimit nofile= of docker."
        yield warning(f"{files} open files are allowed; a server with many callers needs more.", do)
    if space is not None:
        do = "ulimit -v unlimited. Limit the container's memory instead."
        yield warning(f"the address space is limited to {amount(space)}; OpenVINO maps more than it uses.", do)
    if processes is not None and processes < PROCESSES_LEAST:
        do = "ulimit -u, TasksMax= of systemd, or --pids-limit of docker."
        yield warning(f"{processes} processes and threads are allowed; OpenVINO starts many threads.", do)
    yield ok("ulimits: " + ", ".join(f"{name} {_limit(most)}" for name, most in given.items()))


def _limit(most: int | None) -> str:
    return "unlimited" if most is None else f"{most:,}"


def processors(case: Case) -> Iterator[Finding]:
    """The engine may use the processors that it sees."""
    machine, quota = case.machine, case.machine.quota
    told = count(machine.processors, "processor")
    if quota is None or quota >= machine.processors:
        yield ok(told)
    elif is_gpu(case.asked.device):
        yield note(f"{told}; the container may use {quota:g} of them")
    else:
        do = f'Give it all, or properties={{"INFERENCE_NUM_THREADS": {max(1, int(quota))}}}.'
        yield warning(f"{told}; the container may use {quota:g} of them, and is stopped when it used more.", do)


def memory(case: Case) -> Iterator[Finding]:
    """This process may take at least 2 GB, the container's limit counted."""
    free, asked = case.machine.memory, case.asked
    if free is None:
        yield note("how much memory is free cannot be seen")
        return
    default = default_cache_gb(free)
    told = f"{amount(free)} may be taken, container limits counted"
    told += "" if asked.sized else f"; the cache gets {default} GiB of it, if nobody says how much"
    if free < MEMORY_LEAST:
        yield warning(f"{told}.", "Give the container more memory, or end what else runs here.")
    else:
        yield ok(told)
    for device in [] if asked.sized else own_memory(case):
        do = "Give num_kv_blocks or cache_size (--scheduler); with a MODEL the doctor recommends one."
        yield warning(f"{device.name} has memory of its own, of which the default size of a cache knows nothing.", do)


def own_memory(case: Case) -> Iterator[Device]:
    """The device that is asked for, if it is a card with memory of its own."""
    asked = case.asked.device
    for device in case.machine.survey.devices:
        if device.name in (asked, f"{asked}.0") and device.kind.lower() == "discrete" and device.memory_bytes:
            yield device


# --- folders ---------------------------------------------------------------------------------------------------------


def shm(case: Case) -> Iterator[Finding]:
    """Nothing is needed of /dev/shm: what is shared with the engine is memory without a name (memfd)."""
    yield ok(f"{case.machine.shm.path}: {_free(case.machine.shm)}; not used by boundedgen")


def temp(case: Case) -> Iterator[Finding]:
    """The folder for temporary files can be written to: grammars are checked with one, drivers compile there."""
    place = case.machine.temp
    do = "Give the process a TMPDIR that it may write to; in a container: --tmpfs /tmp."
    if not place.writable:
        yield problem(f"{place.path} cannot be written to, nor any other folder for temporary files.", do)
    elif place.free_bytes is not None and place.free_bytes < TEMP_LEAST:
        yield warning(f"{place.path}: {_free(place)}.", do)
    else:
        yield ok(f"{place.path}: {_free(place)}")


def cache(case: Case) -> Iterator[Finding]:
    """Compiled kernels are kept (the property CACHE_DIR), in a folder that can be written to and has room."""
    for place in case.machine.caches:
        yield _cache(place)
    if not case.machine.caches and is_gpu(case.asked.device):
        do = 'Give properties={"CACHE_DIR": FOLDER}, one for each lane (--properties \'{"CACHE_DIR": "FOLDER"}\').'
        yield warning("there is no CACHE_DIR: each start of an engine compiles all kernels anew.", do)


def _cache(place: Place) -> Finding:
    do = "Make it, for the user of the server alone, on a disk with room; or mount it into the container."
    if not place.writable:
        how = "cannot be written to" if place.exists else "is not there, and cannot be made"
        return problem(f"CACHE_DIR {place.path} {how}.", do)
    told = f"CACHE_DIR {place.path}: {_free(place)}, {count(place.compiled, 'compiled file')}"
    if place.free_bytes is not None and place.free_bytes < CACHE_LEAST:
        return warning(f"{told}; a full disk leaves files that cannot be loaded.", do)
    return ok(told)


def _free(place: Place) -> str:
    return "room not known" if place.free_bytes is None else f"{amount(place.free_bytes)} free"


# --- devices ---------------------------------------------------------------------------------------------------------


def device(case: Case) -> Iterator[Finding]:
    """OpenVINO lists the device that is asked for."""
    survey, asked = case.machine.survey, case.asked.device
    if words := survey.failed.get("devices"):
        yield problem(*unlisted(words))
        return
    if defect := absent_device(asked, survey.listed, survey.parts):
        other = "" if not is_gpu(asked) or "CPU" not in survey.listed else 'Or use the CPU: device="CPU", --device CPU.'
        yield problem(defect.seen, f"{defect.remedy} {other}".strip())
    for one in survey.devices:
        size = "" if one.memory_bytes is None else f", {amount(one.memory_bytes)}"
        kind = f", {one.kind.lower()}" if one.kind and is_gpu(one.name) else ""
        driver = f", driver {one.driver}" if one.driver else ""
        yield ok(f"{one.name}: {one.full_name or 'no name'}{size}{kind}{driver}")


def gpu(case: Case) -> Iterator[Finding]:
    """Of a GPU: loader, driver and render node are there, and this user may use them. The nearest part that is missing
    is told by `device`.
    """
    survey = case.machine.survey
    if not is_gpu(case.asked.device):
        return
    if words := survey.failed.get("parts"):
        yield problem(f"the GPU's driver cannot be looked at: {words}.", "Install intel-opencl-icd again.")
    works, told = any(map(is_gpu, survey.listed)), "devices" not in survey.failed
    missing = [part.defect for part in survey.parts if part.defect is not None]
    for defect in missing if works else missing[told:]:
        yield note(f"{defect.seen} OpenVINO lists a GPU all the same.") if works else problem(*defect)
    if there := [part.name for part in survey.parts if part.defect is None]:
        yield ok(f"{', '.join(there)}: there")
    for name, version in survey.drivers.items():
        yield ok(f"driver {version} of {name}")


def lock(case: Case) -> Iterator[Finding]:
    """Nobody else runs an engine on the device, as far as its lock, or else the list of processes, tells."""
    machine, asked = case.machine, case.asked
    path, holder = asked.device_lock, machine.holder
    if machine.lock_failed:
        yield problem(f"device_lock {path} cannot be looked at: {machine.lock_failed}.", "Give a file of your own.")
    elif holder is not None and holder.runs:
        yield warning(f"a lane runs there: device_lock {path} is held {holder.who}.", f"To try it: {holder.remedy}.")
    elif holder is not None:
        yield problem(f"device_lock {path} is held {holder.who}.", f"{holder.remedy[0].upper()}{holder.remedy[1:]}.")
    elif path is not None:
        yield ok(f"device_lock {path} is free")
    elif machine.engines:
        told = ", ".join(map(str, machine.engines))
        do = "Give --device-lock FILE, the file of the lane's device_lock, or --beside to try it all the same."
        yield warning(f"engines run on this machine, on whichever device: processes {told}.", do)
    else:
        yield ok("no engine of boundedgen is seen on this machine (those of other containers never are)")


CHECKS: tuple[Check[Case], ...] = tuple(
    Check(look.__name__, look)
    for look in (python, versions, kernel, limits, processors, memory, shm, temp, cache, device, gpu, lock)
)
