"""What the core knows: all of its state, and the two smallest changes to it that everything else is made of."""

from collections import deque

from boundedgen._bounds import Limits
from boundedgen._core import _events as ev
from boundedgen._core._admission import Capacity, Ledger
from boundedgen._core._deadlines import Agenda, ReadyClock
from boundedgen._core._leases import Leases
from boundedgen._core._life import Life
from boundedgen._core._phases import SequencePhase, StayPhase, move
from boundedgen._core._sequences import Ended, Queue, Sequence
from boundedgen._core._stays import Stay
from boundedgen._core._tally import Tally
from boundedgen._core._watch import Watch


class Books:
    """The state. The layers above (settling, occupying, living, reporting, governor) each add one concern."""

    def __init__(self, limits: Limits, *, forget_after: float = 60.0, reserve: bool = True) -> None:
        self.limits = limits
        self._reserve = reserve
        self.life = Life(limits)
        self.watch = Watch(limits)
        self.ledger = Ledger()
        self.clock = ReadyClock()
        self.leases = Leases(limits.lease_grace)
        self.tally = Tally()
        self.probes = 0  # probes that are not settled: outside of all totals
        self.queue = Queue()
        self.probe_queue = Queue()  # probes have a slot and blocks of their own, and wait for nobody
        self.sequences: dict[int, Sequence] = {}  # all that are not settled
        self.stays: dict[int, Stay] = {}  # all that are not GONE
        self.ended: deque[Ended] = deque(maxlen=limits.ended_kept)
        self.last_report: ev.Progress | None = None
        self.capacity: Capacity | None = None  # of the last incarnation that became ready
        self._forget_after = forget_after
        self._wall: Agenda[int] = Agenda()  # total, queued: monotonic instants
        self._ready: Agenda[int] = Agenda()  # first_token, next_token: readings of the ready clock
        self._last_stay = 0
        self._effects: list[ev.Effect] = []

    def running(self) -> int:
        """Sequences that are RUNNING, the probe apart; each has a stay."""
        found = (self.sequences.get(stay.sequence) for stay in self.stays.values() if not stay.probe)
        return sum(s is not None and s.phase is SequencePhase.RUNNING for s in found)

    def waiting(self) -> int:
        """Sequences that are WAITING, the probe apart."""
        return len(self.sequences) - self.probes - self.running()

    def _schedule(self, sequence: Sequence) -> None:
        """Enter its deadlines into the agendas."""
        wall, ready = sequence.wall_deadline(), sequence.ready_deadline()
        self._wall.set(sequence.id, None if wall is None else wall.at)
        self._ready.set(sequence.id, None if ready is None else ready.at)

    def _stop(self, stay: Stay, now: float) -> None:
        """Make the engine let go of it; its reservation stays until that is proved."""
        if stay.phase is not StayPhase.ADMITTED:
            return
        move(stay, StayPhase.STOPPING)
        stay.stop_at = now
        if self.life.up:
            self.watch.ordered("stop", stay.id, now)
            self._effects.append(ev.Stop(self.life.incarnation, stay.id))
