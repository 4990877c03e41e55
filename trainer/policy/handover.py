"""How the policy of ranks in processes of their own gets to where engines are given it from: a copy in this process, or
files beside the first rank, which a process there sends to engines on GPUs."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file
from transformers import Qwen3ForCausalLM

from trainer.policy.model import load_weights
from trainer.policy.rank_host import LearnerLost, RankHost
from trainer.rollout.engine import EngineError
from trainer.rollout.offer import Offer


class Handover(Protocol):
    def offer(self, folder: Path | None) -> None:
        """The policy as it is, or the weights of a checkpoint: see `Learner.offer`."""
        ...

    def close(self) -> None: ...


class OwnCopy:
    """Into `model`, which engines are given. `exchange`: a file that ranks and this process see, best in memory."""

    def __init__(self, host: RankHost, model: Qwen3ForCausalLM, exchange: Path) -> None:
        self._host = host
        self._model = model
        self._exchange = exchange

    @torch.no_grad()
    def offer(self, folder: Path | None) -> None:
        if folder is not None:
            load_weights(self._model, folder)
            return
        self._host.call("write_weights", self._exchange)
        found = load_file(self._exchange)
        self._exchange.unlink()
        for name, parameter in self._model.named_parameters():
            parameter.copy_(found[name])

    def close(self) -> None:
        pass


class Offers:
    """Into one of two files, by the ranks: the other one is what engines that are rebuilt meanwhile are given."""

    def __init__(self, host: RankHost, paths: Sequence[Path]) -> None:
        self._host = host
        self._free, self._published = paths
        self._offered: Offer | None = None

    def offer(self, folder: Path | None) -> None:
        if folder is not None:
            self._host.call("load", folder)
        self._offered = self._host.call("lay_out", self._free)[0]

    def publish(self) -> Offer:
        """What was offered last, which stays as it is until the next call."""
        if self._offered is None:
            raise EngineError("the engines were given no weights: the learner has offered none")
        if self._offered.path == self._free:
            self._free, self._published = self._published, self._free
        return self._offered

    def close(self) -> None:
        with suppress(LearnerLost):
            self._host.call("remove", [self._free, self._published])
