"""What the text of a token costs: the engine's own TextStreamer, a window of decoded ids, and joined bytes.

    python benchmarks/text.py [--model PATH] [--rounds 5] [--json FILE]

Prints microseconds a token, median and p99, for pieces of one token and of four; then what it costs to be ready for it
(the trial, and meeting each id of the vocabulary for the first time), and the memory that it takes. All of it runs in
one thread, interleaved; the text that comes out is checked against that of all ids at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import openvino_genai
from workload import smollm2

from boundedgen._lexicon import Lexicon, Vocabulary, lexicon_of
from boundedgen._text import GenAITokenizer, TextStream

#: Prose with code and tables in it, and what is hard: characters of many bytes, many to a grapheme.
TEXT = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
HARD = "👩‍👩‍👧‍👦 🏴󠁧󠁢󠁥󠁮󠁧󠁿 漢字かな交じり文、全角。 नमस्ते क्षत्रिय שלום مرحبا don't . a , b e\u0301\n" * 10
GENERATION = 256  #: tokens; each has a stream of its own

Stream = tuple[Callable[[Sequence[int]], object], Callable[[], object]]


def main() -> None:
    options = arguments()
    tokenizer = GenAITokenizer(options.model)
    assert tokenizer.lexicon is not None, "the text of this tokenizer is not made of joined bytes"
    corpora = {name: generations(tokenizer, text) for name, text in (("prose", TEXT), ("hard", HARD))}
    results = [
        row
        for name, rows in corpora.items()
        for piece in (1, 4)
        for row in contest(tokenizer, name, rows, piece, options.rounds)
    ]
    ready = readiness(tokenizer) | warming(tokenizer, corpora["prose"])
    print("  ".join(f"{name}: {value:,.4g}" for name, value in ready.items()))
    if options.json:
        Path(options.json).write_text(json.dumps({"tokens": results, "ready": ready}, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=smollm2())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    return parser.parse_args()


def generations(tokenizer: GenAITokenizer, text: str) -> list[list[int]]:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return [ids[at : at + GENERATION] for at in range(0, len(ids), GENERATION)]


def contest(
    tokenizer: GenAITokenizer, corpus: str, rows: list[list[int]], piece: int, rounds: int
) -> list[dict[str, Any]]:
    """The first round is not counted: it meets each id for the first time, and is told apart."""
    ways: dict[str, Callable[[list[str]], Stream]] = {
        "TextStreamer": lambda out: raw(tokenizer, out),
        "window": lambda out: ours(tokenizer, None, out),
        "joined": lambda out: ours(tokenizer, tokenizer.lexicon, out),
    }
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            for row in rows:
                spent = cost(tokenizer, way, row, piece, check=name != "TextStreamer")
                costs[name] += spent if turn else []
    return [told(corpus, piece, name, spent) for name, spent in costs.items()]


def cost(
    tokenizer: GenAITokenizer, way: Callable[[list[str]], Stream], row: list[int], piece: int, *, check: bool
) -> list[float]:
    """Microseconds a token, for each piece."""
    out: list[str] = []
    feed, end = way(out)
    spent = []
    for at in range(0, len(row), piece):
        ids = row[at : at + piece]
        began = time.perf_counter()
        feed(ids)
        spent.append((time.perf_counter() - began) * 1e6 / len(ids))
    end()
    assert not check or "".join(out) == tokenizer.decode(row)
    return spent


def raw(tokenizer: GenAITokenizer, out: list[str]) -> Stream:
    def take(text: str) -> Any:
        out.append(text)
        return openvino_genai.StreamingStatus.RUNNING

    streamer = openvino_genai.TextStreamer(tokenizer._inner, take)
    return streamer.write, streamer.end


def ours(tokenizer: GenAITokenizer, lexicon: Lexicon | None, out: list[str]) -> Stream:
    stream = TextStream(tokenizer.decode, lexicon=lexicon)
    return lambda ids: out.append(stream.feed(ids)), lambda: out.append(stream.flush())


def told(corpus: str, piece: int, name: str, spent: list[float]) -> dict[str, Any]:
    median, p99 = statistics.median(spent), statistics.quantiles(spent, n=100)[98]
    print(f"{corpus:6} {piece} a piece  {name:12} median {median:8.2f}  p99 {p99:8.2f} µs a token")
    return {"corpus": corpus, "piece": piece, "way": name, "median_us": median, "p99_us": p99}


def readiness(tokenizer: GenAITokenizer) -> dict[str, float]:
    """The trial at load; then all ids, one by one in a fresh lexicon, as streams would meet them."""
    vocabulary = dict(tokenizer._inner.get_vocab())
    began = time.perf_counter()
    lexicon = lexicon_of(tokenizer.decode, lambda text: tokenizer.encode(text, add_special_tokens=False), vocabulary)
    trial = time.perf_counter() - began
    assert lexicon is not None
    tracemalloc.start()
    entries = Vocabulary(vocabulary)
    stored = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    lexicon.bytes_of(range(len(entries)))
    known = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return {
        "vocabulary": len(entries),
        "trial_ms": 1000 * trial,
        "first_met_us": first_met(tokenizer, vocabulary),
        "entries_mb": stored / 1e6,
        "all_ids_met_mb": known / 1e6,
    }


def warming(tokenizer: GenAITokenizer, rows: list[list[int]]) -> dict[str, float]:
    """Mean microseconds a token in the first and the tenth generation of a server's life, a token a piece."""
    vocabulary = dict(tokenizer._inner.get_vocab())
    lexicon = lexicon_of(tokenizer.decode, lambda text: tokenizer.encode(text, add_special_tokens=False), vocabulary)
    means = [
        statistics.mean(cost(tokenizer, lambda out: ours(tokenizer, lexicon, out), row, 1, check=True))
        for row in rows[:10]
    ]
    return {"first_generation_us": means[0], "tenth_generation_us": means[-1]}


def first_met(tokenizer: GenAITokenizer, vocabulary: dict[bytes, int]) -> float:
    """Microseconds for one id that was never seen before, alone in its piece, at the median."""
    lexicon = lexicon_of(tokenizer.decode, lambda text: tokenizer.encode(text, add_special_tokens=False), vocabulary)
    assert lexicon is not None
    spent = []
    for i in range(10_000, min(12_000, len(vocabulary))):
        began = time.perf_counter()
        lexicon.bytes_of([i])
        spent.append((time.perf_counter() - began) * 1e6)
    return statistics.median(spent)


if __name__ == "__main__":
    main()
