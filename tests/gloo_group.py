"""gloo in NCCL's place: how a sender of weights and the workers of engines find each other and exchange tensors."""

import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

IDENTITY_BYTES = 128  # as NCCL's


class GlooGroup:
    """`Group` by gloo: `rank` 0 is the sender's."""

    def __init__(self, identity: bytes, size: int, rank: int = 0) -> None:
        host, port = identity.rstrip(b"\0").decode().split(":")
        patience = timedelta(seconds=60)
        store = dist.TCPStore(host, int(port), size, is_master=rank == 0, timeout=patience, wait_for_workers=False)
        self._group = dist.ProcessGroupGloo(dist.PrefixStore("weights", store), rank, size, patience)

    def broadcast(self, tensor: Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([tensor.view(torch.uint8)], options).wait()


def make_identity() -> bytes:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}".encode().ljust(IDENTITY_BYTES, b"\0")
