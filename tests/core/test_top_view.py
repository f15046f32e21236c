"""What `top` draws, of whatever a lane says."""

import copy
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

import boundedgen as b
from boundedgen._top._reading import COUNTERS, NUMBER_MOST, Seen, clean, exit_status
from boundedgen._top._troubles import troubles
from boundedgen._top._view import Look, frame, page
from boundedgen._top._words import span
from boundedgen.testing import Fault, Simulation


def documents() -> dict[str, dict[str, Any]]:
    """Of a lane that is busy, one whose step hangs, one that has lost its engine, and one that is closed."""
    found = {}
    limits = b.Limits(running_max=4)
    with Simulation(limits=limits, restart=b.RestartPolicy(wait=lambda state: 30.0)) as sim:
        generations = [
            sim.pipeline.submit("x", max_new_tokens=100, owner=f"user{i % 3}", label=f"chat {i}") for i in range(30)
        ]
        sim.advance(1)
        found["busy"] = sim.pipeline.stats_document("gpu-0")
        sim.inject(Fault(kind="wedge"))
        sim.advance(8)
        found["hangs"] = sim.pipeline.stats_document("gpu-0")
        sim.advance(5)
        found["lost"] = sim.pipeline.stats_document("gpu-0")
        for generation in generations:
            generation.cancel()
    found["closed"] = sim.pipeline.stats_document("gpu-0")
    return found


DOCUMENTS = documents()


def seen(document: Any, earlier: Any = None, **more: Any) -> Seen:
    before = {name: (earlier or document)["stats"][name] for name in COUNTERS}
    return Seen("lane.sock", document, answered_ago_s=0.2, before=before, before_s=30.0, **more)


def drawn(*lanes: Seen, selected: int = 0, height: int = 24) -> str:
    return "\n".join(line.plain for line in frame(lanes, Look(selected=selected, height=height)))


def words(lane: Seen) -> list[str]:
    return [trouble.words for trouble in troubles(lane)]


# --- what it says ----------------------------------------------------------------------------------------------------


def test_a_lane_that_is_well_says_so_and_shows_the_oldest_first() -> None:
    lines = drawn(seen(DOCUMENTS["busy"])).splitlines()
    assert lines[1].startswith(" READY  gpu-0")
    assert "nothing is wrong that can be seen from here" in lines[2]
    text = "\n".join(lines)
    assert "4 running   0 stopping   26 waiting   the oldest waits for 1.0s" in text
    assert "16 of 64 blocks reserved   48 free" in text
    first = next(line for line in lines if "user0, chat 0" in line).split()
    assert first[:2] == ["1", "running"]
    assert first[5:7] == ["9m59", "total"]
    assert "younger ones" in text
    assert len(lines) == 24


def test_a_step_that_hangs_is_the_first_thing_that_it_says() -> None:
    lane = seen(DOCUMENTS["hangs"])
    assert words(lane)[0].startswith("a step hangs, or is long: 8.")
    assert "  ! a step hangs" in drawn(lane).splitlines()[2]


