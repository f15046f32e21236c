"""The lane page as a browser asks for it: its files, its events, and what its buttons send."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from openai_server.lanes import ADMIN, SECRET, asked, inside, leased, state
from openai_server.served import ROOT, Served, ended, served

from boundedgen.testing import Simulation
from examples.openai_server.lane_page import Events, lane_routes
from examples.openai_server.lane_pictures import VIEWERS_MOST, Pictures, TooManyError, Watched

pytestmark = pytest.mark.timeout(60)
PAGE = ROOT / "examples" / "openai_server" / "page"


def pictures_of(response: httpx.Response) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and picture of each event, as they come."""
    number = 0
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if name == "id":
            number = int(value)
        elif name == "data":
            yield number, json.loads(value)
        else:
            assert line == "" or name in ("", "retry"), line


# --- what is served --------------------------------------------------------------------------------------------------


def test_the_page_is_made_of_its_own_files_and_may_load_nothing_else(server: Served) -> None:
    page = server.http.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    named = re.findall(r'(?:href|src)="(lane/page/[^"]+)"', page.text)
    assert len(named) == 3
    for name in (*named, *(f"lane/page/{path.name}" for path in PAGE.glob("*.js"))):
        answer = server.http.get(f"/{name}")
        assert answer.status_code == 200, name
        assert answer.headers["content-security-policy"] == policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    for path in PAGE.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, f"{path.name} names another host"
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|style=\"|onclick=", text)
        assert text.count("\n") < 400
    for wrong in ("/lane/page/page.html", "/lane/page/../lane_page.py", "/lane/page/%2e%2e/lane_page.py"):
        assert server.http.get(wrong).status_code == 404


def until_shown(server: Served, *owners: str) -> None:
    """A picture is for as long as those of viewers are apart, and may be of the test before."""
    end = time.monotonic() + 10
    while [row["owner"] for row in server.http.get("/lane/state").json()["lanes"][0]["stats"]["sequences"]] != [
        *owners
    ]:
        assert time.monotonic() < end, owners
        time.sleep(0.05)


def test_a_picture_is_the_lanes_document_with_what_is_wrong_and_no_prompt(lane: Served) -> None:
    headers, digits = leased(lane)
    with inside(lane, "k-ann", **headers):
        until_shown(lane, "ann")
        document, told = lane.http.get("/stats").json(), lane.http.get("/lane/state")
        shown = told.json()["lanes"][0]
        assert SECRET not in told.text
        assert headers["X-Lease-Id"] not in told.text
        assert document.keys() < shown.keys()
        assert document["health"].keys() == shown["health"].keys()
        assert document["stats"].keys() - shown["stats"].keys() == {"times", "reclaim"}
        assert [(row["owner"], row["lease"]) for row in shown["stats"]["sequences"]] == [("ann", digits)]
        assert shown["can"] == ["cancel", "revoke", "kill"]
        assert [trouble["brief"] for trouble in shown["troubles"] if "lost" not in trouble["brief"]] == []
    asked(lane, "revoke", lease=digits)


def test_events_come_twice_a_second_and_are_the_same_for_all_viewers(lane: Served) -> None:
    with contextlib.ExitStack() as stack:
        viewers = [stack.enter_context(lane.http.stream("GET", "/lane/events")) for _ in range(8)]
        assert viewers[0].headers["content-type"] == "text/event-stream; charset=utf-8"
        assert viewers[0].headers["cache-control"] == "no-store"
        told = [pictures_of(viewer) for viewer in viewers]
        seen = [[next(one) for _ in range(4)] for one in told]
    numbers = [number for number, _ in seen[0]]
    assert numbers == list(range(numbers[0], numbers[0] + 4))
    by_number = {number: picture for one in seen for number, picture in one}
    assert all(picture == by_number[number] for one in seen for number, picture in one), "one sampler for all"
    at = [picture["at"] for _, picture in seen[0]]
    assert 1.4 < at[-1] - at[0] < 3


