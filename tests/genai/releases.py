"""Marks for tests that ask the engine for what some releases have not."""

import pytest

from boundedgen._engine._releases import installed_release


def needs(*parts: str) -> pytest.MarkDecorator:
    """Skips the test on a release that lacks one of them, and says which."""
    release = installed_release()
    absent = [part for part in parts if part in release.lacks]
    return pytest.mark.skipif(bool(absent), reason=f"openvino-genai {release.name} lacks: {', '.join(absent)}")
