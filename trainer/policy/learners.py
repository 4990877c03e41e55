"""Who holds policy and optimizer: this process, alone or as one rank of many, or ranks in processes of their own.

A stage asks a `Learner` and does not know which it is. `OwnLearner` is also what each rank runs; there its methods are
collective: all ranks of the process group call them, in the same order and with the same arguments.
"""

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from safetensors.torch import save_file
from transformers import Qwen3ForCausalLM

from contracts.recipe import RlStage
from trainer.algorithm.logprobs import TokenScores
from trainer.algorithm.packing import Row
from trainer.policy.checkpoint import CheckpointStore, Counters, Written, has_optimizer, load_optimizer
from trainer.policy.handover import Handover
from trainer.policy.learner import LearnReport, Sample, imitate, learn
from trainer.policy.model import compute_scores, load_model, load_weights
from trainer.policy.optimizer import make_optimizer
from trainer.policy.parallel import Layout, gather_weights, ranks_of, shard_model
from trainer.policy.rank_host import LearnerLost, RankHost
from trainer.rollout.offer import Offer, write_offer
from trainer.rollout.weights import draw_probe


class Learner(Protocol):
    """Any of them raises LearnerLost where it has ranks that can die."""

    def restore(self, folder: Path) -> None:
        """Weights and, if it has one, optimizer of a checkpoint that any number of ranks has written."""
        ...

    def reset_optimizer(self) -> None: ...

    def hold_reference(self, folder: Path | None) -> None:
        """The policy that KL terms hold on to; None lets it go."""
        ...

    def score(self, rows: Sequence[Row], temperature: float) -> list[TokenScores]:
        """Log-probabilities and entropies of each row's trained tokens."""
        ...

    def imitate(self, rows: Sequence[Row], rate: float) -> tuple[float, float]:
        """One update of SFT: see `trainer.policy.learner.imitate`."""
        ...

    def learn(self, samples: Sequence[Sample], *, stage: RlStage, rate: float, seed: int) -> LearnReport:
        """One step of RL: see `trainer.policy.learner.learn`."""
        ...

    def save(self, store: CheckpointStore, counters: Counters) -> Written: ...

    def offer(self, folder: Path | None = None) -> None:
        """What engines get when a version is published: the policy as it is now, or the weights of a checkpoint, which
        may take the policy's place until the next `restore`."""
        ...

    def restart(self) -> None:
        """After LearnerLost: all ranks anew, with the weights they were first given."""
        ...

    def close(self) -> None: ...


class OwnLearner:
    """Policy and optimizer in this process: a whole model, or this rank's shards of one."""

    def __init__(self, model: Qwen3ForCausalLM, source: Path, layout: Layout | None = None) -> None:
        """`source`: the folder whose tokenizer goes into checkpoints. `layout`: how a sharded model computes.

        On GPUs the caller has chosen this process's own (`torch.cuda.set_device`) and initialised the group with nccl.
        """
        self.source = source
        self.model = model
        self.optimizer = make_optimizer(model)
        self.reference: Qwen3ForCausalLM | None = None
        self._layout = layout

    @classmethod
    def shard(cls, source: Path, layout: Layout) -> "OwnLearner":
        """This rank's part of the model of a folder, over all ranks of the initialised process group."""
        return cls(shard_model(load_model(source), layout), source, layout)

    def restore(self, folder: Path) -> None:
        load_weights(self.model, folder)
        self.reset_optimizer()
        if has_optimizer(folder):
            load_optimizer(self.model, self.optimizer, folder)

    def reset_optimizer(self) -> None:
        self.optimizer = make_optimizer(self.model)

    def hold_reference(self, folder: Path | None) -> None:
        whole = None if folder is None else load_model(folder)
        self.reference = whole if whole is None or self._layout is None else shard_model(whole, self._layout)

    def score(self, rows: Sequence[Row], temperature: float) -> list[TokenScores]:
        return compute_scores(self.model, rows, temperature)

    def imitate(self, rows: Sequence[Row], rate: float) -> tuple[float, float]:
        return imitate(self.model, self.optimizer, rows, rate)

    def learn(self, samples: Sequence[Sample], *, stage: RlStage, rate: float, seed: int) -> LearnReport:
        return learn(self.model, self.optimizer, samples, stage=stage, rate=rate, seed=seed, reference=self.reference)

    def save(self, store: CheckpointStore, counters: Counters) -> Written:
        return store.write(self.model, self.optimizer, counters, self.source)

    def offer(self, folder: Path | None = None) -> None:
        """The engine reads this very model."""
        if folder is not None:
            self.load(folder)

    def load(self, folder: Path) -> None:
        """The weights alone."""
        load_weights(self.model, folder)

    def lay_out(self, path: Path) -> Offer | None:
        """Each weight whole, one at a time, by the first rank into a file beside it, and what engines that are given
        it must agree on; None on the others."""
        parameters = dict(self.model.named_parameters())
        vocabulary = int(self.model.config.vocab_size)
        first, *others = draw_probe(vocabulary)
        probe = self.score([Row([first], others, [1] * len(others))], 1.0)[0].logprobs.tolist()
        whole = ((name, weight) for name, weight in gather_weights(self.model) if name in parameters)
        if ranks_of(self.model).rank > 0:
            deque(whole, maxlen=0)  # takes its part in the gathering
            return None
        size = sum(weight.numel() for weight in parameters.values())
        return write_offer(path, whole, size=size, vocabulary=vocabulary, probe_logprobs=probe)

    def remove(self, paths: Sequence[Path]) -> None:
        """Files that were laid out."""
        for path in paths:
            path.unlink(missing_ok=True)

    def write_weights(self, path: Path) -> None:
        """Each weight whole, by the first rank, into a safetensors file; tied ones under their first name."""
        names = dict(self.model.named_parameters())
        whole = {name: tensor for name, tensor in gather_weights(self.model) if name in names}
        if ranks_of(self.model).rank == 0:
            save_file({name: tensor.contiguous() for name, tensor in whole.items()}, path)

    def restart(self) -> None:
        raise LearnerLost("a learner in the trainer's process cannot be restarted")

    def close(self) -> None:
        pass


class RemoteLearner:
    """The ranks of `host`, as one. `handover`: how what they have learned gets to the engines."""

    def __init__(self, host: RankHost, handover: Handover) -> None:
        self._host = host
        self._handover = handover
        host.start()

    def restore(self, folder: Path) -> None:
        self._host.call("restore", folder)

    def reset_optimizer(self) -> None:
        self._host.call("reset_optimizer")

    def hold_reference(self, folder: Path | None) -> None:
        self._host.call("hold_reference", folder)

    def score(self, rows: Sequence[Row], temperature: float) -> list[TokenScores]:
        found: list[TokenScores] = self._host.call("score", rows, temperature)[0]
        return found

    def imitate(self, rows: Sequence[Row], rate: float) -> tuple[float, float]:
        loss, norm = self._host.call("imitate", rows, rate)[0]
        return loss, norm

    def learn(self, samples: Sequence[Sample], *, stage: RlStage, rate: float, seed: int) -> LearnReport:
        report: LearnReport = self._host.call("learn", samples, stage=stage, rate=rate, seed=seed)[0]
        return report

    def save(self, store: CheckpointStore, counters: Counters) -> Written:
        written: Written = self._host.call("save", store, counters)[0]
        return written

    def offer(self, folder: Path | None = None) -> None:
        self._handover.offer(folder)

    def restart(self) -> None:
        self._host.start()

    def close(self) -> None:
        self._handover.close()
        self._host.close()
