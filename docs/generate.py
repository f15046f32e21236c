"""Writes what is generated from the code in README.md and docs/: tables of limits, errors and times, the API, diagrams.

    python docs/generate.py            # or: nox -s docs

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`. tests/test_docs.py checks that all are up to date.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from attrs import evolve

import boundedgen
from boundedgen import BoundedGenError, FinishReason, GenerationError, Limits, ProbeResult, ProbeVerdict, Rejected
from boundedgen._asking import POLICY_ANSWER
from boundedgen._core._admission import Capacity
from boundedgen._core._events import EngineFacts, PoolFacts
from boundedgen._core._pace import FIRST_STEPS, MARGIN, NEW_STEPS, configured
from boundedgen._core._phases import MOVES, EnginePhase, SequencePhase, StayPhase
from boundedgen._core._watch import ACK_STEPS
from boundedgen._doctor import _machine_checks, _model_checks
from boundedgen._doctor._advice import advice
from boundedgen._doctor._asked import asked
from boundedgen._doctor._finding import Check, found, ok
from boundedgen._doctor._machine import Device, Machine, Place, Survey
from boundedgen._doctor._page import Report, page
from boundedgen._doctor._trial import Rate, Step, Trial
from boundedgen._engine._findings import TESTED
from boundedgen._fields import remark
from boundedgen._generation_fields import FIELDS
from boundedgen._refused_fields import REFUSED, REFUSED_OF_SCHEDULER, Refused
from boundedgen._scheduler_config import TAKEN, WHOLE
from boundedgen.endpoints import Answer, kubernetes_probes, liveness, readiness, startup
from boundedgen.exporters import _metrics
from boundedgen.systemd import Notifier
from boundedgen.testing import FaultKind

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from deploy import dashboard, expected
from deploy.scenarios import SCENARIOS

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


# --- configurations --------------------------------------------------------------------------------------------------


def generation_fields() -> str:
    """Every field of GenerationConfig: what it takes, or why it is refused; and the test that shows it."""
    takes = {name: WORDS.get(kind.what) or kind.words() for name, kind in sorted(FIELDS.items())}
    return table(FIELD_HEAD, iter(taken_rows(takes, FIELD_NOTES) + refused_rows(dict(sorted(REFUSED.items())))))


def scheduler_config_fields() -> str:
    """Of SchedulerConfig."""
    takes = {name: whole_takes(name) if name in WHOLE else FLAG for name in TAKEN}
    return table(FIELD_HEAD, iter(taken_rows(takes, SCHEDULER_NOTES) + refused_rows(REFUSED_OF_SCHEDULER)))


def grammar_kinds() -> str:
    """Of StructuredOutputConfig: exactly one of them."""
    return table(["Field", "Takes"], ([code(f"structured_output_config.{name}"), GRAMMARS[name]] for name in GRAMMARS))


FIELD_HEAD = ("Field", "Takes", "", "Remark, or the reason and the way out", "Test")
FLAG = "True or False"
WORDS = {
    "flag": FLAG,
    "ids": "a list, a tuple or a set of token ids; at most `Limits.stop_token_ids`",
    "strings": "a list, a tuple or a set of texts; at most `Limits.stop_strings`",
    "stop_criteria": "`EARLY`, `HEURISTIC`, `NEVER`, or the engine's constants",
    "structured": "one grammar, see below",
}
FIELD_NOTES = {
    "max_new_tokens": "`Limits.max_new_tokens_default` if not set, `Limits.max_new_tokens` at most",
    "max_length": "counts the prompt; becomes `max_new_tokens`",
    "ignore_eos": "beams end all the same",
    "eos_token_id": "one id or several; the model's own if not set",
    "apply_chat_template": "for a str prompt; off if not set",
    "logprobs": "1 or more: one value a token, as the engine has it",
    "rng_seed": "drawn if not set; `Completion.seed` tells it",
    "num_beams": "at most `Limits.sequences_max`; shows nothing before its end",
    "num_return_sequences": "at most `Limits.sequences_max`; shows nothing before its end",
    "stop_strings": "matched to the character, by us; not with beams",
}
SCHEDULER_NOTES = {
    "cache_size": "GB; bounded also if neither it nor `num_kv_blocks` is set",
    "enable_prefix_caching": "off on a hybrid model, unless `unsafe_prefix_caching` insists",
    "max_num_seqs": "`Limits.running_max` if that is not set",
}
GRAMMARS = {
    "json_schema": "a JSON schema, as text or a mapping",
    "regex": "a regular expression",
    "grammar": "an EBNF grammar",
    "structural_tags_config": "a structural tag as JSON, text or a mapping; an object of the engine's; or a mapping of "
    "`structural_tags` and `triggers`",
    "compound_grammar": "an object of the engine's (`Concat`, `Union`, `Tag`, `TriggeredTags`, …), or its JSON as a "
    "mapping: `{'type': 'sequence', 'elements': […]}`",
}


def taken_rows(takes: Mapping[str, str], notes: Mapping[str, str]) -> list[list[str]]:
    return [[code(name), words, "taken", notes.get(name, ""), shown("taken", name)] for name, words in takes.items()]


def refused_rows(refused: Mapping[str, Refused]) -> list[list[str]]:
    rows = refused.items()
    return [[code(name), "", "**refused**", f"{one.why}; {one.instead}", shown("refused", name)] for name, one in rows]


def shown(how: str, field: str) -> str:
    """The test that shows it, as it is told in short: the page says which names these are."""
    return code(f"{how}[{field}]")


def whole_takes(name: str) -> str:
    return f"a whole number, at least {WHOLE[name]}"


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
    return min(configured(values, SERVING, SERVING * CONTEXT), values.step_max)


def longest_step(values: Limits) -> float:
    """Whatever it schedules, however slow the machine is, and be it one of the first."""
    return values.step_max + max(values.first_step, values.new_shape)


def times() -> str:
    """From a fault to the answer of those inside, and from there to the next token."""
    return "\n".join((answer_times(Limits()), next_token_times(Limits())))


def answer_times(values: Limits) -> str:
    step, longest = ordinary_step(values), longest_step(values)
    rows: list[tuple[str, str, str]] = [
        ("the engine's process dies, or `step()` raises, or it sends what cannot be read", "at once", "milliseconds"),
        ("its reports end, and it lives", "(fixed)", "1 s"),
        (
            f"a step hangs: {SERVING} sequences of {CONTEXT} tokens each, one token a sequence",
            f"step + {SERVING}·step_per_token + {SERVING}·{CONTEXT}·step_per_attention",
            seconds(step),
        ),
        (
            "the same where such steps, or smaller ones, have been taking longer than a fifth of that",
            f"{MARGIN:g} times what they took; step_max",
            f"at most {seconds(values.step_max)}",
        ),
        ("a step hangs, whatever it schedules", "step_max", seconds(values.step_max)),
        (
            f"one of the first {NEW_STEPS} steps of its size hangs: as many tokens, to a power of two",
            "its budget, as above, + new_shape",
            f"{seconds(step + values.new_shape)}; at most {seconds(values.step_max + values.new_shape)}",
        ),
        (
            f"one of the first {FIRST_STEPS} steps of an incarnation hangs",
            "step_max + the larger of first_step and new_shape",
            seconds(longest),
        ),
        ("it hangs between two steps while a command is on its way", "ack", seconds(values.ack)),
        ("it hangs between two steps with work inside", "progress", seconds(values.progress)),
        ("it hangs with nothing inside; with `probe_idle`, nobody meets it", "probe_idle + ack", "off"),
        (
            "steps return, but nothing is scheduled and nothing released",
            "progress + the budget of one step",
            f"{seconds(values.progress + step)}; at most {seconds(values.progress + longest)}",
        ),
        (
            "steps do their work, but a command is not taken",
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
    longest = seconds(longest_step(values))
    rows: list[tuple[str, str, str, str]] = [
        ("the killed process leaves", "reap", seconds(values.reap), "milliseconds"),
        ("the restart policy is asked", "(fixed)", seconds(POLICY_ANSWER), "milliseconds"),
        ("its wait after a first failure", "RestartPolicy.wait", seconds(FIRST_WAIT), "0.2 to 0.4 s"),
        ("the model is loaded", "boot", seconds(values.boot), "what the first start took"),
        ("the first step returns", "step_max + first_step", longest, "what the first answer took"),
    ]
    whole = f"**{seconds(until_the_next_token(values))}**"
    rows.append(("**all of it**", "", whole, "**0.5 s + load + first step**"))
    return table(["Then, until the next token", "At most", "With the defaults", "Usually"], iter(rows))


def until_the_next_token(values: Limits) -> float:
    """After those that were inside are answered."""
    return values.reap + POLICY_ANSWER + FIRST_WAIT + values.boot + longest_step(values)


def seconds(value: float) -> str:
    return f"{value:.3g} s"


def quote() -> str:
    """The number for whoever is on call."""
    values = Limits()
    answer = values.progress + longest_step(values)
    worst = (
        "**An engine that dies, hangs or steps without effect: whoever is inside is answered within "
        f"{seconds(answer)} of the fault, or at its own deadline if that is earlier, and the lane makes its next token "
        f"within {seconds(answer + until_the_next_token(values))} of the fault.** That is, with the default limits, "
        "progress + step_max + first_step for the answer, and for the token that + reap + "
        f"{POLICY_ANSWER:g} s + RestartPolicy.wait + boot + step_max + first_step."
    )
    usual = (
        f"Usually it is answered in milliseconds if it died, {seconds(ordinary_step(values))} after it hung in an "
        "ordinary step; then half a second, your model's load time and one step. Most of the worst case is the limit "
        "for loading and the allowance for first steps that compile kernels: set `boot`, `step_max` and `first_step` "
        "to what your model takes."
    )
    return "\n>\n".join(textwrap.indent(textwrap.fill(text, 116), "> ") for text in (worst, usual)) + "\n"


# --- the API ---------------------------------------------------------------------------------------------------------

#: Every public name, by the part of docs/api.md that tells of it. The errors follow from their classes.
API: Mapping[str, Sequence[str]] = {
    "pipeline": ("BoundedPipeline",),
    "handles": ("Generation", "Lease"),
    "settings": ("Bounds", "Deadline", "Limits", "Admission", "RestartPolicy"),
    "output": ("Chunk", "Completion", "Alternative", "Reclamation", "FinishReason"),
    "looking": (
        "SchedulerStats", "TimeStats", "TimeHistogram", "PoolStats", "ReclaimStats", "SequenceRow", "Health",
        "HealthState", "ProbeResult", "ProbeVerdict", "StatsSocket", "StatsSocketError",
    ),
    "retries": ("retrying", "RetryBudget"),
    "errors": ("BoundedGenError", "Rejected", "GenerationError", *(kind.__name__ for kind in public_errors())),
}  # fmt: skip


def api(part: str) -> Callable[[], str]:
    def tell() -> str:
        return "\n".join(told(getattr(boundedgen, name)) for name in API[part])

    return tell


def told(kind: type | Callable[..., object]) -> str:
    """One public class: what it is, how it is made, what it has, what it does. Or a function."""
    if inspect.isfunction(kind):
        (node,) = ast.parse(inspect.getsource(kind)).body
        assert isinstance(node, ast.FunctionDef)
        return f"### `{kind.__name__}`\n\n{signature(node.name, node)}\n{inspect.getdoc(kind)}\n"
    assert isinstance(kind, type)
    parts = [f"### `{kind.__name__}`\n", f"{written(kind)}\n", *made(kind), *answered(kind)]
    head = ["Member", "Value", "What"] if issubclass(kind, Enum) else ["Field", "Type", "What"]
    rows = ((head, list(fields_of(kind))), (["Property", "Type", "What"], list(properties_of(kind))))
    parts += [table(names, iter(found)) for names, found in rows if found]
    parts += [part for method in methods_of(kind) for part in method_of(kind, method)]
    return "\n".join(parts)


def written(kind: type) -> str:
    """Its docstring as it is in the source: `help()` adds the fields, which have a table here."""
    return ast.get_docstring(class_node(kind)[0]) or ""


def made(kind: type) -> Iterator[str]:
    """The constructor, of those that users call with arguments of their own."""
    init = next((node for node in public_body(kind) if node.name == "__init__"), None)
    if kind is boundedgen.BoundedPipeline and init is not None:
        yield signature(kind.__name__, init)


def answered(kind: type) -> Iterator[str]:
    if issubclass(kind, BoundedGenError):
        retry = "retry" if kind.retryable else "do not retry"
        bases = ", ".join(code(base.__name__) for base in kind.__bases__)
        yield f"A {bases}. HTTP {kind.http_status_hint}, gRPC {kind.grpc_status_hint}, {retry}.\n"


@cache
def class_node(kind: type) -> tuple[ast.ClassDef, list[str]]:
    source = inspect.getsource(sys.modules[kind.__module__])
    found = (n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == kind.__name__)
    return next(found), source.splitlines()


def fields_of(kind: type) -> Iterator[list[str]]:
    """Attributes with a type, and the members of enums."""
    node, lines = class_node(kind)
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id[0] != "_":
            yield [code(item.target.id), code(typed(kind, item)), what(kind, item.target.id, item, lines)]
        elif isinstance(item, ast.Assign) and issubclass(kind, Enum):
            name = ast.unparse(item.targets[0])
            yield [code(name), code(f'"{kind[name].value}"'), remarked(item, lines)]


def typed(kind: type, item: ast.AnnAssign) -> str:
    """The annotation, with the default where it is a plain value."""
    annotation = re.sub(r"^ClassVar\[(.*)\]$", r"\1", ast.unparse(item.annotation))
    default = next(
        (a.default for a in getattr(kind, "__attrs_attrs__", ()) if a.name == ast.unparse(item.target)), None
    )
    if not hasattr(kind, "__attrs_attrs__") and isinstance(item.value, ast.Constant):
        default = item.value.value
    plain = default is None or isinstance(default, int | float | str) or default == ()
    return f"{annotation} = {default!r}".replace("|", "\\|") if plain else annotation.replace("|", "\\|")


def what(kind: type, name: str, item: ast.stmt, lines: list[str]) -> str:
    found: Mapping[str, str] = next((a.metadata for a in getattr(kind, "__attrs_attrs__", ()) if a.name == name), {})
    return f"{found['unit']}: {found['why']}" if "why" in found else remarked(item, lines)


def remarked(item: ast.stmt, lines: list[str]) -> str:
    return remark(item, lines).replace("|", "\\|")


def public_body(kind: type) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Its functions, without all but the last of overloads."""
    parts = (b for b in kind.__bases__ if b.__module__.startswith("boundedgen.") and b.__name__ not in dir(boundedgen))
    for item in (item for one in (kind, *parts) for item in class_node(one)[0].body):
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not marked(item, "overload"):
            yield item


