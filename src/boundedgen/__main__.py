"""`python -m boundedgen`: for people on call."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from boundedgen._blackbox._report import NoIncidentError, report

INCOMPLETE, UNREADABLE = 1, 2


def incident(arguments: argparse.Namespace) -> int:
    """0: shown; 1: shown, but files are missing; 2: there is no incident that can be read."""
    try:
        page, missing = report(arguments.folder)
    except (NoIncidentError, OSError) as error:
        print(f"boundedgen incident: {error}", file=sys.stderr)
        return UNREADABLE
    sys.stdout.write(page.encode(sys.stdout.encoding or "utf-8", "replace").decode(sys.stdout.encoding or "utf-8"))
    return INCOMPLETE if missing else 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="boundedgen", description="Bounded generation on OpenVINO GenAI.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("incident", help="what is known of an engine that was lost", description=incident.__doc__)
    one.add_argument("folder", type=Path, help="an incident's folder, or the black box: then its newest one")
    one.set_defaults(run=incident)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
