"""Who is held under an owner and a label: the newest one is what a submission under the same two supersedes."""

from boundedgen._core._sequences import Submission

Name = tuple[str, str]


class Names:
    """Of those that are not settled and have a label. Every step costs O(1); what is over leaves nothing behind."""

    def __init__(self) -> None:
        self._held: dict[Name, dict[int, None]] = {}  # in the order of submission

    def __len__(self) -> int:
        return len(self._held)

    def add(self, submission: Submission) -> None:
        if submission.label and not submission.probe:
            self._held.setdefault(_name(submission), {})[submission.id] = None

    def remove(self, submission: Submission) -> None:
        """If it is in."""
        same = self._held.get(_name(submission)) if submission.label else None
        if same is not None:
            same.pop(submission.id, None)
            if not same:
                del self._held[_name(submission)]
            if not self._held:
                self._held.clear()  # which gives its memory back

    def newest(self, submission: Submission) -> int | None:
        """The one that it supersedes; None: there is none, or it does not want to."""
        same = self._held.get(_name(submission)) if submission.supersede else None
        return next(reversed(same)) if same else None


def _name(submission: Submission) -> Name:
    return submission.owner, submission.label
