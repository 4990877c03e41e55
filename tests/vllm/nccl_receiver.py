"""The receiving half of vLLM's nccl transfer in a process of its own, with gloo in NCCL's place: `FOLDER` is argv[1].

Reads two lines of JSON, what the trainer says at the start and at an update, and writes what vLLM's engine then loads.
"""

import json
import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine, NCCLWeightTransferUpdateInfo


class Gloo:
    """`PyNcclCommunicator` as far as the engine asks."""

    def broadcast(self, tensor: torch.Tensor, src: int, stream: None) -> None:
        dist.broadcast(tensor.view(torch.uint8), src)


class Model:
    def __init__(self) -> None:
        self.held: dict[str, torch.Tensor] = {}

    def load_weights(self, pairs: Sequence[tuple[str, torch.Tensor]]) -> None:
        self.held |= {name: tensor.clone() for name, tensor in pairs}


def main(folder: str) -> None:
    start = NCCLWeightTransferInitInfo(**json.loads(sys.stdin.readline()))
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=start.rank_offset, world_size=start.world_size
    )
    engine = NCCLWeightTransferEngine.__new__(NCCLWeightTransferEngine)
    engine.model, engine.device, engine.packed = Model(), torch.device("cpu"), start.packed
    engine.model_update_group = Gloo()
    torch.cuda.current_stream = lambda: None
    engine.receive_weights(NCCLWeightTransferUpdateInfo(**json.loads(sys.stdin.readline())))
    torch.save(engine.model.held, f"{folder}/held.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
