"""The learner on many ranks: FSDP2 shards of the model, and what the ranks add up or agree on.

A model that is not sharded is alone: the same calls then do nothing, so there is one learner for both.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint
from transformers import Qwen3ForCausalLM

from trainer.policy.packed import lose_packed, score_packed

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where and how a sharded model computes. Master weights, gradient sums and optimizer are float32 always.

    `compute`: the type of weights and activations in both passes. `recompute`: layers keep only their input for the
    backward pass and run twice (activation checkpointing).
    """

    device: str
    compute: torch.dtype
    recompute: bool


CPU = Layout("cpu", torch.float32, recompute=False)
GPU = Layout("cuda", torch.bfloat16, recompute=True)  # ROCm calls itself cuda too


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that share the model."""

    rank: int
    size: int
    device: torch.device

    def add(self, values: Tensor) -> Tensor:
        """The sum over the ranks, the same on each."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.size > 1:
            dist.barrier()

    def largest(self, value: float) -> float:
        return float(self._reduce(torch.tensor([value], dtype=torch.float64), dist.ReduceOp.MAX))

    def _reduce(self, values: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if self.size == 1:
            return values
        there = values.to(self.device, copy=True)
        dist.all_reduce(there, operation)
        return there.to(values.device)


def ranks_of(model: torch.nn.Module) -> Ranks:
    """Those of the process group if the model is sharded over it, else this process alone."""
    device = next(model.parameters()).device
    if isinstance(model, FSDPModule):
        return Ranks(dist.get_rank(), dist.get_world_size(), device)
    return Ranks(0, 1, device)


def shard_model(model: Qwen3ForCausalLM, layout: Layout) -> Qwen3ForCausalLM:
    """Shard in place over all ranks of the initialised process group, one unit a layer; the same model comes back.

    Gradients are summed over the ranks, not averaged: a rank's loss is its share of the update's.
    """
    mesh = init_device_mesh(layout.device, (dist.get_world_size(),), mesh_dim_names=("ranks",))
    precision = MixedPrecisionPolicy()
    if layout.compute is not torch.float32:
        precision = MixedPrecisionPolicy(param_dtype=layout.compute, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        if layout.recompute:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    for function in (score_packed, lose_packed):
        setattr(model, function.__name__, MethodType(function, model))
        register_fsdp_forward_method(model, function.__name__)
    return model


def bind(function: Callable[..., Result], model: torch.nn.Module) -> Callable[..., Result]:
    """A function of a model and more, of the model: a sharded one's own, which gathers its weights, if it has it."""
    return getattr(model, function.__name__, partial(function, model))


def set_last_backward(model: torch.nn.Module, is_last: bool) -> None:
    """Gradients are summed over the ranks once an update, in its last backward pass."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last)


def gather_weights(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Each weight whole, one at a time, on every rank (a collective call); tied weights under both names."""
    for name, weight in model.state_dict().items():
        yield name, weight.full_tensor() if isinstance(weight, DTensor) else weight


def shard_like(whole: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part of a tensor of the parameter's shape, laid out as the parameter is."""
    if not isinstance(parameter, DTensor):
        return whole
    device = parameter.device_mesh.device_type
    return distribute_tensor(whole.to(device), parameter.device_mesh, parameter.placements, src_data_rank=None)
