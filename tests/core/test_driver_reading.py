"""What the driver reads is never later than the time that it goes by."""

import pytest
from core.hand_engine import HandEngine, lane

import boundedgen as b
from boundedgen._core import _events as ev


def test_a_deadline_that_the_engine_sees_pass_while_the_driver_reads_is_a_deadline() -> None:
    with lane(HandEngine(), bounds=b.Bounds(total=5)) as (pipeline, engine):
        generation = pipeline.submit("x", max_new_tokens=8)
        stay, receive = engine.stay(), engine.link.receive

        def slowly() -> list[ev.Report]:
            """Six seconds pass between the beginning of the wake and the end of its reading."""
            engine.link.receive = receive  # type: ignore[method-assign]
            engine.clock.skip(6)
            engine.link.progress(stopping=(stay,), released=(ev.Release(stay, 1, 0.001, 0),))
            return receive()

        engine.link.receive = slowly  # type: ignore[method-assign]
        engine.link.tell()
        with pytest.raises(b.DeadlineExceeded) as caught:
            generation.result(20)
        assert caught.value.deadline is not None
        assert caught.value.deadline.bound == "total"