def test_a_lost_engine_is_grave_and_named_by_its_cause() -> None:
    lane = seen(DOCUMENTS["lost"], DOCUMENTS["hangs"])
    found = troubles(lane)
    assert [trouble.grave for trouble in found[:2]] == [True, True]
    assert "did not return within" in found[0].words
    assert "back in " in found[0].words
    assert found[1].words == "engines lost in the last 30s: 1 step"
    assert "RECOVERING" in drawn(lane)
    assert "lost: 1 step" in drawn(lane)
    assert "4 engine_lost" in drawn(lane)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"health": {"live": False, "ready": False, "state": "failed"}}, "it will not heal by itself: restart"),
        ({"health": {"ready": False, "state": "failed", "error": {"type": "ModelLoadFailed", "message": "no file"}}},
         "ModelLoadFailed: no file"),
        ({"health": {"last_probe": "failed", "last_probe_age_s": 3.0}}, "the last probe failed, 3.0s ago"),
        ({"stats": {"driver_lag_s": 4.0}}, "the driver is 4.0s late: look at its process, not at the engine"),
        ({"stats": {"step_current_s": 11.0, "step_budget_s": 10.0}},
         "a step is over its budget, and its engine is about to be killed: 11s of 10s"),
        ({"stats": {"step_current_s": 21.0, "step_budget_s": 124.0}}, "a step hangs, or is long: 21s of 2m04"),
        ({"stats": {"step_current_s": 0.0, "step_budget_s": None, "last_progress_s": 9.0}},
         "work inside, and no progress for 9.0s, between steps"),
        ({"stats": {"stopping": 2, "oldest_stopping_s": 40.0}}, "2 stopped and not released, the first 40s ago"),
        ({"stats": {"ghosts_total": 1}}, "1 stays that only one side knew"),
        ({"stats": {"rejected_total": {"Saturated": 7}}}, "refused in the last 30s: 7 Saturated"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(change: dict[str, dict[str, Any]], expected: str) -> None:
    document = copy.deepcopy(DOCUMENTS["busy"])
    for part, fields in change.items():
        document[part].update(fields)
    lane = seen(document, DOCUMENTS["busy"])
    assert any(said.startswith(expected) for said in words(lane)), words(lane)
    assert expected[:60] in drawn(lane)


def test_a_lane_that_does_not_answer_says_since_when_and_what_was() -> None:
    lane = seen(DOCUMENTS["busy"], problem="no answer within 2 s", silent_s=12.0)
    text = drawn(lane)
    assert "NO ANSWER" in text.splitlines()[1]
    assert "(READY): what follows is of then" in text
    assert "does not answer for 12s: no answer within 2 s" in text
    never = drawn(Seen("/run/lane.sock", None, problem="nobody listens there", silent_s=44.0))
    assert "NO ANSWER  /run/lane.sock" in never
    assert "does not answer for 44s: nobody listens there" in never


def test_several_lanes_have_a_line_each_and_the_details_of_one() -> None:
    lanes = [seen(DOCUMENTS[name]) for name in ("busy", "hangs", "lost")]
    lanes.append(Seen("/run/x.sock", None, problem="nobody listens there", silent_s=44.0))
    text = drawn(*lanes, selected=1)
    head, one, two, three, four = text.splitlines()[1:6]
    assert "WRONG" in head
    assert one.startswith(" 1 gpu-0")
    assert two.startswith(">2 gpu-0")
    assert "step 8." in two
    assert "RECOVERING" in three
    assert "NO ANSWER" in four
    assert "silent for 44s" in four
    assert "a step hangs, or is long" in text
    many = drawn(*lanes * 10, selected=37)
    assert many.count("gpu-0") < 12
    assert "\n>" in many, "the selected one is among those that are shown"
    whole = "\n".join(line.plain for line in page(lanes, Look()))
    assert whole.count("slots ") == 3, "where there are no keys, all are told in full"


def test_the_exit_status_is_that_of_the_worst() -> None:
    well, lost = seen(DOCUMENTS["busy"]), seen(DOCUMENTS["lost"])
    gone = Seen("x", None, problem="nobody listens there")
    assert exit_status([well, well]) == 0
    assert exit_status([well, lost]) == 1
    assert exit_status([lost, gone, well]) == 2
    assert exit_status([seen(DOCUMENTS["busy"], problem="no answer within 2 s")]) == 2


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "–"), (0, "0.00s"), (0.0994, "0.10s"), (0.0996, "0.1s"), (9.94, "9.9s"), (9.96, "10s"), (119.4, "119s"),
        (119.6, "2m00"), (3599.4, "59m59"), (3599.6, "1h00"), (172_799, "47h59"), (200_000, "2d"), (-3, "-3.0s"),
    ],
)  # fmt: skip
def test_durations_are_short(seconds: float | None, expected: str) -> None:
    assert span(seconds) == expected


# --- what comes from a lane is data ----------------------------------------------------------------------------------

NASTY = [
    "\x1b[2J\x1b]0;title\x07", "a\nb\r\tc", "[bold red]x[/]", "[link=http://x]y[/link]", "\u202eevil", "שלום عربى",
    "漢字" * 40, "e\u0301" + "\u0301" * 50, "👩‍👩‍👧‍👦🏳️‍🌈", "\udce9", "\u200b\ufeff\u2028", "\x9b31m",
    "x" * 10_000, "\u1100\u1161",
]  # fmt: skip


