"""The lane page in Chromium: what it shows while something is wrong, its buttons, and who can use it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

if importlib.util.find_spec("selenium") is None:
    pytest.skip("the page's tests in a browser want selenium", allow_module_level=True)

from lane_browser import chromium, missing
from openai_server.browsing import TOO_FAINT, TOO_SMALL, TOO_WIDE, Page
from openai_server.lanes import ADMIN, HOSTILE, asked, inside, leased
from openai_server.served import ROOT, Served, served
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

from boundedgen._top._words import listed, percent, rate, size, span

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90), pytest.mark.skipif(bool(missing()), reason=missing())]


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser: Chrome, lane: Served) -> Iterator[Page]:
    """Of a lane that is ready and empty; the browser finds nothing wrong with it."""
    found = Page(browser, lane.url)
    found.open()
    yield found
    assert found.complaints() == []


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """It hangs; what has been killed meanwhile is gone."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


# --- what it shows ---------------------------------------------------------------------------------------------------


def test_what_comes_and_goes_is_seen_at_once(page: Page, lane: Served) -> None:
    assert page.part("state") == "READY"
    assert page.browser.title == "READY hybrid"
    assert page.part("troubles") == "nothing is wrong that can be seen from here" or lane.stats()["restarts_total"]
    assert page.part("younger") == "nothing inside"
    with inside(lane, "k-ann", "k-bob", "k-ann", "k-ann", "k-bob"):
        page.until(lambda: len(page.rows()) == 5, "that five are inside", 2)
        told = lane.stats_rows()
        rows = page.rows()
        assert [row["id"] for row in rows] == [str(row["id"]) for row in told]
        assert [row["owner"] for row in rows] == ["ann", "bob", "ann", "ann", "bob"]
        assert [row["phase"] for row in rows] == ["running"] * 4 + ["waiting"]
        assert {row["bound"] for row in rows} == {"total"}
        assert all(row["left"].startswith(("9m5", "10m")) for row in rows)
        page.until(lambda: int(page.rows()[0]["tokens"]) > int(rows[0]["tokens"]), "that tokens grow")
        assert page.part("slots") == "4 of 4"
        assert page.part("waiting") == "1 waiting"
        assert page.part("step").endswith("s") or page.part("step") == "no step"
        pools = page.part("pools")
        assert "kv" in pools
        assert "linear_attention" in pools
        assert "100% reserved" in pools
        drawn = page.run("return document.querySelector('.pool .reserved').getAttribute('d').split('M').length")
        assert drawn > 200, "a square, and a stroke in it, of each four blocks"
    page.until(lambda: not page.rows(), "that nothing is inside")
    assert page.text('[data-part="endings"]').startswith("cancelled")


def test_figures_are_written_as_top_writes_them(page: Page) -> None:
    spans = [None, -200.0, -3.2, 0, 0.0994, 0.0996, 9.94, 9.96, 42, 119.4, 119.6, 3599.7, 3600, 172_799, 10**5, 10**9]
    sizes = [None, 0, 999, 999.6, 12_345, 5.4e9, 999.6e9, 2.5e12]
    rates = [None, 0, 99.94, 99.96, 12_345.6]
    shares = [None, 0, 0.004, 0.996, 1]
    figures = {"b": 3, "none": 0, "a": 7}
    told = page.browser.execute_async_script(
        """
        const [spans, sizes, rates, shares, figures, done] = arguments;
        import('/lane/page/words.js').then((w) => done([spans.map(w.span), sizes.map(w.size), rates.map(w.rate),
          shares.map(w.percent), w.listed(figures), w.visible('a\\u202eb\\u0007 c\\u00a0')]))
        """,
        spans, sizes, rates, shares, figures,
    )  # fmt: skip
    assert told == [
        [span(one) for one in spans],
        [size(one) for one in sizes],
        [rate(one) for one in rates],
        [percent(one) for one in shares],
        listed({name: figure for name, figure in figures.items() if figure}),
        "a\\u{202e}b\\u{7} c\\u{a0}",
    ]


