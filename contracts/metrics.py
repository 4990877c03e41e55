"""Every metric of the system: one name, one meaning, one unit. A name not listed here is refused by ingest.

`step` counts optimizer steps from 1 and goes on over the RL stages of a run; SFT counts its own.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """What one number on a chart means."""

    name: str
    unit: str
    meaning: str


_ALL = (
    Metric("sft/loss", "nats", "mean cross-entropy over trained tokens of the step"),
    Metric("sft/lr", "", "learning rate"),
    Metric("sft/grad_norm", "", "global gradient norm before clipping"),
    Metric("reward/mean", "", "mean reward over the graded rollouts generated in the step"),
    Metric("reward/kept_mean", "", "mean reward over the kept rollouts"),
    Metric("eval/avg", "", "avg@k on the held-out set"),
    Metric("eval/half_width", "", "95 % half-width of eval/avg, clustered by problem"),
    Metric("eval/tool_error_ratio_right", "", "errored / all tool calls in right held-out trajectories"),
    Metric("response/tokens_mean", "tokens", "mean response length, tool responses included"),
    Metric("response/tokens_p10", "tokens", "10th percentile of response length"),
    Metric("response/tokens_p50", "tokens", "median response length"),
    Metric("response/tokens_p90", "tokens", "90th percentile of response length"),
    Metric("response/truncated_ratio", "", "share of rollouts stopped by max_response_tokens or context_overflow"),
    Metric("response/turns_mean", "turns", "mean turns a rollout"),
    Metric("tools/calls_mean", "calls", "mean tool calls a rollout"),
    Metric("tools/error_ratio", "", "errored / all tool calls, all rollouts"),
    Metric("tools/error_ratio_right", "", "errored / all tool calls, rollouts with reward 1 only"),
    Metric("tools/error_ratio_wrong", "", "errored / all tool calls, rollouts with reward 0 only"),
    Metric("tools/no_tool_ratio", "", "share of rollouts without any tool call"),
    Metric("tools/exec_ms_mean", "ms", "mean execution time of a call in the sandbox"),
    Metric("tools/queue_ms_mean", "ms", "mean queue time of a call in the sandbox"),
    Metric("entropy/mean", "nats", "mean entropy over policy tokens, full vocabulary"),
    Metric("entropy/reasoning", "nats", "mean entropy over reasoning tokens"),
    Metric("entropy/code", "nats", "mean entropy over code tokens"),
    Metric("entropy/comment", "nats", "mean entropy over comment tokens"),
    Metric("entropy/answer", "nats", "mean entropy over answer tokens"),
    Metric("entropy/format", "nats", "mean entropy over format tokens"),
    Metric("entropy/before_ok", "nats", "mean entropy over the window before a tool call that succeeded"),
    Metric("entropy/before_error", "nats", "mean entropy over the window before a tool call that failed"),
    Metric("entropy/after_ok", "nats", "mean entropy over the window after a successful tool response"),
    Metric("entropy/after_error", "nats", "mean entropy over the window after a failed tool response"),
    Metric("tokens/forking_share", "", "share of policy tokens marked forking"),
    Metric("tokens/reflection_share", "", "share of policy tokens marked reflection"),
    Metric("groups/kept", "groups", "groups that gave a gradient"),
    Metric("groups/equal_right", "groups", "dropped: all rewards 1"),
    Metric("groups/equal_wrong", "groups", "dropped: all rewards 0"),
    Metric("groups/too_few", "groups", "dropped: fewer than two graded rollouts"),
    Metric("refill/groups", "groups", "sampled in addition, in place of groups with equal rewards"),
    Metric("ledger/kept_right", "rollouts", "kept, reward 1"),
    Metric("ledger/kept_wrong", "rollouts", "kept, reward 0"),
    Metric("ledger/kept_truncated", "rollouts", "kept, truncated negatives"),
    Metric("ledger/not_selected", "rollouts", "not drawn by the selection rule"),
    Metric("ledger/equal_reward", "rollouts", "in an uninformative group"),
    Metric("ledger/too_few", "rollouts", "in a group with fewer than two graded rollouts"),
    Metric("ledger/ungraded", "rollouts", "without a reward because a part of ours failed"),
    Metric("policy/loss", "", "policy loss, mean over the step's updates"),
    Metric("policy/grad_norm", "", "global gradient norm before clipping, mean over the step's updates"),
    Metric("policy/lr", "", "learning rate"),
    Metric("policy/ratio_max", "", "largest importance ratio of the step"),
    Metric("policy/clipped_share", "", "share of policy tokens where the clip was active"),
    Metric("policy/dual_clipped_share", "", "share of policy tokens where the dual clip was active"),
    Metric(
        "policy/kl_reference",
        "nats",
        "KL (k3) to the stage's first policy before the first update, where a KL term is on",
    ),
    Metric("policy/logprob_gap_mean", "nats", "mean |trainer - sampling log-probability| before the first update"),
    Metric("policy/logprob_gap_max", "nats", "largest |trainer - sampling log-probability| before the first update"),
    Metric("policy/logprob_kl", "nats", "KL of sampling to trainer probabilities (k3) before the first update"),
    Metric(
        "policy/importance_capped_share",
        "",
        "share of policy tokens whose importance weight, trainer over sampling, exceeds its cap (tis, else 2)",
    ),
    Metric(
        "policy/staleness_mean", "versions", "the policy's version - the one that sampled a token, over policy tokens"
    ),
    Metric("policy/staleness_max", "versions", "the same of the oldest policy token"),
    Metric("policy/older_share", "", "share of policy tokens that an older version than the policy's sampled"),
    Metric("time/step_s", "s", "wall time of the step"),
    Metric("time/generate_s", "s", "of it generation and tool calls, or the wait for what had begun before"),
    Metric("time/learn_s", "s", "of it log-probabilities and updates"),
    Metric("time/grade_s", "s", "of generation, time in which an answer was being graded"),
    Metric("time/tool_s", "s", "of generation, time in which a tool call was in flight"),
    Metric("time/sync_s", "s", "new weights to the engines"),
    Metric(
        "engine/kv_use_mean", "", "used / all KV tokens of the engines while rollouts were generated, mean over time"
    ),
    Metric("engine/kv_use_max", "", "the same of the fullest engine at its fullest"),
    Metric("engine/running_mean", "requests", "requests an engine works on at once, mean over time and engines"),
    Metric("engine/waiting_mean", "requests", "requests that wait in an engine or before all, mean over time, in all"),
    Metric("engine/preemptions", "requests", "requests that lost their KV cache and were computed again"),
    Metric(
        "time/tokens_per_s", "tokens/s", "policy tokens per second from the first rollout's begin to the last one's end"
    ),
)

METRICS: dict[str, Metric] = {m.name: m for m in _ALL}

# What a resumed or repeated run does not reproduce: readings of the clock, and of engines at moments of the clock.
# Everything else it does, bit for bit.
TIME_METRICS = frozenset(m.name for m in _ALL if m.unit in ("s", "ms", "tokens/s") or m.name.startswith("engine/"))
