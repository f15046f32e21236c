"""What the core knows: all of its state, and the two smallest changes to it that everything else is made of."""

from collections import OrderedDict, deque

from attrs import frozen

from boundedgen._admission import Admission
from boundedgen._bounds import Limits
from boundedgen._core import _events as ev
from boundedgen._core._admission import Capacity, Ledger
from boundedgen._core._deadlines import Agenda, ReadyClock
from boundedgen._core._forecast import Forecast
from boundedgen._core._leases import Leases
from boundedgen._core._life import Life
from boundedgen._core._names import Names
from boundedgen._core._order import Order
from boundedgen._core._pause import Pause
from boundedgen._core._phases import SequencePhase, StayPhase, move
from boundedgen._core._sequences import Ended, Sequence
from boundedgen._core._stays import Stay
from boundedgen._core._switch import Switch
from boundedgen._core._tally import Tally
from boundedgen._core._watch import Watch


@frozen
class Census:
    """How many are in each phase, and since when the oldest of them: monotonic, None without any."""

    waiting: int
    running: int
    stopping: int
    waiting_since: float | None  #: submission
    running_since: float | None  #: submission
    stopping_since: float | None  #: stop


class Books:
    """The state. The layers above (settling, occupying, living, reporting, governor) each add one concern."""

    _census: Census | None = None  # as it is found out; None: that has to be done anew

    def __init__(self, limits: Limits, admission: Admission, *, forget_after: float) -> None:
        self.limits = limits
        self.admission = admission
        self.life = Life(limits)
        self.pause = Pause(limits)
        self.equipment = 0  # number of what engines are built from; means nothing here
        self.switch: Switch | None = None  # to another one, under way
        self.watch = Watch(limits)
        self.ledger = Ledger()
        self.clock = ReadyClock()
        self.leases = Leases(limits.lease_grace)
        self.tally = Tally()
        self.forecast = Forecast()
        self.probes = 0  # probes that are not settled: outside of all totals
        ageing = admission.ageing
        self.queue = Order(ageing, admission.weights)
        self.probe_queue = Order(ageing, {})  # probes have a slot and blocks of their own, and wait for nobody
        self.suspects = Order(ageing, {})  # each is tried with no other newcomer beside it, before all others
        self.calm_until = 0  # steps: somebody was paused, so that for a while nobody is let in
        self.trial: int | None = None  # the stay of the suspect that is being tried
        # All that are not settled, in the order of submission; the first one is found at once also after many are gone.
        self.sequences: OrderedDict[int, Sequence] = OrderedDict()
        self.names = Names()  # of those that have a label
        self.stays: dict[int, Stay] = {}  # all that are not GONE
        self.ended: deque[Ended] = deque(maxlen=limits.ended_kept)
        self.last_report: ev.Progress | None = None  # of a step, or several: others tell of refusals and the like
        self.capacity: Capacity | None = None  # of the last incarnation that became ready
        self._forget_after = forget_after
        self._wall: Agenda[int] = Agenda()  # total, queued: monotonic instants
        self._ready: Agenda[int] = Agenda()  # first_token, next_token: readings of the ready clock
        self._last_stay = 0
        self._effects: list[ev.Effect] = []

    def census(self) -> Census:
        """Costs what is held, however many wait, and nothing if nobody has moved. A probe is in none of it."""
        found = self._census
        if found is None:
            found = self._census = self._counted()
        return found

    def _counted(self) -> Census:
        inside = [stay for stay in self.stays.values() if not stay.probe]
        running = [s.submission.submitted_at for s in inside if s.occupant.phase is SequencePhase.RUNNING]
        stopping = [stay.stop_at for stay in inside if stay.phase is StayPhase.STOPPING]
        waiting = len(self.sequences) - self.probes - len(running)
        return Census(
            waiting=waiting,
            running=len(running),
            stopping=len(stopping),
            waiting_since=self._waiting_since() if waiting else None,
            running_since=min(running, default=None),
            stopping_since=min((at for at in stopping if at is not None), default=None) if stopping else None,
        )

    def _move(self, thing: Sequence | Stay, to: SequencePhase | StayPhase) -> None:
        """To another phase. Only that, and a submission, changes the census."""
        move(thing, to)
        self._census = None

    def _waiting_since(self) -> float | None:
        """Of the first in the order of submission; those before it are in the engine, and so are few."""
        waiting = (s for s in self.sequences.values() if s.phase is SequencePhase.WAITING and not s.submission.probe)
        first = next(waiting, None)
        return None if first is None else first.submission.submitted_at

    def _schedule(self, sequence: Sequence) -> None:
        """Enter its deadlines into the agendas."""
        self._wall.set(sequence.id, sequence.wall_at())
        self._ready.set(sequence.id, sequence.ready_at())

    def _stop(self, stay: Stay, now: float) -> None:
        """Make the engine let go of it; its reservation stays until that is proved."""
        if stay.phase is not StayPhase.ADMITTED:
            return
        self._move(stay, StayPhase.STOPPING)
        stay.stop_at = now
        if self.life.up:
            self.watch.ordered("stop", stay.id, now)
            self._effects.append(ev.Stop(self.life.incarnation, stay.id))
