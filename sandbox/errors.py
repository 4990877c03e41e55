"""What the client raises. A program that fails is an `Execution`, never one of these.

SandboxClientError
├── SandboxUnavailable   no node answered in time, or nodes kept failing: nothing is known about the program
└── SandboxRefused       a node does not understand the request: versions differ, or a caller's bug
"""

from collections.abc import Sequence


class SandboxClientError(Exception):
    """Base of everything the client raises."""


class SandboxUnavailable(SandboxClientError):
    """The service failed, not the program. `reason` is one sentence for a person; `ids` are the calls it is about."""

    def __init__(self, reason: str, ids: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.ids = list(ids)


class SandboxRefused(SandboxClientError):
    """A node answered 4xx: trying again would not help."""
