"""Each abnormal end has exactly one error, and back; every error survives pickling and copying whole."""

import copy
import inspect
import pickle
from typing import Any

import pytest

import boundedgen as b
from boundedgen import _errors
from boundedgen._errors import ERROR_OF, BoundedGenError, DeadlineExceeded, FinishReason, GenerationError, Rejected

ERRORS = [error for _, error in inspect.getmembers(_errors, inspect.isclass) if issubclass(error, BoundedGenError)]
ENDS = [error for error in ERRORS if issubclass(error, GenerationError) and error is not GenerationError]
PARTIAL = b.Completion(
    text="so far", token_ids=(1, 2), finish_reason=FinishReason.DEADLINE, prompt_tokens=3, completion_tokens=2,
    queued_s=0.1, first_token_s=0.2, total_s=1.0,
)  # fmt: skip
FIELDS: dict[str, Any] = {
    "generation_id": 7,
    "partial": PARTIAL,
    "detail": "why",
    "retry_after_s": 2.5,
    "needed": {"kv": 3},
}
HINTS = ["http_status_hint", "grpc_status_hint", "finish_reason", "retryable"]
GRPC = {
    "CANCELLED", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "OUT_OF_RANGE", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "UNAVAILABLE", "INTERNAL",
}  # fmt: skip


def test_every_abnormal_reason_has_an_error_and_no_normal_one_has() -> None:
    assert set(ERROR_OF) == {reason for reason in FinishReason if not reason.normal}


@pytest.mark.parametrize("reason", list(ERROR_OF))
def test_the_error_of_a_reason_leads_back_to_it(reason: FinishReason) -> None:
    assert ERROR_OF[reason].finish_reason is reason


@pytest.mark.parametrize("error", ENDS)
def test_the_reason_of_an_end_leads_to_that_error_and_no_other(error: type[GenerationError]) -> None:
    assert error.finish_reason is not None
    assert ERROR_OF[error.finish_reason] is error


@pytest.mark.parametrize("error", [e for e in ERRORS if issubclass(e, Rejected)])
def test_every_refusal_says_rejected(error: type[Rejected]) -> None:
    assert error.finish_reason is FinishReason.REJECTED


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_is_public_and_has_hints_that_exist(error: type[BoundedGenError]) -> None:
    assert getattr(b, error.__name__) is error
    assert 400 <= error.http_status_hint < 600
    assert error.grpc_status_hint in GRPC
    assert isinstance(error.retryable, bool)
    assert error.__doc__


@pytest.mark.parametrize("error", ERRORS)
def test_what_may_be_tried_again_is_never_the_caller_s_fault(error: type[BoundedGenError]) -> None:
    if error.retryable:
        assert error.http_status_hint in (429, 503)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("way", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_an_error_survives_pickling_and_copying_whole(error: type[BoundedGenError], way: Any) -> None:
    original = error("the message", **FIELDS)
    original.add_note("a note")
    again = way(original)
    assert type(again) is error
    assert again is not original
    assert (str(again), again.args) == (str(original), original.args) == ("the message", ("the message",))
    assert {name: getattr(again, name) for name in FIELDS} == FIELDS
    assert [getattr(again, name) for name in HINTS] == [getattr(original, name) for name in HINTS]
    assert again.__notes__ == ["a note"]


@pytest.mark.parametrize("error", ERRORS)
def test_a_field_of_one_error_is_not_seen_on_another(error: type[BoundedGenError]) -> None:
    error("first", detail="secret")
    assert getattr(error("second"), "detail", "") == ""


def exceeded(bound: str) -> DeadlineExceeded:
    return DeadlineExceeded("late", deadline=b.Deadline(5.0, bound))


def test_a_deadline_exceeded_is_a_timeout() -> None:
    with pytest.raises(TimeoutError):
        raise exceeded("total")
    assert (exceeded("total").http_status_hint, exceeded("total").retryable) == (504, False)


def test_one_that_only_waited_may_be_tried_again() -> None:
    error = exceeded("queued")
    assert (error.http_status_hint, error.grpc_status_hint, error.retryable) == (503, "UNAVAILABLE", True)
    again = pickle.loads(pickle.dumps(error))
    assert (again.http_status_hint, again.grpc_status_hint, again.retryable) == (503, "UNAVAILABLE", True)
    assert again.deadline == b.Deadline(5.0, "queued")
    assert (DeadlineExceeded.http_status_hint, exceeded("total").retryable) == (504, False), "and no other is touched"


def test_the_partial_output_s_text_is_in_no_message_and_no_repr() -> None:
    error = GenerationError("the message", partial=PARTIAL)
    assert "so far" not in str(error) + repr(error) + repr(PARTIAL)
