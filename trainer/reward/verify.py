"""Is an answer equal to the reference? Pure; may be slow, so `pool.py` runs it in a killable process."""


def verify_integer(answer: str, reference: str) -> bool | None:
    """Exact at any length; None when one of them is not an integer literal."""
    raise NotImplementedError


def verify(answer: str, reference: str) -> bool:
    raise NotImplementedError
