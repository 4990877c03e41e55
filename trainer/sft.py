"""Non-reasoning SFT (rStar2-Agent 4.1): teaches form and tool calls from demonstrations of generated problems."""

import logging
import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from contracts.events import LogLevel
from contracts.recipe import CurateStage, SftStage
from trainer.algorithm.packing import Row
from trainer.context import RunContext, Training
from trainer.curate import generate_source
from trainer.data.problems import DataError, load_problems
from trainer.data.synthetic import SyntheticProblem
from trainer.data.transcripts import Demonstration, demonstrations
from trainer.files import train_file
from trainer.policy.optimizer import cosine_rate
from trainer.rollout.chat import Chat
from trainer.rollout.feedback import render
from trainer.seeds import derive_seed

WARMUP_SHARE = 0.04  # of the steps (rStar2-Agent 5.1)
LOG_EVERY = 10  # steps between lines in the journal; the terminal gets each
CHECKPOINTS = 10  # of a stage: a kill costs at most a tenth of it
_log = logging.getLogger(__name__)


def run_sft(context: RunContext, index: int, stage: SftStage) -> None:
    """One pass after another over the demonstrations, `stage.steps` updates; a checkpoint at each tenth of them."""
    rows = _make_rows(context, index)
    imitate = partial(_imitate, context, index, stage, rows)
    done = context.begin_training(Training(index, reset_optimizer=True, relearn=imitate))
    if done == stage.steps:  # killed between the last checkpoint and the stage's end
        return
    checkpoint_every = max(1, stage.steps // CHECKPOINTS)
    for step in range(done + 1, stage.steps + 1):
        context.begin_step(index, stage, step)
        started = time.monotonic()
        context.reporter.doing = f"{stage.name}: step {step} of {stage.steps}"
        loss, norm = context.on_learner(partial(imitate, step), done=step - 1)
        rate = _rate(stage, step)
        context.reporter.metrics(index, step, {"sft/loss": loss, "sft/lr": rate, "sft/grad_norm": norm})
        text = f"{stage.name} {step}/{stage.steps}  loss {loss:.4f}  {time.monotonic() - started:.2f} s"
        if step % LOG_EVERY == 0 or step == stage.steps:
            context.reporter.log(LogLevel.INFO, text)
        else:
            _log.info("%s", text)
        if step % checkpoint_every == 0 and step < stage.steps:
            context.save_checkpoint(index, stage, step)
    context.policy.version += 1
    context.save_checkpoint(index, stage, stage.steps, is_stage_end=True)
    context.on_learner(context.publish, done=stage.steps)


def _imitate(context: RunContext, index: int, stage: SftStage, rows: Sequence[Row], step: int) -> tuple[float, float]:
    """The update of a step: loss and gradient norm. A function of the learner and the step."""
    batch = [rows[i] for i in _pick(len(rows), stage.batch_size, step, derive_seed(context.recipe.seed, index))]
    return context.policy.learner.imitate(batch, _rate(stage, step))


def _rate(stage: SftStage, step: int) -> float:
    return cosine_rate(stage.learning_rate, step, stage.steps, WARMUP_SHARE)


def encode_demonstration(chat: Chat, demonstration: Demonstration) -> Row:
    """Ids as the agent loop would have made them; mask 1 on trained messages with the id that ends the turn."""
    first, *others = demonstration.messages
    ids: list[int] = []
    mask: list[int] = []
    for message in others:
        if message.role == "assistant":
            part = [*chat.encode(message.content), chat.turn_end_id]
        else:
            part = chat.tool_response_ids(message.content, closed=True)
        ids += part
        mask += [int(message.trained)] * len(part)
    return Row(chat.prompt_ids(first.content), ids, mask)


def _make_rows(context: RunContext, index: int) -> list[Row]:
    """Demonstrations of the curated training problems, encoded; those beyond the engine's context are left out."""
    curate_index, curate = context.curated_before(index)
    kept = {p.id for p in load_problems(context.out / train_file(curate_index))}
    problems = _known_problems(context, curate_index, curate, kept)
    chat, tool = context.sampler.chat, context.recipe.tool
    seed = derive_seed(context.recipe.seed, "demonstrations", index)
    shown = demonstrations(problems, seed, respond=lambda result: render(result.as_execution(), tool, chat).text)
    rows = [encode_demonstration(chat, d) for d in shown]
    limit = context.sampler.engine.max_context
    fitting = [row for row in rows if len(row.prompt_ids) + len(row.response_ids) <= limit]
    if not fitting:
        raise DataError(f"none of {len(rows)} demonstrations fits into the model's {limit} tokens of context")
    return fitting


def _known_problems(
    context: RunContext, curate_index: int, curate: CurateStage, kept: set[str]
) -> Sequence[SyntheticProblem]:
    """The generated problems that curation kept, with their solutions; the recipe's validator has seen to it
    that an SFT stage follows a synthetic source, since only that has demonstrations."""
    source = generate_source(context.recipe.seed, curate_index, curate)
    first = {p.id: p for p in reversed(source) if p.id in kept and isinstance(p.answer, int)}
    return [first[p.id] for p in source if first.get(p.id) is p]


def _pick(count: int, size: int, step: int, seed: int) -> list[int]:
    """Rows of a step: the order is a permutation per epoch, a function of step and seed alone."""
    start = (step - 1) * size
    picked = []
    for position in range(start, start + size):
        epoch, offset = divmod(position, count)
        picked.append(int(_permutation(seed, epoch, count)[offset]))
    return picked


def _permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    return np.random.default_rng(derive_seed(seed, "epoch", epoch)).permutation(count)