def marked(item: ast.FunctionDef | ast.AsyncFunctionDef, mark: str) -> bool:
    return mark in map(ast.unparse, item.decorator_list)


def properties_of(kind: type) -> Iterator[list[str]]:
    for item in public_body(kind):
        if isinstance(getattr(kind, item.name), property) and item.name[0] != "_" and item.returns is not None:
            returns = ast.unparse(item.returns).replace("|", "\\|")
            yield [code(item.name), code(returns), " ".join((ast.get_docstring(item) or "").split())]


def methods_of(kind: type) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for item in public_body(kind):
        if item.name[0] != "_" and not isinstance(getattr(kind, item.name), property):
            yield item


def method_of(kind: type, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    yield f"#### `{kind.__name__}.{node.name}`\n"
    yield signature(node.name, node)
    yield f"{ast.get_docstring(node)}\n"


def signature(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """As in the source, without `self`; a parameter a line where it is long."""
    node.args.args = [argument for argument in node.args.args if argument.arg not in ("self", "cls")]
    given = re.sub(r"(?<=[\w\]])=", " = ", ast.unparse(node.args))
    word = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = "" if name[0].isupper() or node.returns is None else f" -> {ast.unparse(node.returns)}"
    line = f"{word}{name}({given}){returns}"
    if len(line) > 110:
        parts = "".join(f"    {part},\n" for part in re.split(r", (?=\*?\*?\w+:|\*, )", given))
        line = f"{word}{name}(\n{parts.replace('*, ', '*,' + chr(10) + '    ')}){returns}"
    return f"```py\n{line}\n```\n"


def systemd() -> str:
    """The one class of a module that is imported by itself."""
    return told(Notifier)


def endpoints() -> str:
    """All of another such module."""
    return "\n".join([told(one) for one in (startup, liveness, readiness, kubernetes_probes, Answer)])


def kubernetes() -> str:
    """The part of a container's specification, for the default limits."""
    paths = {"startupProbe": "/startup", "livenessProbe": "/live", "readinessProbe": "/ready"}
    lines = []
    for kind, numbers in kubernetes_probes().items():
        lines += [f"{kind}:", f"  httpGet: {{path: {paths[kind]}, port: http}}"]
        lines += [f"  {name}: {value}" for name, value in numbers.items()]
    return "\n".join(["```yaml", *lines, "```"]) + "\n"


# --- metrics ---------------------------------------------------------------------------------------------------------


def metrics() -> str:
    """Every metric of the exporter for Prometheus."""
    return table(["Metric", "Type", "Labels", "From", "What"], map(metric_row, _metrics.told()))


def metric_row(told: tuple[_metrics.Metric, str, str]) -> list[str]:
    metric, source, text = told
    label = metric.label and f", {code(metric.label)}"
    return [code(metric.name), metric.kind, f"`pipeline`{label}", code(source), text.replace("|", "\\|")]


def untold_fields() -> str:
    """Fields that have no metric of their own."""
    rows = ([code(f"{kind.__name__}.{name}"), why] for (kind, name), why in _metrics.UNTOLD.items())
    return table(["Field", "Instead"], rows)


# --- alerts ----------------------------------------------------------------------------------------------------------


def alerts() -> str:
    """Every alert, by how bad it is."""
    return table(["Alert", "Severity", "What it says", "Runbook"], map(alert_row, expected.rules()))


def alert_row(rule: Mapping[str, Any]) -> list[str]:
    said = rule["annotations"]
    summary = re.sub(r"{{ \$labels\.(\w+) }}", r"*\1*", said["summary"])
    page = Path(said["runbook_url"]).name
    return [code(rule["alert"]), rule["labels"]["severity"], summary, f"[{page}](runbooks/{page})"]


def panels() -> str:
    """Every panel of the dashboard: for whoever reads of it in a runbook, and has no Grafana."""
    rows = (
        [panel.title, "<br>".join(code(name) for name in dict.fromkeys(metrics_of(panel))), panel.what]
        for row in dashboard.ROWS
        for panel in row.panels
    )
    return table(["Panel", "Metrics", "What"], rows)


def metrics_of(panel: dashboard.Panel) -> Iterator[str]:
    for query in panel.queries:
        yield from sorted(name.removesuffix("_bucket") for name in expected.names(query.expr))


def alert_times() -> str:
    """When each fires in the recorded runs, scraped and evaluated as often as that."""
    head = ["Run", "Engine", "Alert", *(f"every {every} s" for every in expected.INTERVALS)]
    return table(head, (row for name in SCENARIOS for row in alert_time_rows(name)))


def alert_time_rows(name: str) -> Iterator[list[str]]:
    scenario = SCENARIOS[name]
    times = [expected.fires(name, every) for every in expected.INTERVALS]
    for alert in sorted(times[0], key=lambda alert: times[0][alert]) or ["none"]:
        yield [scenario.what, scenario.engine, code(alert), *(after(found.get(alert)) for found in times)]


def after(seconds: int | None) -> str:
    return "-" if seconds is None else f"{seconds} s"


# --- the test kit ----------------------------------------------------------------------------------------------------


def testing_faults() -> str:
    """Every fault of the simulated engine."""
    return table(["Kind", "Value", "What happens"], fields_of(FaultKind))


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


# --- the doctor ------------------------------------------------------------------------------------------------------


def doctor_checks() -> str:
    """What each check looks at."""
    parts: tuple[tuple[str, tuple[Check[Any], ...]], ...] = (
        ("machine", _machine_checks.CHECKS),
        ("model, before it is loaded", _model_checks.BEFORE),
        ("model, once it is", _model_checks.AFTER),
    )
    rows = ((where, code(check.name), check.about) for where, checks in parts for check in checks)
    return table(["Of the", "Check", "All is well when"], rows)


def doctor_example() -> str:
    """A round whose figures were measured once, as it is told now."""
    request = evolve(
        asked(None, device="CPU", scheduler='{"num_kv_blocks": 256}', tokens=2048, sequences=8),
        model="/models/SmolLM2-135M.gguf",
    )
    case = _machine_checks.Case(request, EXAMPLE_MACHINE)
    files = ok(f"{request.model} is a GGUF file, 98.4 MB of weights")
    tried = _model_checks.Tried(request, EXAMPLE_MACHINE, EXAMPLE_TRIAL, None)
    report = Report(
        asked=request,
        machine=tuple(found(_machine_checks.CHECKS, case)),
        model=(evolve(files, check="model"), *found(_model_checks.AFTER, tried)),
        trial=EXAMPLE_TRIAL,
        recommended=advice(request, EXAMPLE_TRIAL),
    )
    return f"```\n{page(report)}```\n"


EXAMPLE_MACHINE = Machine(
    python="3.11.7",
    pythons=("3.11",),
    system="Linux 6.18.44 x86_64",
    versions={
        "boundedgen": boundedgen.__version__,
        "openvino": TESTED[0],
        **dict.fromkeys(("openvino-genai", "openvino-tokenizers"), f"{TESTED[0]}.0"),
    },
    survey=Survey(devices=(Device(name="CPU", full_name="AMD EPYC"),), drivers={}, failed={}),
    kernel=dict.fromkeys(("pidfd_open", "memfd_create", "epoll_create"), ""),
    limits={"open files": 20_000, "address space": None, "processes": 96_365},
    processors=2,
    quota=None,
    memory=24_500_000_000,
    shm=Place(path="/dev/shm", exists=True, writable=True, free_bytes=25_300_000_000),
    temp=Place(path="/tmp", exists=True, writable=True, free_bytes=83_000_000_000),
    caches=(),
    holder=None,
    lock_failed="",
    engines=(),
)
EXAMPLE_FACTS = EngineFacts(
    device="CPU",
    versions={},
    pools=(PoolFacts("kv", 257, 32),),
    block_size=32,
    cache_bytes=112_504_320,
    vocab_size=49_152,
    running_max=256,
    probe_blocks={"kv": 1},
    max_prompt_tokens=None,
    hybrid=False,
    proof="perf_metrics",
)
EXAMPLE_TRIAL = Trial(
    facts=EXAMPLE_FACTS,
    capacity=Capacity.of(EXAMPLE_FACTS, None),
    load_s=13.9,
    cache_bytes=EXAMPLE_FACTS.cache_bytes,
    rss_bytes=514_000_000,
    probe=ProbeResult(verdict=ProbeVerdict.OK, seconds=0.0286),
    steps=(
        Step(1, 0.0375),
        Step(256, 0.915),
        *(Step(1, 0.0205) for _ in range(60)),
        *(Step(8, 0.07) for _ in range(20)),
    ),
    rates=(Rate(1, 40.3, 0.0624), Rate(8, 115.0, 0.215)),
)


# --- examples --------------------------------------------------------------------------------------------------------


def example(name: str) -> Callable[[], str]:
    """The part of an example that a reader takes over: from its imports to the line that begins `# --- try it`."""

    def show() -> str:
        text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
        body = re.split(r"\n+# --- try it", text)[0].split('"""', 2)[2].strip()
        return f"```python\n{body}\n```\n"

    return show


EXAMPLES = (
    *("script", "asyncio_streaming", "server_handler", "probes_and_metrics", "lease_heartbeat", "wedged_lane"),
    *("asyncio_service", "retries", "chat_server", "prometheus_metrics", "telemetry"),
)

PARTS: Mapping[str, Callable[[], str]] = {
    "limits": limits,
    "generation_fields": generation_fields,
    "grammar_kinds": grammar_kinds,
    "scheduler_config_fields": scheduler_config_fields,
    "errors": errors,
    "reasons": reasons,
    "times": times,
    "quote": quote,
    "systemd": systemd,
    "endpoints": endpoints,
    "alerts": alerts,
    "alert_times": alert_times,
    "panels": panels,
    "kubernetes": kubernetes,
    "metrics": metrics,
    "untold_fields": untold_fields,
    "testing_faults": testing_faults,
    "doctor_checks": doctor_checks,
    "doctor_example": doctor_example,
    "sequence_phases": diagram(SequencePhase),
    "stay_phases": diagram(StayPhase),
    "engine_phases": diagram(EnginePhase),
    **{f"example_{name}": example(name) for name in EXAMPLES},
    **{f"api_{part}": api(part) for part in API},
}


# --- files -----------------------------------------------------------------------------------------------------------


def files() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


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
