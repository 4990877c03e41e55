"""Where the answer is read from: the last balanced \\boxed{} inside the answer tag of the last turn."""


def extract_answer(turn_text: str) -> str | None:
    """From the text of the last assistant turn; None when there is no answer in the required place."""
    raise NotImplementedError


def count_answer_tags(turn_texts: list[str]) -> int:
    """Opening answer tags in what the policy wrote (p_format of rStar2-Agent 2.2.3)."""
    raise NotImplementedError