def over(line: str) -> int:
    """Columns, by another rule than rich's."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


@pytest.mark.parametrize("nasty", NASTY)
def test_names_owners_and_labels_cannot_move_the_cursor(nasty: str) -> None:
    document = copy.deepcopy(DOCUMENTS["hangs"])
    document["name"] = nasty
    document["health"].update(reason=nasty, findings=[nasty], ready=False)
    document["health"]["error"] = {"type": nasty, "message": nasty}
    for row in document["stats"]["sequences"]:
        row.update(owner=nasty, label=nasty, phase=nasty, bound=nasty)
    document["stats"]["pools"][0]["name"] = nasty
    document["stats"]["finished_total"] = {nasty: 3}
    for line in (*frame([seen(document)] * 2, Look()), *page([seen(document)] * 2, Look())):
        assert line.plain.isprintable(), line.plain
        assert cell_len(line.plain) <= 80
        assert over(line.plain) <= 80
        assert not {unicodedata.bidirectional(c) for c in line.plain} & {"R", "AL", "RLO", "RLE"}
        assert not [span for span in line.spans if "link" in str(span.style)]


@given(st.text())
def test_a_cleaned_text_is_one_printable_line(given: str) -> None:
    cleaned = clean(given)
    assert cleaned.isprintable()
    assert cleaned == "" or len(cleaned) >= 1
    assert all(unicodedata.combining(c) == 0 for c in cleaned)


def test_a_plain_text_stays_as_it_is() -> None:
    for plain in ("ann", "chat 7", "größe", "漢字", "a/b:c-d_e@f"):
        assert clean(plain) == plain
    assert clean("a\x1b[1m") == "a\\x1b[1m"


numbers = st.one_of(
    st.integers(), st.floats(), st.floats(0, 1000), st.booleans(), st.none(), st.sampled_from([0, 1e308])
)
anything = st.recursive(
    st.one_of(numbers, st.text(max_size=20), st.sampled_from(NASTY)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=10), inner, max_size=3)),
    max_leaves=4,
)


@st.composite
def spoilt(draw: st.DrawFn) -> Any:
    """A real document with other values in some of its places, or none; or anything at all."""
    if draw(st.integers(0, 19)) == 0:
        return draw(anything)
    document = copy.deepcopy(draw(st.sampled_from(list(DOCUMENTS.values()))))
    parts = [document, document["health"], document["stats"], document["stats"]["reclaim"]]
    parts += document["stats"]["pools"] + (document["stats"]["sequences"] or [])[:2]
    places = [(part, name) for part in parts for name in part]
    for part, name in draw(st.lists(st.sampled_from(places), max_size=5)):
        if draw(st.booleans()):
            part[name] = draw(anything)
        else:
            part.pop(name, None)
    return document


lanes = st.builds(
    Seen,
    address=st.text(max_size=200),
    document=spoilt(),
    answered_ago_s=st.floats(0, 1e6),
    problem=st.sampled_from(["", "no answer within 2 s", *NASTY]),
    silent_s=st.floats(0, 1e6),
    before=st.one_of(st.just({}), anything, st.just({name: DOCUMENTS["busy"]["stats"][name] for name in COUNTERS})),
    before_s=st.sampled_from([0.0, 1.0, 60.0]),
)


@settings(max_examples=60)
@given(st.lists(lanes, min_size=1, max_size=2), st.integers(80, 250), st.integers(8, 80), st.integers(0, 4))
def test_whatever_a_lane_says_no_line_is_too_wide_and_none_too_many(
    seen: list[Seen], width: int, height: int, selected: int
) -> None:
    look = Look(width=width, height=height, selected=selected, clock="12:00:00", keys=" q quits")
    lines = frame(seen, look)
    assert len(lines) <= height
    for line in (*lines, *page(seen, look)):
        assert isinstance(line, Text)
        assert cell_len(line.plain) <= width
        assert over(line.plain) <= width
        assert line.plain.isprintable()
    assert exit_status(seen) in (0, 1, 2)


def test_figures_that_are_none_are_not_shown_as_some() -> None:
    document = copy.deepcopy(DOCUMENTS["busy"])
    none_at_all: tuple[Any, ...] = (float("nan"), float("inf"), NUMBER_MOST * 2, "7", True, None, [])
    for wrong in none_at_all:
        document["stats"].update(tokens_per_s=wrong, running=wrong)
        text = drawn(seen(document))
        assert "–/s" in text
        assert "0 running" in text
