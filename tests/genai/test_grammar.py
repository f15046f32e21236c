"""Grammars are tried in a process that may crash, hang or eat memory over them."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from boundedgen._bounds import Limits
from boundedgen._grammar import GrammarChecker

PLAIN = Path(__file__).parent.parent / "models" / "plain"
SLOW = '{"type":"array","items":' * 5000 + '{"type":"string"}' + "}" * 5000

#: Pids of the module's shared checker.
KEPT: set[int] = set()

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def checker() -> Iterator[GrammarChecker]:
    made = GrammarChecker(PLAIN, {}, Limits())
    yield made
    made.close()
    assert children() == []


@pytest.fixture(scope="module")
def shared() -> Iterator[GrammarChecker]:
    made = GrammarChecker(PLAIN, {}, Limits())
    yield made
    made.close()


def children() -> list[psutil.Process]:
    """Checker processes of this test's own (not of the module's shared one)."""
    mine = [c for c in psutil.Process().children() if any("_grammar_child" in part for part in c.cmdline())]
    return [c for c in mine if c.pid not in KEPT]


def pid_of(checker: GrammarChecker) -> int:
    assert checker._child is not None
    return checker._child._process.pid


GOOD = [
    ("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'),
    ("json_schema", "{}"),
    ("regex", "[a-z]{1,10}(foo|bar)?"),
    ("regex", "نعم|はい"),
    ("grammar", 'root ::= "yes" | "no"'),
    ("grammar", 'root ::= ""'),
]
BAD = [
    ("json_schema", '{"type": "nonsense"', "Failed to parse JSON"),
    ("json_schema", '{"type": "nonsense"}', 'Unsupported type "nonsense"'),
    ("json_schema", "false", "cannot accept any value"),
    ("json_schema", '{"type": "string", "pattern": "(["}', "Unclosed"),
    ("json_schema", '{"$ref": "#"}', "allows no first token"),
    ("regex", "([", "Unclosed"),
    ("regex", "(?=a)b", "Lookahead is not supported"),
    ("grammar", "root ::= b", 'Rule "b" is not defined'),
    ("grammar", 'root ::= root "a"', "allows no first token"),
    ("grammar", "", ""),
]


@pytest.mark.parametrize(("kind", "text"), GOOD)
def test_a_good_grammar_passes(shared: GrammarChecker, kind: str, text: str) -> None:
    assert shared.check(kind, text) is None
    KEPT.add(pid_of(shared))


@pytest.mark.parametrize(("kind", "text", "words"), BAD)
def test_a_bad_grammar_gets_the_engines_words_and_the_process_lives_on(
    shared: GrammarChecker, kind: str, text: str, words: str
) -> None:
    assert shared.check("regex", "x") is None
    before = pid_of(shared)
    KEPT.add(before)
    verdict = shared.check(kind, text)
    assert verdict is not None
    assert words in verdict
    assert "/home/" not in verdict
    assert pid_of(shared) == before


@pytest.mark.parametrize("crashing", ["(" * 100_000 + "a" + ")" * 100_000, "\0"], ids=["nested", "nul"])
def test_a_grammar_that_crashes_the_compiler_is_told_so_and_the_next_one_is_served(
    checker: GrammarChecker, crashing: str
) -> None:
    verdict = checker.check("regex", crashing)
    assert verdict is not None
    assert "crashes the compiler" in verdict
    assert checker.check("regex", "a") is None
    after = pid_of(checker)
    assert checker.check("regex", crashing) == verdict
    assert pid_of(checker) == after  # remembered


def test_a_grammar_that_takes_too_long_is_ended_by_the_limit() -> None:
    checker = GrammarChecker(PLAIN, {}, Limits(grammar_s=1.0))
    try:
        assert checker.check("regex", "a") is None
        before = pid_of(checker)
        started = time.monotonic()
        assert checker.check("json_schema", SLOW) == "took longer than 1 s to compile (Limits.grammar_s)"
        assert time.monotonic() - started < 8
        assert not psutil.pid_exists(before)
        assert checker.check("regex", "b") is None
    finally:
        checker.close()
    assert children() == []


def test_a_process_that_was_killed_from_outside_blames_no_grammar(checker: GrammarChecker) -> None:
    assert checker.check("regex", "a") is None
    os.kill(pid_of(checker), 9)
    assert checker.check("regex", "b") is None


def test_a_checker_survives_the_thread_that_started_its_process(checker: GrammarChecker) -> None:
    verdicts: list[str | None] = []
    for text in ("a", "b", "(["):
        thread = threading.Thread(target=lambda t=text: verdicts.append(checker.check("regex", t)))
        thread.start()
        thread.join(60)
    assert verdicts[:2] == [None, None]
    assert "Unclosed" in str(verdicts[2])


def test_many_threads_are_served_one_after_the_other(checker: GrammarChecker) -> None:
    verdicts: dict[int, str | None] = {}
    all_asked = threading.Barrier(12)

    def ask(number: int) -> None:
        verdicts[number] = checker.check("regex", f"a{{{number}}}" if number % 2 else f"([{number}")
        all_asked.wait(60)  # the process ends with the thread that started it

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {n for n, verdict in verdicts.items() if verdict is None} == {1, 3, 5, 7, 9, 11}


def test_closing_ends_a_check_under_way_and_refuses_the_next(checker: GrammarChecker) -> None:
    assert checker.check("regex", "a") is None
    verdicts: list[str | None] = []
    thread = threading.Thread(target=lambda: verdicts.append(checker.check("json_schema", SLOW)))
    thread.start()
    time.sleep(0.3)
    started = time.monotonic()
    checker.close()
    checker.close()
    thread.join(10)
    assert time.monotonic() - started < 6
    assert verdicts == ["could not be checked: the pipeline is closed"]
    assert checker.check("regex", "c") == "could not be checked: the pipeline is closed"
    assert checker.check("regex", "a") is None  # known


def test_a_tokenizer_that_cannot_be_loaded_passes_no_grammar(tmp_path: Path) -> None:
    checker = GrammarChecker(tmp_path / "nowhere", {}, Limits())
    verdict = checker.check("regex", "a")
    assert verdict is not None
    assert verdict.startswith("could not be checked: ")
    assert children() == []
    checker.close()


def test_the_process_leaves_with_its_parent(tmp_path: Path, await_gone: Callable[[int], None]) -> None:
    script = (
        "import os; from boundedgen._grammar import GrammarChecker\n"
        f"c = GrammarChecker({str(PLAIN)!r}, {{}}); assert c.check('regex', 'a') is None\n"
        "print(c._child._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False).stdout
    await_gone(int(out))


@pytest.fixture
def await_gone() -> Callable[[int], None]:
    def wait(pid: int) -> None:
        until = time.monotonic() + 5
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until, f"{pid} is still there"
            time.sleep(0.02)

    return wait
