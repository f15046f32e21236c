"""Whether the model can be served with these settings. Each check's docstring says when all is well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from boundedgen._adapters import adapters_of
from boundedgen._bounds import Limits
from boundedgen._core._events import Cause
from boundedgen._doctor._advice import as_blocks, blocks_for, cache_bytes_of
from boundedgen._doctor._finding import Check, Finding, amount, count, figure, ok, problem, span, warning
from boundedgen._doctor._machine_checks import Case, may_load, own_memory
from boundedgen._doctor._trial import Trial, how_many, longest
from boundedgen._engine._devices import parted
from boundedgen._engine._model_files import model_defect, weights_bytes
from boundedgen._engine._pools import KV
from boundedgen._errors import DeviceUnavailable
from boundedgen._stats import ProbeVerdict

_GIB = 1 << 30
_LINES = 3  #: of the engine's last output
_WIDTH = 200  #: of each


@frozen
class Tried(Case):
    """`grammar`: why a grammar cannot be compiled with the model's tokenizer; None: it can."""

    trial: Trial
    grammar: str | None


# --- before it is loaded ---------------------------------------------------------------------------------------------


def model(case: Case) -> Iterator[Finding]:
    """There is a model at the path, whole as far as its files tell."""
    path = Path(case.asked.model or "")
    if defect := model_defect(path):
        yield problem(*defect)
        return
    kind = "an OpenVINO model" if path.is_dir() else "a GGUF file"
    yield ok(f"{path} is {kind}, {amount(weights_bytes(path))} of weights")


def adapters(case: Case) -> Iterator[Finding]:
    """The LoRA adapters, if any are given, fit the model."""
    asked = case.asked
    if not asked.adapters or model_defect(Path(asked.model or "")):
        return
    try:
        adapters_of(asked.adapters, asked.model or "", Limits()).close()
    except (TypeError, ValueError) as error:
        yield problem(f"{error}.", "Give --adapters FILE.safetensors, or a JSON object of such files and weights.")
        return
    yield ok(", ".join(f"{Path(path).name} at {weight:g}" for path, weight in asked.adapters.items()))


def room(case: Case) -> Iterator[Finding]:
    """The weights, and the cache if its size is given, find room in the memory that is free."""
    asked, path = case.asked, Path(case.asked.model or "")
    if model_defect(path):
        return
    weights, cache = weights_bytes(path), int(asked.scheduler.fields.get("cache_size") or 0) * _GIB
    told = f"{amount(weights)} of weights" + (f" and {amount(cache)} of cache" if cache else "")
    do = "Use a smaller model or quantisation, give a smaller cache_size, or more memory."
    for where, size in _memories(case):
        if weights + cache > size:
            yield warning(f"{told} may not fit into the {amount(size)} of {where}.", do)
        else:
            yield ok(f"{told} fit into the {amount(size)} of {where}")


def _memories(case: Case) -> Iterator[tuple[str, int]]:
    """No limit of a container is a sure one: files that were read count as used there, and are given up for others."""
    if case.machine.memory is not None:
        yield "memory that are free", case.machine.memory
    for device in own_memory(case):
        yield device.name, device.memory_bytes or 0


def lane(case: Case) -> Iterator[Finding]:
    """Nobody else is on the device, or the doctor was told to load beside whoever is."""
    if not may_load(case):
        why = "it is not known whether" if case.machine.lock_failed else "it seems that"
        do = "Come again when it has ended, or give --beside: it slows down meanwhile, and memory has to do for both."
        yield warning(f"the model was not loaded: {why} a lane runs here, which is not to be disturbed.", do)


BEFORE: tuple[Check[Case], ...] = tuple(Check(look.__name__, look) for look in (model, adapters, room, lane))


# --- after -----------------------------------------------------------------------------------------------------------


def load(case: Tried) -> Iterator[Finding]:
    """The engine is ready within the limit of a boot, in a process of its own."""
    trial = case.trial
    if trial.load_s is not None:
        size = "" if trial.rss_bytes is None else f", {amount(trial.rss_bytes)} resident"
        yield ok(f"ready after {span(trial.load_s)}{size}")
    else:
        yield _not_loaded(case)


def _not_loaded(case: Tried) -> Finding:
    trial = case.trial
    advice, words = parted(trial.detail or str(trial.error))
    last = _last_words(trial.output)
    if trial.cause is Cause.BOOT and isinstance(trial.error, DeviceUnavailable):
        return problem(f"the device cannot be used. {words}".strip(), advice)
    if trial.cause is Cause.BOOT and words:
        return problem(f"the engine refused: {words}{last}", advice)
    if trial.cause is Cause.BOOT and "not ready within" in advice:
        return problem(f"it hung while it was loaded, or is slow: {advice}.{last}", _SLOW)
    if trial.cause is Cause.DIED:
        return problem(f"the load was not survived: {advice}.{last}", _CRASH)
    return problem(f"{advice}{last}", "Mend what is said there, and run the doctor again.")


_SLOW = (
    "If it is only slow (a large model, a cold disk, kernels that are compiled for the first time), give --boot "
    "SECONDS, and Limits.boot as much. Else look at dmesg, for the device's driver."
)
_CRASH = (
    "Killed by signal 9 it was most likely out of memory: see dmesg. Else the file is damaged or unknown to this "
    "release: copy or export it again, or try another quantisation."
)


