"""When to start the engine again: tenacity's strategies, turned into seconds or None."""

from collections.abc import Callable
from typing import Any, Literal, final

import tenacity
from attrs import field, frozen
from tenacity import RetryCallState, stop_after_attempt, wait_exponential, wait_random

from boundedgen._arguments import names_unknown_keywords, plain_str, short
from boundedgen._bounds import Seconds, seconds
from boundedgen._fields import tells_of_its_fields


def _forget_after(value: Seconds) -> float:
    plain = seconds("RestartPolicy.forget_after", value)
    if plain is None or not 0 <= plain < float("inf"):
        raise ValueError(f"RestartPolicy.forget_after is {short(value)}; give seconds, 0 or more")
    return plain


@final
@tells_of_its_fields
@names_unknown_keywords
@frozen(kw_only=True)
class RestartPolicy:
    """What happens after the engine died.

    `wait` and `stop` are tenacity strategies (`tenacity.wait_exponential(...)`, `tenacity.stop_after_attempt(...)`,
    combined with + and |, or a callable on a `tenacity.RetryCallState`): `attempt_number` counts failures in a row,
    `seconds_since_start` the time since the first of them. One that raises or takes 2 s is replaced by the default.
    """

    #: seconds until the next start; the default is 0.2, 0.4, 0.8, 1.6, 3.2 s, each with up to 0.2 s of jitter
    wait: Callable[[RetryCallState], float] = field(
        factory=lambda: wait_exponential(multiplier=0.2, max=30) + wait_random(0, 0.2)
    )
    #: whether to give up: FAILED; the default does at the sixth failure in a row
    stop: Callable[[RetryCallState], bool] = field(factory=lambda: stop_after_attempt(6))
    #: seconds for which engines must have served tokens, none of them lost, before earlier failures are forgotten
    forget_after: float = field(default=60.0, converter=_forget_after)
    #: what becomes of the generations that were inside. "fail": they end EngineLost, with their partial output.
    #: "continue": the next engine takes them up again, inside their own deadlines. One that has shown nothing starts
    #: anew. One that has is sent with its tokens so far, and its stream goes on: greedy, and on the CPU with
    #: `INFERENCE_PRECISION_HINT` and `KV_CACHE_PRECISION` f32 and `DYNAMIC_QUANTIZATION_GROUP_SIZE` 0, as it would
    #: have, else with a valid continuation. With a grammar, presence_penalty or frequency_penalty (also one of the
    #: model's own generation_config.json) it ends EngineLost. What is new in the step that an engine fails in is tried
    #: apart from the others; what two engines failed on ends QUARANTINED; what was inside of three that failed,
    #: or that were lost in a row before it showed a token, EngineLost.
    resume: Literal["fail", "continue"] = "fail"

    def __attrs_post_init__(self) -> None:
        for name in ("wait", "stop"):
            if not callable(getattr(self, name)):
                raise TypeError(
                    f"RestartPolicy.{name} must be a tenacity strategy or a callable, not {short(getattr(self, name))}"
                )
        if not isinstance(self.resume, str) or plain_str(self.resume) not in ("fail", "continue"):
            raise ValueError(f"RestartPolicy.resume is {short(self.resume)}; give 'fail' or 'continue'")

    def delay(self, failures: int, since_s: float) -> float | None:
        """Seconds until the next start after `failures` in a row, the first `since_s` seconds ago; None: give up.

        Runs the user's strategies: whatever they raise comes out.
        """
        state = RetryCallState(retry_object=_Nothing(), fn=None, args=(), kwargs={})
        state.attempt_number = failures
        state.start_time = 0.0
        state.outcome_timestamp = max(0.0, since_s)
        state.upcoming_sleep = wait = float(self.wait(state))
        return None if self.stop(state) else max(0.0, wait)


class _Nothing(tenacity.Retrying):
    """RetryCallState wants an owner; ours never runs anything."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("only a state is wanted")
