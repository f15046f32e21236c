"""Every end is typed: bounds, a full lane, a client that hangs up, an engine that is killed, a server that drains."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import httpx
import openai
import pytest
from openai_server.served import FULL, HELLO, Served, ended, ends_of, events, is_empty, served, text_of

pytestmark = pytest.mark.timeout(60)
CHAT = "/v1/chat/completions"
LONG = 8000  #: tokens; seconds


def long_chat(server: Served, **fields: Any) -> dict[str, Any]:
    return server.chat(max_tokens=LONG, **fields)


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_a_bound_that_is_reached_is_a_504_that_names_it_and_is_not_tried_again(server: Served) -> None:
    before = server.stats()["submitted_total"]
    with server.client(max_retries=2) as client, pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(
            model="plain", messages=HELLO, max_tokens=LONG, extra_body={**FULL, "bounds": {"total": 0.2}}
        )
    error = caught.value
    assert (error.status_code, error.code, error.param) == (504, "deadline_exceeded", "bounds.total")
    assert isinstance(error.body, dict)
    assert error.body["partial"]["completion_tokens"] > 0
    assert error.body["partial"]["text"]
    assert server.stats()["submitted_total"] == before + 1


def test_the_tighter_of_header_body_client_and_server_holds_and_is_told(server: Served) -> None:
    def told(headers: dict[str, str], **bounds: float) -> str:
        return server.post(CHAT, server.chat(bounds=bounds), **headers).headers["x-bounds"]

    assert told({}) == "total=600"
    assert told({"X-Bounds": "total=7, next_token=3"}, total=9, queued=5) == "total=7, queued=5, next_token=3"
    assert told({"X-Bounds": "total=9999"}) == "total=600"
    assert told({"x-stainless-read-timeout": "20.0"}) == "total=20"  # what the OpenAI client itself waits for
    assert told({"x-stainless-read-timeout": "a while"}) == "total=600"


@pytest.mark.parametrize("line", ["total", "total=soon", "sum=5", "total=nan", "total=inf"])
def test_a_header_of_bounds_that_is_wrong_is_a_400(server: Served, line: str) -> None:
    answer = server.post(CHAT, server.chat(), **{"X-Bounds": line})
    assert answer.status_code == 400
    assert "X-Bounds" in answer.json()["error"]["message"]


def test_a_deadline_that_has_passed_is_a_504_at_once(server: Served) -> None:
    assert server.post(CHAT, server.chat(), **{"X-Bounds": "total=-1"}).status_code == 504


def test_a_stream_that_its_bound_cuts_short_says_so_and_is_closed_in_order(server: Served) -> None:
    cut_short(server, 1)


def test_so_is_one_of_two_choices() -> None:
    """By a server that has not learned yet how long they take: it would refuse both at once."""
    with served() as server:
        cut_short(server, 2)


def cut_short(server: Served, n: int) -> None:
    body = long_chat(server, stream=True, n=n, temperature=1, bounds={"total": 0.3})
    with server.http.stream("POST", CHAT, json=body) as answer:
        told = list(events(answer))
    assert answer.status_code == 200
    assert text_of(told)
    assert told[-1] == "[DONE]"
    error = told[-2]["error"]
    assert (error["code"], error["param"]) == ("deadline_exceeded", "bounds.total")
    assert error["partial"]["completion_tokens"] > 0
    ends = ends_of(told)
    assert len(ends) == n
    assert set(ends) <= {"deadline", "cancelled"}
    assert "deadline" in ends


def test_the_openai_client_raises_at_the_end_of_such_a_stream_after_the_text(server: Served) -> None:
    text, reasons = "", []
    with server.client() as client:
        stream = client.chat.completions.create(
            model="plain", messages=HELLO, max_tokens=LONG, stream=True, extra_body={**FULL, "bounds": {"total": 0.3}}
        )
        caught = ""
        try:
            for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                reasons.append(chunk.choices[0].finish_reason)
        except openai.APIError as error:
            caught = error.code or ""
    assert text
    assert caught == "deadline_exceeded"
    assert {"stop", "length"}.isdisjoint(reasons)


# --- a full lane -----------------------------------------------------------------------------------------------------


def test_a_full_lane_is_a_429_with_a_time_and_the_client_comes_back_by_itself(narrow: Served) -> None:
    streams = [narrow.http.stream("POST", CHAT, json=long_chat(narrow, stream=True)) for _ in range(1)]
    with streams[0] as inside:
        told = events(inside)
        next(told)
        waiting = threading.Thread(target=narrow.post, args=(CHAT, narrow.chat()))
        waiting.start()
        narrow.until(lambda stats: stats["waiting"] == 1, "that one waits")
        refused = narrow.post(CHAT, narrow.chat())
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        with narrow.client() as client, pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="plain", messages=HELLO, max_tokens=1)
        threading.Timer(0.5, inside.close).start()
        with narrow.client(max_retries=5) as client:
            answer = client.chat.completions.create(model="plain", messages=HELLO, max_tokens=2, extra_body=FULL)
        assert answer.choices[0].finish_reason == "length"
        waiting.join(20)
        assert not waiting.is_alive()


def test_who_waits_in_vain_gets_a_503_that_is_safe_to_try_again(narrow: Served) -> None:
    with narrow.http.stream("POST", CHAT, json=long_chat(narrow, stream=True)) as inside:
        told = events(inside)
        next(told)
        answer = narrow.post(CHAT, narrow.chat(stream=True), **{"X-Bounds": "queued=0.2"})
    assert answer.status_code == 503
    assert answer.json()["error"]["param"] == "bounds.queued"
    assert answer.headers["x-should-retry"] == "true"
    assert int(answer.headers["retry-after"]) >= 1


# --- clients that leave ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3])
def test_hanging_up_on_a_stream_ends_it_at_once(server: Served, n: int) -> None:
    before = server.stats()["finished_total"]["cancelled"]
    with server.client() as client:
        stream = client.chat.completions.create(
            model="plain", messages=HELLO, max_tokens=LONG, stream=True, n=n, temperature=1, extra_body=FULL
        )
        next(stream)
        began = time.monotonic()
        stream.close()
        server.at_rest(within=2)
    assert time.monotonic() - began < 2
    assert server.stats()["finished_total"]["cancelled"] == before + n


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_gives_up_before_the_answer_begins_ends_it_too(narrow: Served, stream: bool) -> None:
    """One waits in the queue, one works on a whole answer: nothing has been sent to either."""
    before = narrow.stats()["finished_total"]["cancelled"]

    def impatient(seconds: float) -> None:
        with pytest.raises(httpx.TimeoutException):
            httpx.post(narrow.url + CHAT, json=long_chat(narrow), timeout=seconds)

    first = threading.Thread(target=impatient, args=(1.0,))
    first.start()
    narrow.until(lambda stats: stats["running"] == 1, "that one runs")
    with pytest.raises(httpx.TimeoutException):
        httpx.post(narrow.url + CHAT, json=long_chat(narrow, stream=stream), timeout=0.3)
    first.join(20)
    narrow.at_rest(within=2)
    assert narrow.stats()["finished_total"]["cancelled"] == before + 2


def test_an_async_client_that_is_cancelled_ends_its_generation(server: Served) -> None:
    async def cancelled() -> None:
        async with server.async_client() as client:
            call = client.chat.completions.create(model="plain", messages=HELLO, max_tokens=LONG, extra_body=FULL)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(call, 0.3)

    asyncio.run(cancelled())
    server.at_rest(within=2)


# --- an engine that is lost ------------------------------------------------------------------------------------------


def test_an_engine_that_is_killed_ends_streams_typed_and_retries_come_through() -> None:
    with served(faults=True) as server:
        with server.http.stream("POST", CHAT, json=long_chat(server, stream=True)) as inside:
            told = events(inside)
            first = next(told)
            os.kill(server.stats()["engine_pid"], signal.SIGKILL)
            rest = [first, *told]
        assert ends_of(rest) == ["engine_lost"]
        assert rest[-2]["error"]["code"] == "engine_lost"
        assert rest[-1] == "[DONE]"
        assert server.http.get("/livez").status_code == 200
        server.wait("/readyz", 200)
        threading.Timer(0.5, os.kill, (server.stats()["engine_pid"], signal.SIGKILL)).start()
        with server.client(max_retries=6) as client:  # a whole answer: 503, and it asks again
            answer = client.chat.completions.create(model="plain", messages=HELLO, max_tokens=2500, extra_body=FULL)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2500
        assert server.at_rest()["finished_total"]["engine_lost"] == 2


# --- a server that drains --------------------------------------------------------------------------------------------


def test_a_drain_lets_what_is_inside_end_takes_nothing_new_and_is_told() -> None:
    with served(drain=20) as server:
        with server.http.stream("POST", CHAT, json=server.chat(max_tokens=2500, stream=True)) as inside:
            told = events(inside)
            next(told)
            server.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 5
            while (ready := server.http.get("/readyz")).status_code == 200:
                assert time.monotonic() < deadline
            assert ready.json()["state"] == "draining"
            refused = server.post(CHAT, server.chat())
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "pipeline_closed")
            assert int(refused.headers["retry-after"]) >= 1
            assert server.http.get("/livez").status_code == 200
            rest = list(told)
        assert ends_of(rest) == ["length"]
        assert rest[-1] == "[DONE]"
        ended(server)


@pytest.mark.parametrize("signals", [1, 2])
def test_what_has_not_ended_after_the_drain_or_at_the_second_signal_is_told_so(signals: int) -> None:
    with served(drain=0.5 if signals == 1 else 60) as server:
        with server.http.stream("POST", CHAT, json=long_chat(server, stream=True)) as inside:
            told = events(inside)
            next(told)
            server.process.send_signal(signal.SIGTERM)
            if signals == 2:
                while server.http.get("/readyz").status_code == 200:
                    pass
                server.process.send_signal(signal.SIGINT)
            rest = list(told)
        assert ends_of(rest) == ["shutdown"]
        assert rest[-2]["error"]["code"] == "generation_shut_down"
        assert rest[-1] == "[DONE]"
        ended(server)


def test_nothing_is_left_of_the_server_or_its_engine_after_it_has_ended() -> None:
    with served() as server:
        pid = server.stats()["engine_pid"]
        assert is_empty(server.stats())
        ended(server)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