def test_a_hung_engine_is_seen_killed_by_keys_and_seen_to_recover(page: Page, lane: Served) -> None:
    with inside(lane, "k-ann") as (client,):
        page.until(page.rows, "that it is inside")
        page.unlock(ADMIN)
        page.until(lambda: page.part("kill"), "that there is a button")
        before = lane.stats()
        with stopped(before["engine_pid"]):
            page.until(lambda: re.search("a step hangs|no progress", page.part("troubles")), "that it hangs")
            assert page.text("#link").startswith("live, 0."), "the page lives on"
            engine = f"Kill engine {before['incarnation']}"
            page.tab_to(engine)
            page.keys(Keys.ENTER)
            assert page.text("#ask-head") == f"{engine} of hybrid?"
            assert page.focus() == "Leave it", "it is asked for first"
            page.keys(Keys.ESCAPE)
            assert page.focus() == engine
            assert lane.stats()["incarnation"] == before["incarnation"]
            page.keys(Keys.ENTER)
            page.tab_to(engine, 2)
            page.keys(Keys.ENTER)
            page.until(lambda: page.text("#result").startswith(f"engine {before['incarnation']} is killed"), "a result")
        assert client.ended() == (503, "engine_lost")
    page.until(lambda: page.part("state") == "READY" and page.part("kill") != engine, "that it is back")
    assert "engines lost in the last" in page.part("troubles")
    assert "died" in page.part("lost")


def test_a_server_that_hangs_is_said_to_be_lost_and_found_again(page: Page, lane: Served) -> None:
    assert page.text("#lost") == ""
    with stopped(lane.process.pid):
        page.until(lambda: page.text("#lost"), "that it is lost", 6)
        assert page.text("#lost").startswith("No connection to the server for ")
        assert page.part("state") == "NO ANSWER"
        assert page.part("facts") == "was READY; what follows is of then"
        assert page.browser.title == "NO ANSWER hybrid"
        assert page.text("#link").startswith("last, ")
        assert page.run("return document.getElementById('health-said').textContent") == "no connection to the server"
        page.until(lambda: page.text("#lost").startswith("No connection to the server for 5"), "that it counts on", 4)
    page.until(lambda: page.part("state") == "READY" and not page.text("#lost"), "that it is found again")
    assert page.text("#link").startswith("live, ")


def test_a_server_that_ends_is_lost_and_one_that_comes_back_there_is_shown(page: Page) -> None:
    with served() as server:
        page.open(server.url)
        assert page.text("#admin") == "", "without an admin token there are no buttons"
        assert page.run("return [...document.querySelectorAll('button')].every((b) => !b.checkVisibility())")
        server.process.send_signal(signal.SIGTERM)
        page.until(lambda: page.part("state") == "CLOSED", "that it has ended well", 6)
        page.until(lambda: page.text("#lost"), "that it is lost", 8)
        assert page.part("facts").startswith("was CLOSED")


def test_too_many_viewers_are_shown_a_picture_every_two_seconds(page: Page, lane: Served) -> None:
    with contextlib.ExitStack() as stack:
        page.browser.get("about:blank")
        viewers = 0
        while (one := stack.enter_context(lane.http.stream("GET", "/lane/events"))).status_code == 200:
            viewers += 1
            assert viewers < 40
        page.browser.get(f"{lane.url}/")
        page.until(lambda: "there is no stream: asked every 2 s" in page.text("#link"), "that it is told")
        assert one.status_code == 503
        assert page.part("state") == "READY"
        time.sleep(4.5)
        assert page.text("#lost") == ""
    page.until(lambda: "stream" not in page.text("#link"), "that there is one again")


# --- buttons ---------------------------------------------------------------------------------------------------------


def test_a_wrong_token_is_told_and_shows_no_buttons(page: Page) -> None:
    page.unlock("guess")
    page.until(lambda: page.text("#result") == "not done: this is not the admin token", "that it is told")
    assert page.focus() == "token"
    assert page.part("kill") == ""
    assert page.run("return [sessionStorage.length, localStorage.length, document.cookie]") == [0, 0, ""]


