"""`python -m boundedgen`: for people on call."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from boundedgen._blackbox._report import NoIncidentError, listing, report

INCOMPLETE, UNREADABLE = 1, 2


def incident(arguments: argparse.Namespace) -> int:
    """0: shown; 1: shown, but something is missing; 2: there is no incident that can be read. Of several, the worst."""
    worst, between = 0, ""
    for folder in arguments.folder:
        try:
            text, missing = listing(folder) if arguments.list else report(folder)
        except (NoIncidentError, OSError) as error:
            print(f"boundedgen incident: {error}", file=sys.stderr)
            worst = UNREADABLE
            continue
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(between + text.encode(encoding, "replace").decode(encoding))
        worst, between = max(worst, INCOMPLETE if missing else 0), "" if arguments.list else "\n"
    return worst


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="boundedgen", description="Bounded generation on OpenVINO GenAI.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("incident", help="what is known of an engine that was lost", description=incident.__doc__)
    one.add_argument("folder", type=Path, nargs="+", help="an incident's folder, or a black box: then its newest one")
    one.add_argument("--list", action="store_true", help="a line for each incident in it instead, the oldest first")
    one.set_defaults(run=incident)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
