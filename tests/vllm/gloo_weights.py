"""vLLM's transfer `nccl` with gloo in NCCL's place, in a real engine on CPUs: what vLLM's processes import."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
from vllm.engine.arg_utils import AsyncEngineArgs

from tests.gloo_group import GlooGroup
from trainer.rollout import vllm_engine
from trainer.rollout.remote import EngineSettings

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Extension = vllm_engine.Extension
_arguments = vllm_engine._arguments


class Gloo:
    """`PyNcclCommunicator` as far as the engine asks."""

    def __init__(self, group: GlooGroup) -> None:
        self._group = group

    def broadcast(self, tensor: torch.Tensor, src: int, stream: None) -> None:
        self._group.broadcast(tensor)

    def destroy(self) -> None:
        pass


class GlooWeights(NCCLWeightTransferEngine):
    def init_transfer_engine(self, init_info: NCCLWeightTransferInitInfo) -> None:
        self.packed = init_info.packed
        identity = init_info.nccl_unique_id_bytes
        assert identity is not None
        self.model_update_group = Gloo(GlooGroup(identity, init_info.world_size, init_info.rank_offset))

    def receive_weights(self, update_info: Any) -> None:
        real = self.model.load_weights

        def load_head_too(pairs: Sequence[tuple[str, torch.Tensor]]) -> Any:
            """The CPU's head keeps a packed copy of tied embeddings; a GPU's has none."""
            return real([*pairs, *((HEAD, tensor) for name, tensor in pairs if name == EMBEDDING)])

        self.model.load_weights = load_head_too
        try:
            super().receive_weights(update_info)
        finally:
            self.model.load_weights = real


torch.cuda.current_stream = lambda: None  # type: ignore[assignment]
WeightTransferEngineFactory.register_engine("gloo", GlooWeights)


def make_engine(settings: EngineSettings) -> vllm_engine.VllmEngine:
    """A real one."""
    vllm_engine._arguments = _arguments_on_cpu
    return vllm_engine.VllmEngine(settings)


def _arguments_on_cpu(settings: EngineSettings) -> AsyncEngineArgs:
    found = _arguments(replace(settings, is_on_gpu=False))
    found.weight_transfer_config = WeightTransferConfig(backend="gloo")
    found.worker_extension_cls = f"{__name__}.Extension"  # so that vLLM's own process imports this file
    return found