def test_a_token_that_has_become_wrong_is_forgotten(page: Page, lane: Served) -> None:
    with inside(lane, "k-ann"):
        page.unlock(ADMIN)
        page.press("Cancel sequence")
        page.run("sessionStorage.setItem('boundedgen-admin-token', 'old')")
        page.press("Cancel sequence")
        page.until(lambda: page.text("#result") == "not done: this is not the admin token", "that it is told")
        assert page.run("return sessionStorage.length") == 0
        assert page.text("#unlock")
        assert len(lane.stats_rows()) == 1


def test_a_sequence_is_cancelled_and_a_lease_revoked_after_a_question(page: Page, lane: Served) -> None:
    headers, digits = leased(lane)
    page.unlock(ADMIN)
    with inside(lane, "k-bob") as (client,):
        (row,) = lane.stats_rows()
        page.press(f"Cancel sequence {row['id']} of bob")
        assert "It is of bob" in page.text("#ask-words")
        page.press("Leave it")
        assert lane.stats_rows()[0]["phase"] == "running"
        page.press("Cancel sequence")
        page.press(f"Cancel sequence {row['id']}")
        page.until(lambda: page.text("#result") == f"sequence {row['id']} is cancelled", "that it is told")
        assert client.ended() == (499, "generation_cancelled")
    with inside(lane, "k-ann", "k-ann", **headers) as clients:
        page.until(lambda: [one["lease"] for one in page.rows()] == [digits] * 2, "that they are inside")
        page.press(f"Revoke lease {digits} of ann")
        page.press(f"Revoke lease {digits}")
        page.until(lambda: page.text("#result").startswith(f"lease {digits} is revoked"), "that it is told")
        assert [one.ended() for one in clients] == [(499, "lease_lost")] * 2
    page.press("Hide the buttons")
    assert page.run("return sessionStorage.length") == 0


def test_what_has_ended_meanwhile_is_told_and_ends_nothing_else(page: Page, lane: Served) -> None:
    page.unlock(ADMIN)
    with inside(lane, "k-bob", "k-ann") as (bob, _):
        number = lane.stats_rows()[0]["id"]
        page.press(f"Cancel sequence {number} of bob")
        assert asked(lane, "cancel", sequence=number).status_code == 200
        bob.ended()
        page.until(lambda: len(page.rows()) == 1, "that it has left")
        page.press(f"Cancel sequence {number}")
        page.until(lambda: page.text("#result") == f"not done: there is no sequence {number} inside", "that it is told")
        assert page.focus() == "sequences", "its button is gone: the focus is at the heading of what it was in"
        assert len(lane.stats_rows()) == 1


