"""Who was there: looked at by the driver before a reader is ended for reading too slowly, or a lease as expired."""

from collections.abc import Mapping

from boundedgen._bounds import Limits
from boundedgen._core._deadlines import Agenda
from boundedgen._core._governor import Governor
from boundedgen._errors import FinishReason
from boundedgen._flow import Flow
from boundedgen._lease import LeaseCell


class Evidence:
    """Used by the driver's thread only. `flows` and `cells` are the driver's own tables."""

    def __init__(
        self, governor: Governor, flows: Mapping[int, Flow], cells: Mapping[str, LeaseCell], limits: Limits
    ) -> None:
        self._governor = governor
        self._flows = flows
        self._cells = cells
        self._limits = limits
        self._unread: Agenda[int] = Agenda()

    def next(self) -> float | None:
        """When a reader is to be judged next."""
        return self._unread.earliest()

    # --- owners --------------------------------------------------------------------------------------------------

    def end_leases(self, now: float) -> bool:
        """False: a lease is due of which there is newer evidence among the commands."""
        due = self._governor.leases_due(now)
        over = [lease for lease in due if self._condemned(lease, now)]
        for lease in over:  # at once: a renewal that comes after its claim was closed must not bring it back
            self._governor.expire(lease, now)
        return over == due

    def _condemned(self, lease: str, now: float) -> bool:
        """True: it really is over. False: there is newer evidence, or a renewal is in the queue."""
        cell = self._cells.get(lease)
        row = self._governor.leases.get(lease)
        if row is None or (cell is not None and not cell.renew_on_read):
            return cell is None or cell.close()
        before = row.expires
        for sequence in row.sequences:
            flow = self._flows.get(sequence)
            if flow is not None:
                since, until = flow.presence(now)
                self._governor.seen(lease, until, now, since)
        return row.expires <= before and (cell is None or cell.close())

    # --- readers -------------------------------------------------------------------------------------------------

    def watch_reader(self, sequence: int, flow: Flow) -> None:
        """It may have left text unread from now on."""
        if (since := flow.neglected_since()) is not None:
            self._unread.set(sequence, since + self._limits.unread)

    def forget_reader(self, sequence: int) -> None:
        self._unread.set(sequence, None)

    def judge_readers(self, now: float) -> None:
        """End those that left text unread for `Limits.unread`."""
        for sequence in list(self._unread.due(now)):
            flow = self._flows.get(sequence)
            since = None if flow is None or flow.settled is not None else flow.neglected_since()
            if since is None:
                continue
            due = since + self._limits.unread
            if now >= due:
                self._governor.cancel(sequence, now, FinishReason.SLOW_READER)
            else:
                self._unread.set(sequence, due)
