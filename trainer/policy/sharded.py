"""The learner of a sharded model: what one rank does, whoever started the ranks.

Every method is collective: all ranks of the process group call it, in the same order and with the same arguments.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor
from transformers import Qwen3ForCausalLM

from contracts.recipe import RlStage
from trainer.algorithm.logprobs import TokenScores
from trainer.algorithm.packing import Row
from trainer.policy.checkpoint import CheckpointStore, Counters, Written, has_optimizer, load_optimizer
from trainer.policy.learner import LearnReport, Sample, learn
from trainer.policy.model import compute_scores, load_model, load_weights
from trainer.policy.optimizer import make_optimizer
from trainer.policy.parallel import Layout, gather_weights, shard_model


class ShardedLearner:
    """Policy and optimizer in shards over the ranks of the initialised process group."""

    def __init__(self, source: Path, layout: Layout) -> None:
        """`source`: a model folder, whose tokenizer also goes into checkpoints; its optimizer, if any, is not read.

        On GPUs the caller has chosen this process's own (`torch.cuda.set_device`) and initialised the group with nccl.
        """
        self.source = source
        self.layout = layout
        self.model = shard_model(load_model(source), layout)
        self.optimizer = make_optimizer(self.model)
        self.reference: Qwen3ForCausalLM | None = None

    def restore(self, folder: Path) -> None:
        """Weights and, if it has one, optimizer of a checkpoint that any number of ranks has written."""
        load_weights(self.model, folder)
        self.reset_optimizer()
        if has_optimizer(folder):
            load_optimizer(self.model, self.optimizer, folder)

    def reset_optimizer(self) -> None:
        self.optimizer = make_optimizer(self.model)

    def hold_reference(self, folder: Path | None) -> None:
        """The policy that KL terms hold on to; None lets it go."""
        self.reference = None if folder is None else shard_model(load_model(folder), self.layout)

    def score(self, rows: Sequence[Row], temperature: float) -> list[TokenScores]:
        """Log-probabilities and entropies of each row's trained tokens, on every rank."""
        return compute_scores(self.model, rows, temperature)

    def learn(self, samples: Sequence[Sample], *, stage: RlStage, rate: float, seed: int) -> LearnReport:
        return learn(self.model, self.optimizer, samples, stage=stage, rate=rate, seed=seed, reference=self.reference)

    def gather_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Each weight whole, one after another, on every rank."""
        return gather_weights(self.model)

    def save(self, store: CheckpointStore, counters: Counters) -> Written:
        return store.write(self.model, self.optimizer, counters, self.source)
