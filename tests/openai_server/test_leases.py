"""A lease that a client renews: it ends what runs under it once the client stops, whoever goes on reading."""

from __future__ import annotations

import time
from typing import Any

import pytest
from openai_server.served import FULL, HELLO, Served, ends_of, events, served

pytestmark = pytest.mark.timeout(60)
CHAT = "/v1/chat/completions"
KEY = {"Authorization": "Bearer somebody"}


def granted(server: Served, **fields: Any) -> dict[str, str]:
    """The headers of a client with a lease."""
    answer = server.post("/v1/leases", fields, **KEY)
    assert answer.status_code == 201, answer.text
    assert answer.headers["x-lease-id"] == answer.json()["id"]
    return {**KEY, "X-Lease-Id": answer.json()["id"]}


def test_when_heartbeats_stop_the_lane_is_free_within_the_ttl_though_the_socket_is_read_on(server: Served) -> None:
    lease = granted(server, ttl=0.5)
    with server.http.stream("POST", CHAT, json=server.chat(max_tokens=8000, stream=True), headers=lease) as inside:
        told, seen = events(inside), []
        beats = time.monotonic() + 1.2  # longer than the ttl
        while time.monotonic() < beats:
            seen.append(next(told))
            if len(seen) % 50 == 0:
                assert server.post("/v1/leases/heartbeat", **lease).status_code == 200
        stopped = time.monotonic()
        seen += told  # as a proxy reads
        took = time.monotonic() - stopped
    assert ends_of(seen) == ["lease"]
    assert seen[-2]["error"]["code"] == "lease_lost"
    assert seen[-1] == "[DONE]"
    assert took < 0.5 + 0.5
    server.at_rest(within=1)
    assert server.post("/v1/leases/heartbeat", **lease).status_code == 410


def test_a_whole_answer_whose_lease_ends_is_a_499_and_not_an_answer(server: Served) -> None:
    lease = granted(server, ttl=0.3)
    answer = server.post(CHAT, server.chat(max_tokens=8000), **lease)
    assert (answer.status_code, answer.json()["error"]["code"]) == (499, "lease_lost")
    assert answer.json()["error"]["partial"]["completion_tokens"] > 0


def test_a_lease_is_anothers_like_one_that_never_was(server: Served) -> None:
    lease = granted(server)
    other = {**lease, "Authorization": "Bearer another"}
    never = {**KEY, "X-Lease-Id": "0" * 32}
    messages = set()
    for headers in (other, never):
        for answer in (server.post("/v1/leases/heartbeat", **headers), server.post(CHAT, server.chat(), **headers)):
            assert answer.status_code == 410
            assert answer.json()["error"]["type"] == "lease_error"
            messages.add(answer.json()["error"]["message"])
        assert server.http.delete("/v1/leases", headers=headers).status_code == 410
    assert len(messages) == 2, "what is told depends on whose it is"
    assert server.http.delete("/v1/leases", headers=lease).status_code == 204
    assert server.http.delete("/v1/leases", headers=lease).status_code == 410


def test_revoking_a_lease_ends_what_runs_under_it(server: Served) -> None:
    lease = granted(server, ttl=20)
    with server.http.stream("POST", CHAT, json=server.chat(max_tokens=8000, stream=True), headers=lease) as inside:
        told = events(inside)
        next(told)
        assert server.http.delete("/v1/leases", headers=lease).status_code == 204
        assert ends_of(list(told)) == ["lease"]


def test_a_lease_may_be_for_so_many_at_once_and_be_named_in_the_body(server: Served) -> None:
    lease = granted(server, ttl=20, max_sequences=1)
    named = server.chat(lease=lease["X-Lease-Id"])
    with server.http.stream("POST", CHAT, json=server.chat(max_tokens=8000, stream=True), headers=lease) as inside:
        told = events(inside)
        next(told)
        assert server.post(CHAT, named, **KEY).status_code == 429
    server.at_rest()
    assert server.post(CHAT, named, **KEY).status_code == 200
    server.http.delete("/v1/leases", headers=lease)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"ttl": 0}, "ttl"),
        ({"ttl": 31}, "ttl"),
        ({"ttl": "x"}, "ttl"),
        ({"max_sequences": 0}, "max_sequences"),
        ({"a": 1}, "a"),
    ],
)
def test_a_lease_that_cannot_be_is_a_400_that_names_the_field(server: Served, fields: Any, param: str) -> None:
    answer = server.post("/v1/leases", fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert server.post("/v1/leases/heartbeat").json()["error"]["param"] == "X-Lease-Id"


def test_the_openai_client_carries_a_lease_in_its_headers(server: Served) -> None:
    with server.client() as client:
        lease: Any = client.post("/leases", body={"ttl": 10}, cast_to=object)
        headers = {"X-Lease-Id": lease["id"]}
        answer = client.with_options(default_headers=headers).chat.completions.create(
            model="plain", messages=HELLO, max_tokens=3, extra_body=FULL
        )
        beat: Any = client.post("/leases/heartbeat", options={"headers": headers}, cast_to=object)
    assert answer.choices[0].finish_reason == "length"
    assert 9 < beat["remaining_s"] <= 10
    assert "lease" not in answer.model_dump()
    server.http.delete("/v1/leases", headers={**KEY, **headers})


def test_owners_come_from_keys_and_neither_keys_nor_ids_of_leases_are_told(tmp_path: Any) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"sk-ann": "ann", "sk-bob": "bob"}')
    with served(environment={"BOUNDEDGEN_API_KEYS": str(keys)}) as server:
        for headers in ({}, {"Authorization": "Bearer sk-eve"}, {"Authorization": "sk-ann"}):
            refused = server.post(CHAT, server.chat(), **headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
            assert server.http.get("/v1/models", headers=headers).status_code == 401
            assert server.post("/v1/leases", **headers).status_code == 401
        ann = {"Authorization": "Bearer sk-ann"}
        lease = {**ann, "X-Lease-Id": server.post("/v1/leases", **ann).json()["id"]}
        with server.http.stream("POST", CHAT, json=server.chat(max_tokens=8000, stream=True), headers=lease) as inside:
            told = events(inside)
            first = next(told)
            looked = server.http.get("/stats").text + server.http.get("/metrics").text
            (row,) = server.stats_rows()
        assert (row["owner"], row["label"]) == ("ann", first["id"])
        assert "sk-ann" not in looked
        assert lease["X-Lease-Id"] not in looked
        server.at_rest()
