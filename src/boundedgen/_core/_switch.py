"""A switch to another equipment of the engines, from when it is asked for until it is over."""

from attrs import define


@define
class Switch:
    """One that is under way."""

    number: int  #: of the equipment
    until: float  #: nobody from before is waited for any longer
    later: int = 0  #: sequences that came since, and are not settled
    before: int | None = None  #: the equipment that it is to replace, once the engine that has that is ended
    ended: int = 0  #: the incarnation of that engine
    canary: tuple[int, ...] = ()  #: what that one answered
