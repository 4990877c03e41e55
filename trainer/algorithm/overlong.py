"""What truncation does to a reward (rStar2-Agent 2.2.1; DAPO, arXiv 2503.14476, 3.4)."""

from contracts.recipe import Overlong

BUFFER_SHARE = 0.2  # of the response limit; DAPO: 4,096 of 20,480 tokens


def shape_reward(reward: float, rule: Overlong, *, response_tokens: int, limit: int, is_truncated: bool) -> float:
    """The reward that advantages are made of; only `penalty` changes it.

    Penalty, DAPO eq. 13: 0 up to the buffer, then falling linearly to -1 at `limit` tokens; -1 for a truncated
    rollout wherever it ended. Groups are judged by the unshaped reward.
    """
    if rule is not Overlong.PENALTY:
        return reward
    buffer = BUFFER_SHARE * limit
    excess = 1.0 if is_truncated else (response_tokens - (limit - buffer)) / buffer
    return reward - min(1.0, max(0.0, excess))
