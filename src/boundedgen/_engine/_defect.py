"""What is wrong with a machine or a model, apart from what to do about it."""

from typing import NamedTuple


class Defect(NamedTuple):
    """What is wrong, and what to do about it: sentences."""

    seen: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.seen} {self.remedy}".rstrip()
