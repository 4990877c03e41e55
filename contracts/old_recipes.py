"""Recipes that were stored by an earlier version, in today's fields."""

from typing import Any

from contracts.curation import MAX_PROBLEM_CHARS, RULES, Check

OLD_LENGTH = "max_response_chars"  # recipes stored before tool responses were counted in tokens have it
# Fields that are constants now; a stored recipe that says something else is of an earlier version and stays so.
RETIRED = {"penalty_floor": 0.05, "warmup_share": 0.04, "drop_at": 1.0, "epochs": 1}
OLD_PROBLEM_LENGTH = "max_problem_chars"  # of the check 'length', which names it itself now
OLD_ENGINE = "engine"  # torch or vllm; engines says both now


def upgrade(stored: dict[str, Any]) -> dict[str, Any]:
    """A resolved recipe of an earlier version in today's fields; `stored` itself where it is of today."""
    upgraded = _without_retired(_count_in_tokens(_part_gpus(_count_engines(stored))))
    stages = stored.get("stages")
    if isinstance(stages, list):
        newer = [_upgrade_stage(stage) if isinstance(stage, dict) else stage for stage in stages]
        if newer != stages:
            upgraded = upgraded | {"stages": newer}
    return upgraded


def _upgrade_stage(stage: dict[str, Any]) -> dict[str, Any]:
    """`stage` itself where it is of today."""
    stage = _name_length(_without_retired(stage))
    subset = stage.get("hard_subset", 0)
    if subset is None or isinstance(subset, dict):
        return stage | {"hard_subset": 0 if subset is None else int(subset.get("samples", 8))}
    return stage


def _count_engines(stored: dict[str, Any]) -> dict[str, Any]:
    """The torch engine was one, of kind torch."""
    if OLD_ENGINE not in stored:
        return stored
    rest = {name: value for name, value in stored.items() if name != OLD_ENGINE}
    return rest | {"engines": 0 if stored[OLD_ENGINE] == "torch" else stored.get("engines", 1)}


def _part_gpus(stored: dict[str, Any]) -> dict[str, Any]:
    """Learner and engines were once laid out to take turns on the same GPUs; such a run never began."""
    gpus, ranks, engines = (stored.get(name, default) for name, default in (("gpus", 0), ("ranks", 1), ("engines", 0)))
    if not all(isinstance(count, int) for count in (gpus, ranks, engines)) or gpus <= ranks:
        return stored
    is_parted = engines and (gpus - ranks) % engines == 0
    return stored if is_parted else stored | {"engines": gpus - ranks}


def _count_in_tokens(stored: dict[str, Any]) -> dict[str, Any]:
    """ASCII text has no more tokens than characters."""
    tool = stored.get("tool")
    if not isinstance(tool, dict) or OLD_LENGTH not in tool:
        return stored
    rest = {name: value for name, value in tool.items() if name != OLD_LENGTH}
    return stored | {"tool": rest | {"max_tool_response_tokens": max(32, int(tool[OLD_LENGTH]))}}


def _name_length(stage: dict[str, Any]) -> dict[str, Any]:
    """`stage` itself where it has no length of its own beside its checks."""
    if OLD_PROBLEM_LENGTH not in stage:
        return stage
    rest = {name: value for name, value in stage.items() if name != OLD_PROBLEM_LENGTH}
    length = stage[OLD_PROBLEM_LENGTH]
    if length == MAX_PROBLEM_CHARS:
        return rest
    checks = rest.get("checks", RULES)
    return rest | {"checks": [f"{Check.LENGTH.value} {length}" if check == Check.LENGTH else check for check in checks]}


def _without_retired(fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` itself where nothing is to be left out; sections of fields too."""
    rest = {
        name: _without_retired(value) if isinstance(value, dict) else value
        for name, value in fields.items()
        if name not in RETIRED or RETIRED[name] != value
    }
    return rest if rest != fields else fields
