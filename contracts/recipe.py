"""The recipe: what a person writes (YAML), what the form shows, what the trainer reads. At most 60 fields.

Defaults live here, beside each field's one-line meaning; the form and the CLI have none of their own.
Paths: relative ones are under the run's artifact folder; `artifacts:X` is X under the artifact store
(an uploaded data set, another run's checkpoint); `models/X` ships with the project.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from contracts.base import Frozen
from contracts.curation import RULES, Checks, parse_checks
from contracts.execution import LimitProfile, Limits
from contracts.old_recipes import OLD_ENGINE, OLD_LENGTH


class Resample(StrEnum):
    """Which G of the 2G rollouts are learned from (rStar2-Agent 2.2.3)."""

    PAPER = "paper"  # positives drawn with probability 1/(p_err + p_format), negatives uniformly
    RELEASED = "released"  # the released code: best positives by penalty, first negatives
    NONE = "none"  # plain GRPO: G of 2G uniformly, whatever their reward


class AdvantageScale(StrEnum):
    """What divides reward minus group mean (eq. 7); see docs/decisions/loss.md."""

    STD = "std"  # the standard deviation over the kept rollouts of the group
    NONE = "none"  # nothing (Dr. GRPO)
    BATCH = "batch"  # the standard deviation over all rollouts kept in the step


class Overlong(StrEnum):
    """What becomes of truncated rollouts, whose reward is 0 in any case (2.2.1)."""

    KEEP = "keep"  # negatives like all others, as in the paper
    MASK = "mask"  # they count in the group's mean, but are not learned from (DAPO's filtering)
    PENALTY = "penalty"  # the reward falls over the last fifth of the limit, by 1 at its end (DAPO's soft punishment)


class LossTerm(StrEnum):
    """What can be added to the paper's loss, which has none of them (2.2.2). Each takes one number."""

    DUAL_CLIP = "dual_clip"  # above 1: the bound of the ratio where the advantage is negative
    KL_K1 = "kl_k1"  # coefficient; taken off the advantage, token by token
    KL_K2 = "kl_k2"  # coefficient of log(ratio)^2 / 2 to the stage's first policy
    KL_K3 = "kl_k3"  # coefficient of ratio - 1 - log(ratio) to the stage's first policy
    ENTROPY = "entropy"  # coefficient of the entropy bonus
    TIS = "tis"  # at least 1: the bound of the importance weights, trainer over engine

    @property
    def is_kl(self) -> bool:
        return self in (LossTerm.KL_K1, LossTerm.KL_K2, LossTerm.KL_K3)


class LossAggregation(StrEnum):
    GROUP_TOKEN = "group_token"  # eq. 6: sum over the group's tokens / token count of the group  # noqa: S105
    TOKEN = "token"  # sum over all tokens of the update / their count  # noqa: S105
    SEQUENCE = "sequence"  # mean per sequence, then over sequences (eq. 1)


class FeedbackStyle(StrEnum):
    """How a tool response is written; see docs/decisions/tool-feedback.md."""

    RAW = "raw"  # as the paper describes it (2.1): what was printed, and of a failure why
    LABELLED = "labelled"  # as the released code writes it: outcome, stdout, stderr, execution time


MAX_STALENESS = 4  # versions; more is of no use where a step's rollouts are learned from together
TIS_BOUND = 2.0  # of samples that an older policy may have made, where the recipe names none


