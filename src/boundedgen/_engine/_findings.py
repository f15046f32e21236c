"""What is known to be wrong in which release of openvino-genai: data, resting on experiments in tests/genai."""

from __future__ import annotations

from attrs import frozen

#: Releases that pass the tests of the engine (docs/compatibility.md), or skip what they have not (_releases.py).
TESTED = ("2026.4.1", "2026.4.0", "2026.3.1", "2026.2.1")


@frozen
class Finding:
    """A setting that gives wrong answers or poisons the pipeline."""

    key: str
    releases: tuple[str, ...]  #: prefixes of the version; empty: every one seen so far
    text: str


FINDINGS: tuple[Finding, ...] = (
    Finding(
        "hybrid_prefix_caching",
        (),
        "prefix caching on a hybrid model (linear attention) gives other tokens for repeated prompts and can make "
        "every further step raise (openvino-genai 2026.4.1)",
    ),
)


def found(key: str, version: str) -> str | None:
    """The text of a finding, if it holds for this version."""
    for finding in FINDINGS:
        if finding.key == key and (not finding.releases or version.startswith(finding.releases)):
            return finding.text
    return None


def untested(version: str) -> str | None:
    """A warning for a release that nothing was measured on."""
    if is_of(version, TESTED):
        return None
    return f"openvino-genai {version} is not among the tested releases ({', '.join(TESTED)})"


def is_of(version: str, releases: tuple[str, ...]) -> bool:
    """`version`, a build's, is of one of the `releases`."""
    return any(version == release or version.startswith(f"{release}.") for release in releases)
