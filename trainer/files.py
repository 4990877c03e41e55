"""Paths of what a run writes, under its artifact folder."""

RECIPE_FILE = "resolved_recipe.json"
VERSIONS_FILE = "versions.json"


def train_file(stage: int) -> str:
    """The curated training problems."""
    return _problems(stage, "train.jsonl")


def held_out_file(stage: int) -> str:
    return _problems(stage, "held_out.jsonl")


def rejected_file(stage: int) -> str:
    return _problems(stage, "rejected.jsonl")


def manifest_file(stage: int) -> str:
    return _problems(stage, "manifest.json")


def hard_file(stage: int) -> str:
    """The problems an RL stage with a hard subset trains on."""
    return _problems(stage, "hard.jsonl")


def _problems(stage: int, name: str) -> str:
    return f"problems/stage-{stage:02d}/{name}"


def done_file(stage: int) -> str:
    """The note that a stage is finished."""
    return f"stages/stage-{stage:02d}.json"


def train_shard(stage: int, step: int) -> str:
    """The rollouts of a step."""
    return f"trajectories/stage-{stage:02d}/step-{step:05d}.parquet"


def evaluation_shard(stage: int, label: str) -> str:
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in label)
    return f"trajectories/stage-{stage:02d}/eval-{safe}.parquet"


def screening_shard(stage: int, number: int) -> str:
    """The rollouts that screened problems for a stage's hard subset."""
    return f"trajectories/stage-{stage:02d}/screen-{number:03d}.parquet"
