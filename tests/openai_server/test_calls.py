"""What the page says of the OpenAI client's calls is what they come to."""

from __future__ import annotations

import pytest
from openai_server import calls
from openai_server.served import Served

pytestmark = pytest.mark.timeout(60)


def test_the_table_of_calls_is_what_they_come_to_today(server: Served) -> None:
    assert calls.part_of(calls.PAGE.read_text(encoding="utf-8")) == calls.table(server), "run: nox -s openai_calls"