def _last_words(output: str) -> str:
    """Of an engine that crashed, what stands before the stacks."""
    lines = [line.strip()[:_WIDTH] for line in output.splitlines() if line.strip()]
    crash = next((at for at, line in enumerate(lines) if line.startswith("Fatal Python error")), len(lines))
    last = lines[: crash + 1][-_LINES:]
    return f" Its last words: {' / '.join(last)}" if last else ""


def settings(case: Tried) -> Iterator[Finding]:
    """The engine took the settings as they are."""
    facts = case.trial.facts
    for text in facts.findings if facts is not None else ():
        yield warning(f"{text}.", "What is recommended below goes by it; health().findings of the lane says it too.")


def pools(case: Tried) -> Iterator[Finding]:
    """The cache has the blocks that were asked for; told for each kind of block, without the probe's."""
    trial = case.trial
    if trial.capacity is None:
        return
    for pool in trial.capacity.pools:
        each = "one a sequence" if pool.tokens_per_block is None else f"{pool.tokens_per_block} tokens each"
        whole = "" if pool.tokens_per_block is None else f", {pool.blocks * pool.tokens_per_block:,} tokens in all"
        yield ok(f"{pool.name}: {count(pool.blocks, 'block')}, {each}{whole}")
    if trial.cache_bytes:
        yield ok(f"the cache takes {amount(trial.cache_bytes)}")


def fit(case: Tried) -> Iterator[Finding]:
    """As many sequences of the length asked for fit at once as are wanted; at least one."""
    trial, asked = case.trial, case.asked
    if trial.capacity is None:
        return
    fitting, wanted = how_many(trial.capacity, asked.tokens), asked.sequences or 1
    told = f"{count(fitting, 'sequence')} of {asked.tokens:,} tokens (prompt and answer) fit at once"
    if fitting < wanted:
        make = warning if fitting else problem
        told = f"{told}, {wanted} are wanted" if fitting and asked.sequences else told
        yield make(f"{told}; the longest that fits has {longest(trial.capacity):,}.", _more(case, wanted))
        return
    limit = f", as many as max_num_seqs lets in ({trial.capacity.running_max})"
    yield ok(told + (limit if fitting == trial.capacity.running_max else ""))


def _more(case: Tried, sequences: int) -> str:
    """What it takes, and whether there is memory for it."""
    trial, machine = case.trial, case.machine
    assert trial.capacity is not None
    needed = blocks_for(case.asked, trial, sequences)
    told = f"For {count(sequences, 'sequence')} give {as_blocks(needed, sequences)}, or ask for less (--max-tokens)."
    size = cache_bytes_of(trial, needed[KV])
    if size is None:
        return told
    free = "" if machine.memory is None or size <= machine.memory else f"; only {amount(machine.memory)} are free"
    return f"{told} The cache takes about {amount(size)} then{free}."


def probe(case: Tried) -> Iterator[Finding]:
    """One token comes through, in a slot and a block of its own."""
    result = case.trial.probe
    if result is None:
        return
    if result.verdict is ProbeVerdict.OK:
        yield ok(f"one token after {span(result.seconds)}")
    elif result.verdict is ProbeVerdict.NOT_RUN:
        yield warning(f"pipeline.probe() cannot be used: {result.reason}.", "Give num_kv_blocks, not cache_size.")
    else:
        yield problem(f"no token came through: {result.reason}.", "Look at dmesg, and at the engine's log.")


def speed(case: Tried) -> Iterator[Finding]:
    """Tokens come, for one sequence alone and for several at once."""
    for rate in case.trial.rates:
        who = "one sequence alone" if rate.sequences == 1 else f"{rate.sequences} at once"
        first = f"the first after {span(rate.first_token_s)}"
        if rate.tokens_per_s:
            yield ok(f"{who}: {figure(rate.tokens_per_s)} tokens/s, {first}")
        else:
            yield warning(f"{who}: not two tokens in the time of the measurement.", "Is something else running here?")
    if case.trial.load_s is not None and case.trial.error is not None:
        why = case.trial.detail or str(case.trial.error)
        yield problem(f"the engine was lost while it was tried: {why}.{_last_words(case.trial.output)}", _LOST)


_LOST = "Run it again with BoundedPipeline(black_box=FOLDER), and look at the incident: docs/incidents.md."


def grammar(case: Tried) -> Iterator[Finding]:
    """The tokenizer can be loaded, in a process of its own, and a grammar compiles with it."""
    words = case.grammar
    if case.trial.load_s is None:
        return
    if words is None:
        yield ok("the tokenizer loads, and a grammar compiles with it")
    elif words.startswith("could not be checked"):
        do = "A server loads it too: convert the tokenizer again, with the openvino-tokenizers of this release."
        yield problem(f"the tokenizer, loaded by itself: {words}.", do)
    else:
        yield warning(f"no grammar compiles with its tokenizer: {words}.", "structured_output_config cannot be used.")


AFTER: tuple[Check[Tried], ...] = tuple(
    Check(look.__name__, look) for look in (load, settings, pools, fit, probe, speed, grammar)
)
