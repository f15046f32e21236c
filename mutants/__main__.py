"""`python -m mutants [options] [names]`: plant bugs, one at a time; do the tests notice? See docs/mutants.md."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from attrs import evolve

from mutants.planting import Mutant, Selection, Verdict, check_soundness, judge_all, planted, rotten

HERE = Path(__file__).resolve().parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only those with one of these words in their name")
    parser.add_argument("--generated", action="store_true", help="mutations of the pure core, made by cosmic-ray")
    parser.add_argument("--sample", type=int, default=150, help="of the generated ones; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--blind", action="store_true", help="only those that were written before the tests were read")
    parser.add_argument(
        "--machine", type=int, metavar="RUNS", help="only the state machine looks, in at most RUNS runs"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="check the list against the sources, and plant nothing")
    return parser.parse_args()


def wanted(options: argparse.Namespace) -> list[Mutant]:
    if options.generated:
        from mutants.generating import generated

        found = generated(HERE, options.sample, options.seed)
    else:
        found = planted(HERE / "planted.toml")
    if options.machine:
        alone = Selection("machine", ("tests/stateful",), 3600.0, {"BOUNDEDGEN_EXAMPLES": str(options.machine)})
        found = [evolve(m, sees=alone) for m in found]
    found = [m for m in found if m.blind or not options.blind]
    return [m for m in found if any(n in m.name for n in options.names)] if options.names else found


def tell(verdict: Verdict) -> None:
    word = f"killed ({verdict.killed_by})" if verdict.killed_by else "SURVIVED"
    print(f"{word:16} {verdict.seconds:5.1f} s  {verdict.mutant.name}  [{verdict.told}]", flush=True)


def report(verdicts: list[Verdict], seconds: float) -> int:
    ends = Counter(v.killed_by for v in verdicts)
    survivors = [v.mutant for v in verdicts if not v.killed_by]
    for mutant in survivors:
        print(f"\nsurvivor: {mutant.name}\n  {mutant.file}: {mutant.breaks}\n- {mutant.old}\n+ {mutant.new}")
    killed = len(verdicts) - len(survivors)
    print(f"\nkilled {killed} of {len(verdicts)} planted ({ends['timeout']} by timeout) in {seconds / 60:.1f} min")
    return len(survivors)


def main() -> int:
    options, began = arguments(), time.monotonic()
    mutants = wanted(options)
    if words := rotten(mutants):
        print("the list has rotted:", *words, sep="\n  ")
        return 2
    if options.list:
        print(*(f"{m.sees.name:10} {m.file:24} {m.name}" for m in mutants), f"{len(mutants)} mutants", sep="\n")
        return 0
    used = {m.sees.name: m.sees for m in mutants}
    if words := check_soundness(used.values(), options.jobs):
        print(*words, sep="\n")
        return 2
    return 1 if report(judge_all(mutants, options.jobs, tell), time.monotonic() - began) else 0


if __name__ == "__main__":
    sys.exit(main())