class ToolSettings(Frozen):
    """The Python tool: limits of one call and how its response is shown."""

    profile: LimitProfile = Field(
        LimitProfile.SIMPLE,
        description="named limits: wall time, CPU time below it, memory; single ones are set apart under limits",
    )
    limits: Limits = Limits()
    feedback: FeedbackStyle = Field(
        FeedbackStyle.RAW, description="raw: the output alone, as in the paper; labelled: as the released code"
    )
    max_tool_response_tokens: int = Field(
        256,
        ge=32,
        description="of the policy's tokenizer; a longer response keeps head and tail (released code: 256 characters)",
    )
    traceback_lines: int = Field(0, ge=0, description="lines of a traceback that are shown, the last ones; 0: all")
    stateful: bool = Field(
        False, description="a call sees what the trajectory's earlier calls defined: they are replayed"
    )

    @model_validator(mode="before")
    @classmethod
    def _limits_not_given_are_the_profiles(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        if OLD_LENGTH in values:
            raise ValueError(f"{OLD_LENGTH} is now max_tool_response_tokens, counted by the policy's tokenizer")
        given = values.get("limits", {})
        try:
            profile = LimitProfile(values.get("profile", LimitProfile.SIMPLE))
        except ValueError:
            return values
        return values | {"limits": _fill(given, profile.limits)} if isinstance(given, dict) else values

    @model_validator(mode="after")
    def _cpu_ends_first(self) -> Self:
        if self.limits.cpu_s > self.limits.wall_s:
            raise ValueError(
                f"limits.cpu_s {self.limits.cpu_s:g} is above limits.wall_s {self.limits.wall_s:g}: "
                "the CPU limit would never be reached"
            )
        return self

    def own_limits(self) -> dict[str, Any]:
        """The limits that are not the profile's."""
        usual = self.profile.limits.model_dump()
        return {name: value for name, value in self.limits.model_dump().items() if value != usual[name]}


def _fill(given: dict[str, Any], usual: Limits) -> dict[str, Any]:
    """The limits given, the profile's for the rest; a shorter wall time shortens the CPU time with it."""
    filled = usual.model_dump() | given
    try:
        wall_s = float(filled["wall_s"])
    except (TypeError, ValueError):  # said by the field itself
        return filled
    if "cpu_s" not in given and wall_s < usual.cpu_s:
        filled["cpu_s"] = round(wall_s * usual.cpu_s / usual.wall_s, 3)
    return filled


class Sampling(Frozen):
    """How rollouts are sampled."""

    max_response_tokens: int = Field(8192, ge=8, description="all tokens after the prompt, tool responses included")
    max_turns: int = Field(10, ge=1, description="assistant turns; the paper's T")
    temperature: float = Field(1.0, gt=0, le=2, description="divides the logits; training uses 1, evaluation 0.6")


class Stage(Frozen):
    name: str = Field(
        min_length=1,
        max_length=60,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$",
        description="the stage's own name; later stages refer to its checkpoint by it",
    )


class CurateStage(Stage):
    """Makes the training set and the held-out set from its sources, with a funnel of reasons."""

    kind: Literal["curate"] = "curate"
    source: str = Field(
        "synthetic",
        description="'synthetic', the path of a JSONL, CSV or Parquet file or of a folder of them, "
        "or hf:OWNER/NAME[@CONFIG][:SPLIT]",
    )
    more_sources: list[str] = Field(default_factory=list, description="further sources, read as one with the first")
    count: int = Field(2000, ge=1, description="synthetic: problems generated; others: at most that many rows are read")
    held_out: int = Field(64, ge=0, description="problems kept apart for evaluation")
    decontaminate: list[str] = Field(default_factory=list, description="benchmarks whose 8-grams may not occur")
    checks: list[str] = Field(
        default_factory=lambda: list(RULES),
        description="what a problem has to pass; 'length 800' is shorter than the usual 4000 characters; "
        "'agreement 2 of 16' and 'difficulty 1 to 7 of 8' sample the policy",
    )
    sampling: Sampling = Sampling()

    @model_validator(mode="after")
    def _checks_are_known(self) -> Self:
        parse_checks(self.checks)
        return self

    @property
    def sources(self) -> list[str]:
        return [self.source, *self.more_sources]

    @property
    def parsed_checks(self) -> Checks:
        return parse_checks(self.checks)


class SftStage(Stage):
    """Non-reasoning SFT: teaches form and tool calls, not mathematics (4.1)."""

    kind: Literal["sft"] = "sft"
    steps: int = Field(200, ge=1, description="optimizer steps")
    batch_size: int = Field(32, ge=1, description="demonstrations a step")
    learning_rate: float = Field(1e-3, gt=0, le=1, description="AdamW, the highest of the schedule")


class RlStage(Stage):
    """GRPO-RoC (2.2)."""

    kind: Literal["rl"] = "rl"
    steps: int = Field(30, ge=1, description="collect, select, learn: once a step")
    prompts_per_step: int = Field(16, ge=1, description="problems a step, each with its own group")
    oversample: int = Field(32, ge=2, description="rollouts generated a prompt; the paper's 2G")
    group_size: int = Field(16, ge=2, description="rollouts kept a prompt; the paper's G")
    resample: Resample = Field(Resample.PAPER, description="the selection rule; none is plain GRPO")
    refill: int = Field(0, ge=0, le=16, description="rounds of new prompts for groups with equal rewards; paper: none")
    overlong: Overlong = Field(Overlong.KEEP, description="truncated rollouts: keep as negatives, mask, or penalty")
    sampling: Sampling = Sampling()
    hard_subset: int = Field(
        0, ge=0, description="train only on problems not always solved in that many rollouts (4.3: 8); 0: on all"
    )
    learning_rate: float = Field(1e-6, gt=0, le=1, description="AdamW")
    warmup_steps: int = Field(0, ge=0, description="steps with rising learning rate")
    clip_low: float = Field(0.2, gt=0, lt=1, description="the importance ratio is clipped below 1 - this")
    clip_high: float = Field(0.28, gt=0, description="clip-higher: the upper side is wider")
    advantage_scale: AdvantageScale = Field(AdvantageScale.STD, description="what divides reward minus mean")
    loss_aggregation: LossAggregation = Field(LossAggregation.GROUP_TOKEN, description="how tokens are averaged")
    loss_terms: dict[LossTerm, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="additions, each with its number: dual_clip 3, kl_k1, kl_k2 or kl_k3 0.001, entropy 0.001, tis 2",
    )
    mini_batch: int = Field(0, ge=0, description="rollouts an update; 0: all kept ones in one update")
    staleness: int = Field(
        0,
        ge=0,
        le=MAX_STALENESS,
        description="steps whose rollouts may begin before the step before them is learned from; 0: none, each step "
        "waits for the last; above 0 tis is on, at 2 where loss_terms has no other bound",
    )
    evaluate_every: int = Field(0, ge=0, description="steps between held-out evaluations; 0: none")
    evaluate_problems: int = Field(64, ge=1, description="held-out problems used on the way")
    checkpoint_every: int = Field(1, ge=0, description="steps between checkpoints; 0: at the stage's end only")
    reset_optimizer: bool = Field(True, description="fresh optimizer at the start of the stage (4.3)")

    @model_validator(mode="before")
    @classmethod
    def _older_samples_are_weighed(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("staleness") in (None, 0, "0", ""):
            return values
        terms = values.get("loss_terms") or {}
        return values | {"loss_terms": {LossTerm.TIS: TIS_BOUND} | terms} if isinstance(terms, dict) else values

    @model_validator(mode="after")
    def _group_fits(self) -> Self:
        if self.group_size > self.oversample:
            raise ValueError(f"group_size {self.group_size} is larger than oversample {self.oversample}")
        return self

    @field_validator("hard_subset", mode="before")
    @classmethod
    def _hard_subset_is_its_samples(cls, given: Any) -> Any:
        if isinstance(given, dict):
            raise ValueError(f"hard_subset is the number of samples itself now: hard_subset: {given.get('samples', 8)}")
        return given

    @field_validator("loss_terms")
    @classmethod
    def _terms_make_sense(cls, terms: dict[LossTerm, float]) -> dict[LossTerm, float]:
        if sum(term.is_kl for term in terms) > 1:
            raise ValueError("choose one of kl_k1, kl_k2 and kl_k3")
        if terms.get(LossTerm.DUAL_CLIP, 2) <= 1:
            raise ValueError("dual_clip must be above 1: it bounds the ratio from above")
        if terms.get(LossTerm.TIS, 1) < 1:
            raise ValueError("tis must be at least 1: engine and trainer agree at weight 1")
        return terms


class EvaluateStage(Stage):
    """Checkpoints on one benchmark; each becomes a row of the leaderboard `board`."""

    kind: Literal["evaluate"] = "evaluate"
    benchmark: str = Field("held_out", description="'held_out' of this run, or the path of a JSONL file")
    board: str = Field("", max_length=80, description="leaderboard the rows go to; '' for none")
    checkpoints: list[str] = Field(
        default_factory=lambda: ["latest"],
        min_length=1,
        description="'latest', the name of a stage of this run, 'base', or a path",
    )
    problems: int = Field(0, ge=0, description="at most that many problems; 0: all")
    k: int = Field(4, ge=1, description="samples a problem")
    sampling: Sampling = Sampling(temperature=0.6)


AnyStage = Annotated[CurateStage | SftStage | RlStage | EvaluateStage, Field(discriminator="kind")]


class Recipe(Frozen):
    """One pipeline: stages in order, one seed, one starting model."""

    name: str = Field(
        min_length=1, max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$", description="what the run is called"
    )
    description: str = Field("", max_length=500, description="a sentence for the others")
    seed: int = Field(1, ge=0, lt=2**31, description="every random choice of the run derives from it")
    gpus: int = Field(
        0,
        ge=0,
        description="GPUs the run is laid out for: one a rank, the others the engines'; 0: the CPUs of this machine",
    )
    engines: int = Field(
        0,
        ge=0,
        le=1024,
        description="vLLM engines, each on a CPU or on its share of the GPUs; 0: ours, in the trainer's process",
    )
    ranks: int = Field(
        1,
        ge=1,
        le=1024,
        description="processes of the learner, each with its part of the model; 1 without GPUs: the trainer's own",
    )
    model: str = Field("models/tiny-base", description="a model folder (transformers format) or a checkpoint")
    tool: ToolSettings = ToolSettings()
    forking_share: float = Field(0.2, gt=0, lt=1, description="top share by entropy in a trajectory")
    reflection_window: int = Field(24, ge=1, description="policy tokens after a tool response that may be reflection")
    stages: list[AnyStage] = Field(min_length=1, max_length=12)

    @model_validator(mode="before")
    @classmethod
    def _engines_say_which(cls, values: Any) -> Any:
        if isinstance(values, dict) and OLD_ENGINE in values:
            raise ValueError("engine is now part of engines: 0 for the torch engine, 1 or more for vLLM's")
        return values

    @model_validator(mode="after")
    def _engines_share_the_gpus_that_ranks_leave(self) -> Self:
        gpus, ranks, engines = self.gpus, self.ranks, self.engines
        if gpus and not engines:
            raise ValueError(f"gpus: {gpus} needs engines of 1 or more: ours, engines: 0, runs on CPUs only")
        if gpus and gpus <= ranks:
            raise ValueError(f"gpus: {gpus} leaves none for engines: ranks: {ranks} takes a GPU for each rank")
        if gpus and (gpus - ranks) % engines:
            raise ValueError(
                f"engines: {engines} does not divide the {gpus - ranks} GPUs that ranks: {ranks} leaves of "
                f"gpus: {gpus}; an engine has whole GPUs"
            )
        return self

    @model_validator(mode="after")
    def _stages_are_named_once_and_fed(self) -> Self:
        names = [s.name for s in self.stages]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"two stages are called {twice[0]!r}; give each its own name")
        has_problems = has_demonstrations = False
        for stage in self.stages:
            if stage.kind == "curate":
                has_problems, has_demonstrations = True, "synthetic" in stage.sources
            if stage.kind in ("sft", "rl") and not has_problems:
                raise ValueError(f"stage {stage.name!r} needs a curate stage before it: it has no problems")
            if stage.kind == "sft" and not has_demonstrations:
                raise ValueError(
                    f"stage {stage.name!r} needs demonstrations, which only the synthetic source has: "
                    "remove it and start from a model that calls the tool, or curate synthetic problems first"
                )
            if stage.kind == "evaluate" and stage.benchmark == "held_out" and not has_problems:
                raise ValueError(f"stage {stage.name!r} evaluates 'held_out' but no curate stage makes one")
        return self

    @property
    def total_rl_steps(self) -> int:
        return sum(s.steps for s in self.stages if s.kind == "rl")

    @property
    def workers_per_engine(self) -> int:
        """GPUs that share an engine's model (tensor parallel); 1 on CPUs."""
        return (self.gpus - self.ranks) // self.engines if self.gpus else 1

    @property
    def max_staleness(self) -> int:
        return max((s.staleness for s in self.stages if s.kind == "rl"), default=0)
