"""What the driver and the ranks of a learner in processes of their own say to each other. No torch, no Ray here."""

from typing import Any, Protocol


class LearnerLost(Exception):
    """A rank is gone, and with it its part of the weights and the optimizer: start all anew, from a checkpoint."""


class RankHost(Protocol):
    """Starts ranks, and has a place for each."""

    def start(self) -> None:
        """End what ranks there are, and start all anew, joined in one process group."""
        ...

    def call(self, method: str, *arguments: Any, **named: Any) -> list[Any]:
        """The method of `OwnLearner` on every rank; what each returns. LearnerLost when one died meanwhile."""
        ...

    def close(self) -> None: ...
