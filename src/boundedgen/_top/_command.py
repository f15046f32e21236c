"""The command line of `top`. What it needs of rich is imported when it is run."""

from __future__ import annotations

import argparse
import math
import sys

from boundedgen._top._lanes import checked

CALLED_WRONGLY = 2


def add_top(one: argparse.ArgumentParser) -> None:
    one.add_argument("address", metavar="URL|SOCKET", nargs="+", help="of a lane: what serve_stats opened, or a server")
    one.add_argument("--every", metavar="SECONDS", type=_every, default=1.0, help="between two looks (1)")
    one.add_argument("--once", action="store_true", help="one frame for a script, and an exit status")
    one.set_defaults(run=top)


def top(arguments: argparse.Namespace) -> int:
    """Lanes, live: what they do, and what is wrong. 0: all are ready; 1: one is not; 2: one does not answer, or this
    cannot be shown."""
    try:
        for address in arguments.address:
            checked(address)
        from boundedgen._top._terminal import live, once
    except ValueError as error:
        print(f"boundedgen top: {error}", file=sys.stderr)
        return CALLED_WRONGLY
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "rich":
            raise
        print("boundedgen top needs rich: pip install 'boundedgen[top]'", file=sys.stderr)
        return CALLED_WRONGLY
    return once(arguments.address) if arguments.once else live(arguments.address, arguments.every)


def _every(given: str) -> float:
    seconds = float(given)
    if not 0.1 <= seconds <= 3600 or math.isnan(seconds):
        raise argparse.ArgumentTypeError("between 0.1 and 3600 seconds")
    return seconds
