"""Writes what is generated from the code in README.md and docs/: tables of limits, errors and times, diagrams.

    python docs/generate.py            # or: nox -s docs

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`. tests/test_docs.py checks that all are up to date.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path

import boundedgen
from boundedgen import BoundedGenError, FinishReason, GenerationError, Limits, Rejected
from boundedgen._core._events import Pulse
from boundedgen._core._phases import MOVES, EnginePhase, SequencePhase, StayPhase
from boundedgen._core._watch import ACK_STEPS, FIRST_STEPS, step_budget
from boundedgen._driver import POLICY_ANSWER

ROOT = Path(__file__).resolve().parent.parent
PART = re.compile(r"(<!-- generated: ([a-z_]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SERVING = 16  #: sequences of the example in the table of times
CONTEXT = 4096  #: tokens of each of them
FIRST_WAIT = 0.4  #: seconds, the longest that the default RestartPolicy waits after a first failure


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(text: object) -> str:
    return f"`{text}`"


# --- limits ----------------------------------------------------------------------------------------------------------


def limits() -> str:
    """Every limit of a pipeline."""
    rows = ((code(r["name"]), code(r["default"]), r["unit"], r["why"]) for r in Limits.table())
    return table(["Limit", "Default", "Unit", "Why"], rows)


# --- errors ----------------------------------------------------------------------------------------------------------


def errors() -> str:
    """Every error that a server meets: whose fault, what to answer, whether to try again."""
    return table(["Error", "When", "HTTP", "gRPC", "Retry"], map(error_row, public_errors()))


def public_errors() -> Iterator[type[BoundedGenError]]:
    for family in (Rejected, GenerationError, None):
        for name in boundedgen.__all__:
            kind = getattr(boundedgen, name)
            if inspect.isclass(kind) and issubclass(kind, BoundedGenError) and family_of(kind) is family:
                yield kind


def family_of(kind: type[BoundedGenError]) -> type[BoundedGenError] | None:
    """Rejected, GenerationError, or None; the bases themselves have no row."""
    if kind in (BoundedGenError, Rejected, GenerationError):
        return BoundedGenError
    return next((family for family in (Rejected, GenerationError) if issubclass(kind, family)), None)


def error_row(kind: type[BoundedGenError]) -> list[str]:
    retry = "yes" if kind.retryable else "no"
    if kind is boundedgen.DeadlineExceeded:
        retry = "no; bound `queued`: 503, UNAVAILABLE, yes"
    return [code(kind.__name__), first_sentence(kind), str(kind.http_status_hint), kind.grpc_status_hint, retry]


def first_sentence(kind: type) -> str:
    doc = " ".join((kind.__doc__ or "").split())
    return re.split(r"(?<=\.) ", doc)[0]


def reasons() -> str:
    """How a generation can end."""
    rows = ([code(reason.name), code(reason.value), raised(reason)] for reason in FinishReason)
    return table(["FinishReason", "Value", "Raised"], rows)


def raised(reason: FinishReason) -> str:
    found = [kind for kind in public_errors() if kind.finish_reason is reason and family_of(kind) is GenerationError]
    if reason is FinishReason.REJECTED:
        return "a `Rejected`"
    return code(found[0].__name__) if found else "nothing: a normal end"


# --- times -----------------------------------------------------------------------------------------------------------


def ordinary_step(values: Limits) -> float:
    pulse = Pulse(steps_begun=100, steps_ended=99, scheduled=SERVING, attention=SERVING * CONTEXT)
    return step_budget(values, pulse)


def times() -> str:
    """From a fault to the answer of those inside, and from there to the next token."""
    return "\n".join((answer_times(Limits()), next_token_times(Limits())))


def answer_times(values: Limits) -> str:
    step = ordinary_step(values)
    rows: list[tuple[str, str, str]] = [
        ("the engine's process dies, or `step()` raises, or it sends what cannot be read", "at once", "milliseconds"),
        (
            f"a step hangs: {SERVING} sequences of {CONTEXT} tokens each, one token a sequence",
            f"step + {SERVING}·step_per_token + {SERVING}·{CONTEXT}·step_per_attention",
            seconds(step),
        ),
        ("a step hangs, whatever it schedules", "step_max", seconds(values.step_max)),
        (
            f"one of the first {FIRST_STEPS} steps of an incarnation hangs",
            "step_max + first_step",
            seconds(values.step_max + values.first_step),
        ),
        ("it hangs between two steps while a command is on its way", "ack", seconds(values.ack)),
        ("it hangs between two steps with work inside", "progress", seconds(values.progress)),
        (
            "steps return, but nothing is scheduled and nothing released",
            "progress + the budget of one step",
            f"{seconds(values.progress + step)}; at most {seconds(values.progress + values.step_max)}",
        ),
        (
            "steps return, but a command is not taken",
            f"ack, and {ACK_STEPS} steps",
            f"{seconds(values.ack)}, and {ACK_STEPS} steps",
        ),
        (
            "a stopped stay is not released (its own caller was answered before that)",
            "reclaim outside of steps, or reclaim_steps steps",
            f"{seconds(values.reclaim)}, or {values.reclaim_steps} steps",
        ),
    ]
    return table(["Fault", "Answered after at most", "With the defaults"], iter(rows))


def next_token_times(values: Limits) -> str:
    first = step_budget(values, Pulse(steps_begun=1, scheduled=SERVING, attention=SERVING * CONTEXT))
    rows: list[tuple[str, str, str, str]] = [
        ("the killed process leaves", "reap", seconds(values.reap), "milliseconds"),
        ("the restart policy is asked", "(fixed)", seconds(POLICY_ANSWER), "milliseconds"),
        ("its wait after a first failure", "RestartPolicy.wait", seconds(FIRST_WAIT), "0.2 to 0.4 s"),
        ("the model is loaded", "boot", seconds(values.boot), "what the first start took"),
        ("the first step returns", "step + … + first_step", seconds(first), "what the first answer took"),
    ]
    whole = values.reap + POLICY_ANSWER + FIRST_WAIT + values.boot + first
    rows.append(("**all of it**", "", f"**{seconds(whole)}**", "**0.5 s + load + first step**"))
    return table(["Then, until the next token", "At most", "With the defaults", "Usually"], iter(rows))


def seconds(value: float) -> str:
    return f"{value:.3g} s"


def quote() -> str:
    """The number for whoever is on call."""
    values = Limits()
    first = step_budget(values, Pulse(steps_begun=1, scheduled=SERVING, attention=SERVING * CONTEXT))
    after = values.reap + POLICY_ANSWER + FIRST_WAIT + values.boot + first
    step, worst = seconds(ordinary_step(values)), seconds(values.step_max + values.first_step)
    load = seconds(values.boot)
    lines = (
        f"**With the default limits: a caller inside the engine is answered at its own deadline, or {step} after the",
        f"engine hung in an ordinary step, whichever comes first; a hang of any kind is answered within {worst}.",
        f"The next token comes at most {seconds(after)} after that answer, of which {load} are the limit",
        "for loading the model: usually half a second, your model's load time and one step.**",
    )
    return "".join(f"> {line}\n" for line in lines)


# --- diagrams --------------------------------------------------------------------------------------------------------


def diagram(phases: type[Enum]) -> Callable[[], str]:
    def draw() -> str:
        lines = ["```mermaid", "stateDiagram-v2"]
        first = next(iter(phases)) if phases is not EnginePhase else EnginePhase.DOWN
        lines.append(f"    [*] --> {first.name}")
        for phase in phases:
            moves: Mapping[Enum, str] = MOVES[phase]
            lines += [f"    {phase.name} --> {to.name}: {why}" for to, why in moves.items()]
            if not moves:
                lines.append(f"    {phase.name} --> [*]")
        return "\n".join([*lines, "```"]) + "\n"

    return draw


# --- examples --------------------------------------------------------------------------------------------------------


def example(name: str) -> Callable[[], str]:
    """The part of an example that a reader takes over: from its imports to the line that begins `# --- try it`."""

    def show() -> str:
        text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
        body = re.split(r"\n+# --- try it", text)[0].split('"""', 2)[2].strip()
        return f"```python\n{body}\n```\n"

    return show


EXAMPLES = ("script", "asyncio_streaming", "server_handler", "probes_and_metrics", "lease_heartbeat")

PARTS: Mapping[str, Callable[[], str]] = {
    "limits": limits,
    "errors": errors,
    "reasons": reasons,
    "times": times,
    "quote": quote,
    "sequence_phases": diagram(SequencePhase),
    "stay_phases": diagram(StayPhase),
    "engine_phases": diagram(EnginePhase),
    **{f"example_{name}": example(name) for name in EXAMPLES},
}


# --- files -----------------------------------------------------------------------------------------------------------


def files() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def renewed(text: str) -> str:
    """`text` with every generated part as it should be. KeyError: a part that nothing generates."""
    return PART.sub(lambda part: f"{part[1]}{PARTS[part[2]]()}{part[3]}", text)


def main() -> None:
    for path in files():
        text = path.read_text(encoding="utf-8")
        if (new := renewed(text)) != text:
            path.write_text(new, encoding="utf-8")
            print(f"{path.relative_to(ROOT)} is up to date now")


if __name__ == "__main__":
    main()
