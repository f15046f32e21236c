"""A span for each generation, by the semantic conventions for generative AI; what is ours is `boundedgen.*`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider

import boundedgen
from boundedgen._errors import ERROR_OF, FinishReason
from boundedgen._flow import Ending, Flow

SCOPE: Final = "boundedgen"  #: instrumentation scope
OPERATION: Final = "gen_ai.operation.name"
MODEL: Final = "gen_ai.request.model"
ENGINE: Final = {"gen_ai.provider.name": "openvino"}
DESCRIPTION_MOST: Final = 500  #: characters
OPERATIONS: Final = {"chat": "chat", "text": "text_completion", "tokens": "text_completion"}
#: Fields of a generation's configuration that are told, where they are set. Stop strings are text of the caller's.
REQUEST: Final = {
    "max_new_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "rng_seed": "gen_ai.request.seed",
}
#: What the engine counts in whole numbers and the conventions in doubles.
_DOUBLES: Final = ("gen_ai.request.top_k",)
#: The words of these ends may quote what the caller sent: a grammar that does not compile.
_QUOTES: Final = (FinishReason.REJECTED,)

Attributes = dict[str, Any]


def request_attributes(flow: Flow, model: str) -> Attributes:
    """What is known when it is submitted."""
    submission, config = flow.submission, flow.config
    told = {name: config[field] for field, name in REQUEST.items() if config.get(field) is not None}
    told |= {name: float(told[name]) for name in _DOUBLES if name in told}
    about = {
        MODEL: model,
        "boundedgen.owner": submission.owner,
        "boundedgen.label": submission.label,
        "gen_ai.output.type": "json" if "json_schema" in config.get("structured_output_config", ()) else "",
    }
    if not config.get("do_sample"):
        told.pop("gen_ai.request.seed", None)
    if (choices := int(config.get("num_return_sequences", 1))) != 1:
        told["gen_ai.request.choice.count"] = choices
    return {
        OPERATION: OPERATIONS[flow.prompt_kind],
        **ENGINE,
        **told,
        **{name: value for name, value in about.items() if value},
        "boundedgen.id": submission.id,
        "boundedgen.priority": submission.priority,
        "boundedgen.prompt": flow.prompt_kind,
    }


def error_of(ending: Ending) -> str:
    """The name of the error that it raises; empty: a normal end."""
    kind = ERROR_OF.get(FinishReason(ending.reason))
    return "" if kind is None else kind.__name__


class Spans:
    def __init__(self, provider: TracerProvider | None) -> None:
        self._provider = provider
        self._tracer = trace.get_tracer(SCOPE, boundedgen.__version__, tracer_provider=provider)

    def heard(self) -> bool:
        """There is somebody who does anything with a span."""
        return does_something(self._provider or trace.get_tracer_provider())

    def tell(self, ending: Ending, parent: Context, attributes: Attributes, wall: Callable[[float], int]) -> Context:
        """The whole span, which began when it was submitted. `wall`: nanoseconds since the epoch, of an instant."""
        submitted = ending.submission.submitted_at
        name = " ".join(filter(None, (attributes[OPERATION], attributes.get(MODEL))))
        span = self._tracer.start_span(
            name, parent, SpanKind.CLIENT, {**attributes, **_outcome(ending)}, start_time=wall(submitted)
        )
        if span.is_recording():
            self._happened(span, ending, wall)
        span.end(wall(ending.settled_at))
        return trace.set_span_in_context(span, parent)

    def _happened(self, span: Span, ending: Ending, wall: Callable[[float], int]) -> None:
        instants: Mapping[str, float | None] = {
            "boundedgen.queued": ending.submission.submitted_at,
            "boundedgen.prefill": ending.admitted_at,
            "boundedgen.decode": ending.first_token_at,
        }
        for event, instant in instants.items():
            if instant is not None:
                span.add_event(event, timestamp=wall(instant))
        if error_of(ending):
            span.set_status(Status(StatusCode.ERROR, _description(ending)))


def _outcome(ending: Ending) -> Attributes:
    """What is known once it has ended."""
    submission, reason = ending.submission, FinishReason(ending.reason)
    outcome: Attributes = {
        "gen_ai.usage.input_tokens": submission.prompt_tokens,
        "gen_ai.usage.output_tokens": ending.output_tokens,
        "boundedgen.ending": ending.reason,
        "boundedgen.incarnations": ending.incarnations,
        "boundedgen.resumed": ending.resumed,
    }
    if reason.normal:
        outcome["gen_ai.response.finish_reasons"] = (ending.reason,) * ending.results
    else:
        outcome["error.type"] = error_of(ending)
    if ending.bound:
        outcome["boundedgen.bound"] = ending.bound
    if ending.first_token_at is not None and submission.sequences == 1:
        outcome["gen_ai.response.time_to_first_chunk"] = ending.first_token_at - submission.submitted_at
    return outcome


def _description(ending: Ending) -> str:
    """Why it failed, in our own words."""
    bound = f"reached its bound {ending.bound!r}" if ending.bound else ending.reason
    detail = "" if ending.reason in _QUOTES else ending.detail
    return ": ".join(filter(None, (bound, detail)))[:DESCRIPTION_MOST]


def does_something(provider: object) -> bool:
    """It is an SDK's. What the API itself has does nothing, or hands on to one that is set later."""
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))
