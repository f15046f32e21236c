"""`python -m boundedgen`: for people on call."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from boundedgen._blackbox._report import NoIncidentError, listing, report
from boundedgen._output import show
from boundedgen._top._command import add_top
from boundedgen._top._command import top as live

INCOMPLETE, UNREADABLE = 1, 2
CALLED_WRONGLY, INTERRUPTED = 2, 130


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
        show(between + text)
        worst, between = max(worst, INCOMPLETE if missing else 0), "" if arguments.list else "\n"
    return worst


def doctor(arguments: argparse.Namespace) -> int:
    """What a lane needs, what is there of it, and what to do about the rest; with MODEL it is loaded and measured, and
    settings are recommended. 0: usable, warnings or not; 1: a problem was found; 2: the doctor was called wrongly."""
    from boundedgen._doctor._asked import asked  # here: `incident` needs none of it
    from boundedgen._doctor._examination import examination
    from boundedgen._doctor._page import as_json, page

    logging.getLogger("boundedgen").addHandler(logging.NullHandler())  # what the lane logs, the findings say
    options = {name: value for name, value in vars(arguments).items() if name not in ("run", "json")}
    try:
        patient = asked(**options)
    except (TypeError, ValueError) as error:
        print(f"boundedgen doctor: {error}", file=sys.stderr)
        return CALLED_WRONGLY
    report = examination(patient, tell=say)
    show(json.dumps(as_json(report), indent=2, allow_nan=False) + "\n" if arguments.json else page(report))
    return report.status


def say(what: str) -> None:
    """For a person who waits."""
    if sys.stderr.isatty():
        print(f"{what} ...", file=sys.stderr)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="boundedgen", description="Bounded generation on OpenVINO GenAI.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("incident", help="what is known of an engine that was lost", description=incident.__doc__)
    one.add_argument("folder", type=Path, nargs="+", help="an incident's folder, or a black box: then its newest one")
    one.add_argument("--list", action="store_true", help="a line for each incident in it instead, the oldest first")
    one.set_defaults(run=incident)
    add_doctor(commands.add_parser("doctor", help="is a lane possible here? What to mend", description=doctor.__doc__))
    add_top(commands.add_parser("top", help="lanes, live, in a terminal", description=live.__doc__))
    return top


def add_doctor(one: argparse.ArgumentParser) -> None:
    one.add_argument("model", metavar="MODEL", nargs="?", help="a model's folder or GGUF file; none: the machine alone")
    one.add_argument("--device", default="GPU", help="as OpenVINO names it: GPU (the default), GPU.1, CPU")
    one.add_argument("--scheduler", metavar="JSON|FILE", help="the scheduler_config that is to be used")
    one.add_argument("--properties", metavar="JSON|FILE", help="OpenVINO's properties, CACHE_DIR for one")
    one.add_argument("--max-tokens", dest="tokens", metavar="N", type=int, help="prompt and answer of a sequence")
    one.add_argument("--sequences", metavar="N", type=int, help="that are to fit at once")
    one.add_argument("--adapters", metavar="JSON|FILE", help="LoRA adapters: a .safetensors file, or files and weights")
    one.add_argument("--device-lock", metavar="FILE", help="the device_lock of the lane on this device")
    one.add_argument("--beside", action="store_true", help="load the model though a lane runs there")
    one.add_argument("--boot", metavar="SECONDS", type=float, help="that loading may take (300)")
    one.add_argument("--json", action="store_true", help="for scripts: docs/doctor.md tells the names")
    one.set_defaults(run=doctor)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
