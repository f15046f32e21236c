"""Scripts that Hypothesis draws: up to a dozen requests, some stopped, some with deadlines."""

from __future__ import annotations

import math

from conformance.scripts import Admit, Script, Stop, Timed, script
from hypothesis import strategies as st

_ODD = (0.0, 0.5, 3.5, 10.0, 30.25)  #: seconds from the admission to its deadline
_LENGTHS = st.sampled_from((1, 2, 31, 32, 33, 63, 64, 65, 128)) | st.integers(1, 230)
_NEW = st.sampled_from((1, 2, 31, 32, 33)) | st.integers(1, 90)


@st.composite
def admissions(draw: st.DrawFn, stay: int, at: int, several: bool) -> Admit:
    config: dict[str, object] = {}
    if several and draw(st.integers(0, 5)) == 0:
        config |= {"do_sample": True, "num_return_sequences": draw(st.integers(2, 3))}
    if draw(st.integers(0, 9)) == 0:
        config["logprobs"] = 1
    deadline = at + draw(st.sampled_from(_ODD)) if draw(st.integers(0, 6)) == 0 else math.inf
    return Admit(stay, draw(_LENGTHS), draw(_NEW), config=config, deadline=deadline)


@st.composite
def scripts(draw: st.DrawFn, *, several: bool = True) -> Script:
    """`several`: requests of several sequences among them."""
    commands: list[Timed] = []
    for stay in range(1, draw(st.integers(1, 12)) + 1):
        at = draw(st.integers(0, 20))
        commands.append((at, draw(admissions(stay, at, several))))
        if draw(st.integers(0, 2)) == 0:
            commands.append((at + draw(st.integers(0, 40)), Stop(stay)))
    return script(*commands)
