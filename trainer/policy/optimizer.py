"""AdamW and learning rates. The rate is a pure function of the step, so there is no scheduler to save."""

import math
from collections.abc import Iterable

from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW

MAX_GRAD_NORM = 1.0
_BETAS = (0.9, 0.95)
_FINAL_SHARE = 0.1


def make_optimizer(model: nn.Module) -> AdamW:
    """No weight decay: the paper names none and SFT here is short."""
    return AdamW(model.parameters(), lr=0.0, betas=_BETAS, weight_decay=0.0, foreach=True)


def warmup_rate(peak: float, step: int, warmup_steps: int) -> float:
    """Linear warm-up, then constant (rStar2-Agent 5.1 for RL). `step` counts from 1."""
    return peak * min(1.0, step / warmup_steps) if warmup_steps else peak


def cosine_rate(peak: float, step: int, steps: int, warmup_share: float) -> float:
    """Linear warm-up, then a cosine down to a tenth (rStar2-Agent 5.1 for SFT). `step` counts from 1."""
    warmup = math.ceil(steps * warmup_share)
    if step <= warmup:
        return peak * step / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (_FINAL_SHARE + (1 - _FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * progress)))


def apply_update(optimizer: AdamW, parameters: Iterable[nn.Parameter], rate: float) -> float:
    """Clip the gathered gradients, step, clear; the global gradient norm before clipping, over all ranks.

    RuntimeError for a gradient that is not finite: better no run than a spoiled model.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    own = list(parameters)
    norm = get_total_norm([p.grad for p in own if p.grad is not None])
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    if not norm.isfinite():
        raise RuntimeError(f"the gradient's norm is {float(norm)}: the update was not made")
    clip_grads_with_norm_(own, MAX_GRAD_NORM, norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norm)