def test_viewers_are_bounded_and_one_more_is_told_so(lane: Served) -> None:
    limits = httpx.Limits(max_connections=VIEWERS_MOST + 2)
    with httpx.Client(base_url=lane.url, timeout=10, limits=limits) as http, contextlib.ExitStack() as stack:
        viewers = [stack.enter_context(http.stream("GET", "/lane/events")) for _ in range(VIEWERS_MOST)]
        assert all(viewer.status_code == 200 for viewer in viewers)
        refused = http.get("/lane/events")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_viewers")
        assert int(refused.headers["retry-after"]) >= 1
        assert http.get("/lane/state").status_code == 200
        viewers[0].close()
        end = time.monotonic() + 5
        status = 503
        while status == 503:
            assert time.monotonic() < end
            with http.stream("GET", "/lane/events") as again:
                status = again.status_code
    assert status == 200


def test_events_go_on_while_the_engine_hangs_and_say_so(lane: Served) -> None:
    with inside(lane, "k-ann"), lane.http.stream("GET", "/lane/events") as stream:
        told = pictures_of(stream)
        next(told)
        pid = lane.stats()["engine_pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            ages = []
            for _, picture in told:
                stats = picture["lanes"][0]["stats"]
                ages.append(stats["step_current_s"] or stats["last_progress_s"])
                words = " ".join(trouble["words"] for trouble in picture["lanes"][0]["troubles"])
                if re.search("a step hangs|no progress", words):
                    break
                assert time.monotonic() - began < 15
        finally:
            os.kill(pid, signal.SIGCONT)
        assert ages[-1] > 4
        assert ages[1:] == sorted(ages[1:]), "it grows with each picture"


def test_a_drain_is_shown_and_ends_the_streams_of_events() -> None:
    """Nobody's page keeps a server from ending."""
    with served(drain=10) as server:
        with server.http.stream("GET", "/lane/events") as stream:
            told = pictures_of(stream)
            next(told)
            server.process.send_signal(signal.SIGTERM)
            states = [picture["lanes"][0]["health"]["state"] for _, picture in told]  # to the end of it
        assert states[-1] == "closed"
        began = time.monotonic()
        ended(server)
        assert time.monotonic() - began < 3


# --- slow viewers, and crowds ----------------------------------------------------------------------------------------


async def received() -> dict[str, Any]:
    """Nothing more comes from this client."""
    await asyncio.Event().wait()
    raise AssertionError


SCOPE: dict[str, Any] = {"type": "http", "method": "GET", "path": "/lane/events", "headers": []}


def test_a_slow_viewer_gets_the_newest_picture_and_none_in_between() -> None:
    async def main(sim: Simulation) -> list[int]:
        pictures = Pictures({"sim": Watched(sim.pipeline)})
        numbers: list[int] = []
        slow = asyncio.Event()

        async def send(message: Any) -> None:
            if found := re.match(rb"id: (\d+)", message.get("body", b"")):
                numbers.append(int(found[1]))
                if len(numbers) == 1:
                    await slow.wait()

        viewer = asyncio.create_task(Events(pictures)(SCOPE, received, send))
        quick = await anext_numbers(pictures, 5)
        slow.set()
        await asyncio.sleep(0.2)
        viewer.cancel()
        await asyncio.gather(viewer, return_exceptions=True)
        assert quick == [1, 2, 3, 4, 5]
        return numbers

    with Simulation() as sim:
        assert asyncio.run(main(sim)) == [1, 5]


async def anext_numbers(pictures: Pictures, most: int) -> list[int]:
    numbers: list[int] = []
    events = pictures.events()
    async for event in events:
        if found := re.match(rb"id: (\d+)", event):
            numbers.append(int(found[1]))
        if len(numbers) == most:
            break
    await events.aclose()
    return numbers


def test_a_viewer_that_takes_nothing_is_hung_up_on_and_its_place_is_free() -> None:
    async def main(sim: Simulation) -> float:
        pictures = Pictures({"sim": Watched(sim.pipeline)})

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        began = time.monotonic()
        await asyncio.gather(*(Events(pictures, 0.3)(SCOPE, received, send) for _ in range(VIEWERS_MOST)))
        took = time.monotonic() - began
        events = [pictures.events() for _ in range(VIEWERS_MOST + 1)]
        for one in events[:-1]:
            assert await anext(one) == b"retry: 2000\n\n"
        with pytest.raises(TooManyError):
            await anext(events[-1])
        for one in events:
            await one.aclose()
        return took

    with Simulation() as sim:
        assert 0.3 <= asyncio.run(main(sim)) < 3


def test_while_nobody_looks_no_picture_is_made_and_a_silent_sampler_is_bridged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.openai_server.lane_pictures.HEARTBEAT_S", 0.1)
    looks: list[str] = []
    look = Watched.look

    def counted(self: Watched, name: str) -> dict[str, Any]:
        looks.append(name)
        return look(self, name)

    async def main(sim: Simulation) -> list[bytes]:
        pictures = Pictures({"sim": Watched(sim.pipeline)})
        monkeypatch.setattr(Watched, "look", counted)
        await anext_numbers(pictures, 1)
        await asyncio.sleep(0.7)
        assert len(looks) == 1
        events: AsyncIterator[bytes] = pictures.events()
        return [await anext(events) for _ in range(4)]

    with Simulation() as sim:
        told = asyncio.run(main(sim))
    assert told[0] == b"retry: 2000\n\n"
    assert told[1].startswith(b"id: 2\ndata: ")
    assert told[2:] == [b": still here\n\n"] * 2


def test_of_a_crowd_the_oldest_are_shown_and_the_others_counted() -> None:
    with Simulation() as sim:
        crowd = [sim.pipeline.submit("x", owner="o") for _ in range(130)]
        sim.advance(0.01)
        shown = Watched(sim.pipeline).look("sim")
        assert [row["id"] for row in shown["stats"]["sequences"]] == [one.id for one in crowd[:100]]
        assert shown["younger"] == 30
        for one in crowd:
            one.cancel()


def test_several_lanes_are_on_one_page_and_the_last_one_that_is_closed_ends_it() -> None:
    with Simulation() as one, Simulation() as other:
        pictures = Pictures({"a": Watched(one.pipeline), "b": Watched(other.pipeline)})

        async def look() -> tuple[list[str], bool]:
            await asyncio.sleep(0.5)
            picture = await pictures.now()
            lanes = json.loads(picture.body)["lanes"]
            return [f"{lane['name']} {lane['health']['state']}" for lane in lanes], picture.last

        assert asyncio.run(look()) == (["a ready", "b ready"], False)
        other.pipeline.close()
        assert asyncio.run(look()) == (["a ready", "b closed"], False)
        one.pipeline.close()
        assert asyncio.run(look()) == (["a closed", "b closed"], True)


# --- buttons ---------------------------------------------------------------------------------------------------------


def test_without_an_admin_token_there_are_no_buttons_and_no_endpoints_for_them(server: Served) -> None:
    assert state(server)["can"] == []
    for act in ("admin", "cancel", "revoke", "kill"):
        assert asked(server, act, None).status_code == 404
        assert asked(server, act, "None").status_code == 404
    for token, why in ((" ", "is empty"), ("gehe\u00efm", "a header cannot carry"), ("a\nb", "a header cannot carry")):
        with pytest.raises(ValueError, match=f"admin_token .*{why}"):
            lane_routes({}, admin_token=token)


@pytest.mark.parametrize("token", [None, "wrong", ADMIN[:-1], ADMIN + "x", ADMIN.upper(), "k-ann"])
def test_another_token_is_a_401_and_nothing_is_done(lane: Served, token: str | None) -> None:
    with inside(lane, "k-ann"):
        (row,) = lane.stats_rows()
        engine = lane.stats()["incarnation"]
        for act, fields in (("admin", {}), ("cancel", {"sequence": row["id"]}), ("kill", {"incarnation": engine})):
            answer = asked(lane, act, token, **fields)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_admin_token")
            assert answer.headers["www-authenticate"] == "Bearer"
        assert lane.post(f"/lane/cancel?token={ADMIN}", {}, Cookie=f"token={ADMIN}").status_code == 401
        assert [one["id"] for one in lane.stats_rows()] == [row["id"]]


def test_a_sequence_is_cancelled_by_its_number_be_it_running_or_waiting(lane: Served) -> None:
    with inside(lane, "k-ann", "k-bob", "k-ann", "k-ann", "k-bob") as clients:
        rows = lane.stats_rows()
        assert [row["phase"] for row in rows] == ["running"] * 4 + ["waiting"]
        for index in (4, 1):
            answer = asked(lane, "cancel", sequence=rows[index]["id"])
            assert (answer.status_code, answer.json()["done"]) == (200, f"sequence {rows[index]['id']} is cancelled")
            assert clients[index].ended() == (499, "generation_cancelled")
        assert asked(lane, "cancel", sequence=rows[4]["id"]).status_code == 404
        assert {row["id"] for row in lane.stats_rows()} >= {rows[index]["id"] for index in (0, 2, 3)}


def test_one_that_has_ended_and_is_still_held_by_a_hung_engine_is_a_409(lane: Served) -> None:
    with inside(lane, "k-ann") as (client,):
        (row,) = lane.stats_rows()
        pid = lane.stats()["engine_pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            assert asked(lane, "cancel", sequence=row["id"]).status_code == 200
            assert client.ended() == (499, "generation_cancelled"), "while the engine hangs"
            lane.until(lambda stats: stats["stopping"] == 1, "that it is stopping")
            again = asked(lane, "cancel", sequence=row["id"])
        finally:
            os.kill(pid, signal.SIGCONT)
        assert (again.status_code, again.json()["error"]["code"]) == (409, "ended")


def test_a_lease_is_revoked_by_what_is_shown_of_it(lane: Served) -> None:
    headers, digits = leased(lane)
    with inside(lane, "k-ann", "k-ann", **headers) as clients:
        assert {row["lease"] for row in lane.stats_rows()} == {digits}
        assert asked(lane, "revoke", lease=digits).status_code == 200
        assert [client.ended() for client in clients] == [(499, "lease_lost")] * 2
    again = asked(lane, "revoke", lease=digits)
    assert (again.status_code, again.json()["error"]["code"]) == (404, "no_lease")
    assert lane.post("/v1/leases/heartbeat", **headers, Authorization="Bearer k-ann").status_code == 410


def test_an_engine_that_hangs_is_killed_once_and_the_lane_is_back(lane: Served) -> None:
    with inside(lane, "k-ann") as (client,):
        before = lane.stats()
        os.kill(before["engine_pid"], signal.SIGSTOP)
        assert asked(lane, "kill", incarnation=before["incarnation"] + 1).status_code == 409
        answer = asked(lane, "kill", incarnation=before["incarnation"])
        assert answer.status_code == 200, answer.text
        assert client.ended() == (503, "engine_lost")
    lane.until(lambda stats: stats["restarts_total"] > before["restarts_total"], "that it is replaced")
    again = asked(lane, "kill", incarnation=before["incarnation"])
    assert (again.status_code, again.json()["error"]["code"]) == (409, "engine_gone")
    assert lane.stats()["kills_total"]["died"] == before["kills_total"]["died"] + 1


@pytest.mark.parametrize(
    ("act", "fields", "status", "code"),
    [
        ("cancel", {}, 400, "missing_required_parameter"),
        ("cancel", {"sequence": "1"}, 400, "invalid_value"),
        ("cancel", {"sequence": 0}, 400, "invalid_value"),
        ("cancel", {"sequence": 10**9}, 404, "not_inside"),
        ("cancel", {"sequence": 1, "lane": "other"}, 404, "no_lane"),
        ("cancel", {"sequence": 1, "also": 1}, 400, "unknown_parameter"),
        ("revoke", {"lease": "00000000"}, 404, "no_lease"),
        ("revoke", {"lease": 7}, 400, "invalid_value"),
        ("kill", {"incarnation": True}, 400, "invalid_value"),
        ("kill", {"incarnation": 10**6}, 409, "engine_gone"),
        ("kill", {"lane": "x" * 5000, "incarnation": 1}, 413, "request_too_large"),
    ],
)
def test_what_cannot_be_done_is_told_with_its_status(
    lane: Served, act: str, fields: dict[str, Any], status: int, code: str
) -> None:
    answer = asked(lane, act, **fields)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert lane.http.get(f"/lane/{act}").status_code == 405


def test_a_server_that_keeps_no_handles_offers_to_kill_engines_only() -> None:
    from starlette.applications import Starlette

    async def main(sim: Simulation) -> None:
        app = Starlette(routes=lane_routes({"sim": sim.pipeline}, admin_token=ADMIN))
        headers = {"Authorization": f"Bearer {ADMIN}"}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://lane", headers=headers
        ) as http:
            assert (await http.get("/lane/state")).json()["lanes"][0]["can"] == ["kill"]
            for act, fields in (("cancel", {"sequence": sim.pipeline.submit("x").id}), ("revoke", {"lease": "0" * 8})):
                refused = await http.post(f"/lane/{act}", json={"lane": "sim", **fields})
                assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_held")
            gone = await http.post("/lane/kill", json={"lane": "sim", "incarnation": 1})
            assert gone.status_code == 409, "a simulated engine has no process"

    with Simulation() as sim:
        asyncio.run(main(sim))
