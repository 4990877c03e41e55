"""Why a rollout was kept or not, in the words of the glossary: pure, from its index row and the recipe."""

from dataclasses import dataclass, field

from contracts.trajectory import Decision
from webapp.trajectories.models import Trajectory

_MEANING = {
    Decision.KEPT_RIGHT: "Right, and drawn among the right rollouts of its group.",
    Decision.KEPT_WRONG: "Wrong, and drawn among the wrong rollouts of its group. Their penalties play no part.",
    Decision.KEPT_TRUNCATED: "Cut off by a limit, so wrong, and drawn among the wrong rollouts of its group.",
    Decision.NOT_SELECTED: "Not drawn by the selection rule. It gives no gradient.",
    Decision.EQUAL_REWARD: "All rewards of its group are equal, so all advantages would be zero: the group is dropped.",
    Decision.TOO_FEW: "Fewer than two rollouts of its group could be graded: the group is dropped.",
    Decision.UNGRADED: "A part of ours failed, so it has no reward. It is counted and never learned from.",
    Decision.EVALUATION: "An evaluation rollout: graded, never learned from.",
}
_TITLES = {Decision.UNGRADED: "Why it is ungraded", Decision.EVALUATION: "How it was graded"}


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    title: str
    rule: str
    meaning: str
    facts: list[Fact] = field(default_factory=list)


def explain(t: Trajectory) -> Explanation:
    decision = Decision(t.decision)
    kept = t.decision.startswith("kept")
    title = _TITLES.get(decision, "Why it was kept" if kept else "Why it was not kept")
    return Explanation(title, _rule(t), _MEANING[decision], _facts(t))


def _rule(t: Trajectory) -> str:
    stages = t.run.recipe.get("stages", []) if isinstance(t.run.recipe, dict) else []
    stage = stages[t.stage] if t.stage < len(stages) else {}
    if t.is_evaluation or "group_size" not in stage:
        return ""
    return f"2G = {stage['oversample']} → G = {stage['group_size']}, rule: {stage['resample']}"


def _facts(t: Trajectory) -> list[Fact]:
    facts = [
        Fact("tool calls", str(t.tool_calls)),
        Fact("tool errors", str(t.tool_errors), "bad" if t.tool_errors else ""),
        Fact("stop reason", t.stop_reason),
        Fact("answer", t.answer[:80] if t.answer is not None else "none found"),
        Fact("reference", t.reference_answer[:80]),
    ]
    if t.reward is None:
        return [*facts, Fact("ungraded", t.ungraded_reason, "bad"), Fact("detail", t.ungraded_detail[:300] or "–")]
    numbers = (
        ("p_err", t.p_err, 2),
        ("p_format", t.p_format, 2),
        ("weight 1 / (p_err + p_format)", t.weight, 2),
        ("share of draw", t.draw_probability, 3),
        ("advantage", t.advantage, 3),
    )
    return facts + [Fact(name, f"{value:.{digits}f}") for name, value, digits in numbers if value is not None]
