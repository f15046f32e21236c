"""`python -m deploy.record [NAME …]`: record what alerts are tested with, anew, and write down when each fires.

    python -m deploy.record              # every scenario: ten minutes, real engines
    python -m deploy.record hang         # one
    python -m deploy.record --rules      # no run: the rules have changed, the series are as they were

Writes deploy/prometheus/tests/*.yml, for `promtool test rules`. Look at the difference before you keep it. Exits 1 if
an alert fires in a scenario in which it should not, or does not where it should.
"""

from __future__ import annotations

import argparse
import re
import sys

import yaml

from deploy import expected
from deploy.scenarios import SCENARIOS
from deploy.scraped import Recording


def again(name: str) -> None:
    """What is expected, from the series of the files."""
    groups, event = [], 0
    for every in expected.INTERVALS:
        text = expected.path(name, every).read_text(encoding="utf-8")
        match = re.search(r"after second (\d+)", text)
        event = max(event, int(match[1]) if match else 0)
        (one,) = yaml.safe_load(text)["tests"]
        expected.expect(one, every)
        groups.append(one)
    expected.save(name, event, groups)


def told(name: str) -> list[str]:
    """In words, what is not as it should be."""
    wanted, wrong = SCENARIOS[name].fires, []
    for every in expected.INTERVALS:
        found = expected.fires(name, every)
        print(f"  {name}, every {every} s: {', '.join(f'{alert} {at} s' for alert, at in found.items()) or 'nothing'}")
        wrong += [f"{name}, every {every} s: {alert} fires" for alert in sorted(found.keys() - wanted)]
        if every == expected.INTERVALS[0]:
            wrong += [f"{name}, every {every} s: {alert} does not fire" for alert in sorted(wanted - found.keys())]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *SCENARIOS], help="default: all")
    parser.add_argument("--rules", action="store_true", help="do not run them; take the series that are there")
    arguments = parser.parse_args()
    wrong: list[str] = []
    for name in arguments.names or SCENARIOS:
        if arguments.rules:
            again(name)
        else:
            recording = Recording(every=SCENARIOS[name].every)
            SCENARIOS[name].run(recording)
            expected.write(name, recording)
            print(f"{name}: {len(recording.rows)} rows, event at {recording.event:.1f} s")
        wrong += told(name)
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