def test_its_pictures_are_made_by_a_command_that_says_what_it_does() -> None:
    pytest.importorskip("PIL")
    command = [sys.executable, "benchmarks/lane_picture.py", "--help"]
    places = os.pathsep.join(("src", ".", os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": places}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30, check=True)
    assert "nox -s page_picture" in done.stdout


# --- who can use it --------------------------------------------------------------------------------------------------


def test_the_focus_stays_while_the_table_moves_on(page: Page, lane: Served) -> None:
    page.unlock(ADMIN)
    with inside(lane, "k-ann", "k-bob", "k-ann") as clients:
        numbers = [row["id"] for row in lane.stats_rows()]
        page.until(lambda: len(page.rows()) == 3, "that they are inside")
        page.run("window.scrollTo(0, 0); document.querySelector('[data-part=name]').focus()")
        page.tab_to(f"Cancel sequence {numbers[1]}")
        asked(lane, "cancel", sequence=numbers[0])
        clients[0].ended()
        page.until(lambda: len(page.rows()) == 2, "that the first has left")
        tokens = page.rows()[0]["tokens"]
        page.until(lambda: page.rows()[0]["tokens"] != tokens, "another picture")
        assert page.focus().startswith(f"Cancel sequence {numbers[1]}")
        for number, client in zip(numbers[1:], clients[1:], strict=True):
            asked(lane, "cancel", sequence=number)
            client.ended()
            page.until(lambda number=number: str(number) not in [r["id"] for r in page.rows()], "that it has left")  # type: ignore[misc]
            following = f"Cancel sequence {numbers[2]}" if number == numbers[1] else "sequences"
            assert page.focus().startswith(following)


def test_a_screen_reader_finds_its_way_and_is_told_of_health_alone(page: Page, lane: Served) -> None:
    page.unlock(ADMIN)
    with inside(lane, "k-ann", "k-bob"):
        page.until(lambda: len(page.rows()) == 2, "that they are inside")
        found = page.accessible()
        roles = {role for role, _ in found}
        assert {"banner", "main", "contentinfo", "heading", "table", "columnheader", "row", "cell"} <= roles
        assert ("main", "lanes") in found
        for name in ("step", "queue", "slots", "tokens", "blocks", "ended", "engines", "sequences"):
            assert ("region", name) in found
        heads = [name for role, name in found if role == "columnheader"]
        assert {"id", "phase", "owner", "age", "left", "bound", "tokens", "blocks", "lease", "label"} <= set(heads)
        buttons = [name for role, name in found if role == "button"]
        assert len(buttons) == len(set(buttons)) == 4
        assert all(buttons)
        assert all(name for role, name in found if role in ("link", "textbox", "dialog"))
        live = page.run("return [...document.querySelectorAll('[aria-live], [role=status]')].map((e) => e.id)")
        assert live == ["health-said", "result"]
        said = """
        window.said = 0;
        for (const id of ['health-said', 'result']) {
          new MutationObserver(() => { window.said += 1; }).observe(document.getElementById(id),
            { childList: true, characterData: true, subtree: true });
        }
        """
        page.run(said)
        time.sleep(2)
        assert page.run("return window.said") == 0, "ticks are nobody's news"
        assert page.run("return document.getElementById('health-said').textContent") == "hybrid is ready"
    os.kill(lane.stats()["engine_pid"], signal.SIGKILL)
    page.until(lambda: page.run("return window.said") >= 2, "that the outage and its end are told")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_the_screen_and_buttons_can_be_hit(
    page: Page, lane: Served, theme: str
) -> None:
    page.sized(360, 740, phone=True, color_scheme=theme, reduced_motion="reduce")
    page.unlock(ADMIN)
    with inside(lane, "k-long", "k-evil", "k-turned", "k-ann", "k-bob"):
        page.until(lambda: len(page.rows()) == 5, "that they are inside")
        assert page.run("return document.documentElement.scrollWidth") == 360
        assert page.run(TOO_WIDE) == []
        assert page.run(TOO_SMALL) == 0
        assert page.run(TOO_FAINT) == []
        assert page.run("return getComputedStyle(document.querySelector('.bar i')).transitionDuration") in ("0s", "")
        heads = [name for role, name in page.accessible() if role == "columnheader"]
        assert {"id", "owner", "bound"} <= set(heads), "cards are still a table to a screen reader"
        page.press("Cancel sequence")
        assert page.run(TOO_WIDE) == []
        page.press("Leave it")
    paper = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in paper[4:-1].split(",")) < 200) == (theme == "dark")


def test_what_clients_write_is_text(page: Page, lane: Served) -> None:
    page.unlock(ADMIN)
    with inside(lane, "k-evil", "k-turned"):
        page.until(lambda: len(page.rows()) == 2, "that they are inside")
        owners = [row["owner"] for row in page.rows()]
        assert owners == [HOSTILE, "gpj.\\u{202e}yadot"], "and what turns text round is seen"
        page.press("Cancel sequence")
        assert HOSTILE in page.text("#ask-words")
        page.press("Leave it")
        assert page.run("return document.querySelectorAll('img, script:not([src])').length") == 0
        assert page.browser.title == "READY hybrid"
        blocked = "try { document.body.innerHTML = '<b>'; return 'taken' } catch (error) { return error.name }"
        assert page.run(blocked) == "TypeError", "the page's own policy: no text becomes HTML"
    logged = page.complaints()
    assert all("TrustedHTML" in one for one in logged), logged
