"""Products with weights that oneDNN has laid out in advance, with what follows a product done in the same pass.

A product of few rows spends as long on arranging the weights as on multiplying, if they are not. The sum behind
a number has the same order whatever the count of rows, which `test_packed_linear` holds. Torch has these operations
for its compiler, which packs the weights of a frozen model with them.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

BLOCK = 256  # rows multiplied at once, at most
# oneDNN takes half a millisecond to prepare for a count it has not seen, and has one kernel of its own for one row.
_SIZES = (0, 4, 8, *range(16, BLOCK + 1, 16))
_ops = torch.ops.mkldnn


class PackedLinear:
    """x W^T + b for x [rows, in], float32 on the CPU. A copy: later changes of the weights are not seen.

    parts: layers of one input, whose outputs are laid side by side; norm [in]: the weight of the norm before them,
    which is multiplied into W.
    """

    def __init__(self, parts: Sequence[nn.Linear], norm: Tensor | None = None) -> None:
        weight = torch.cat([part.weight.detach() for part in parts])
        self._weight = _ops._reorder_linear_weight(weight if norm is None else weight * norm)
        biases = [part.bias.detach() for part in parts if part.bias is not None]
        self._bias = torch.cat(biases) if biases else None

    def apply(self, x: Tensor) -> Tensor:
        """[rows, out]."""
        return _by_blocks(lambda part: _ops._linear_pointwise(part, self._weight, self._bias, "none", [], ""), x)

    def apply_silu(self, x: Tensor) -> Tensor:
        """SiLU of `apply`."""
        return _by_blocks(lambda part: _ops._linear_pointwise(part, self._weight, self._bias, "swish", [], ""), x)

    def apply_times(self, x: Tensor, other: Tensor) -> Tensor:
        """`apply` times `other` [rows, out]."""
        return self._apply_binary("mul", x, other)

    def apply_plus(self, x: Tensor, other: Tensor) -> Tensor:
        """`apply` plus `other` [rows, out]."""
        return self._apply_binary("add", x, other)

    def _apply_binary(self, operation: str, x: Tensor, other: Tensor) -> Tensor:
        def apply(part: Tensor, other_part: Tensor) -> Tensor:
            return _ops._linear_pointwise.binary(part, other_part, self._weight, self._bias, operation)

        return _by_blocks(apply, x, other)


def pad_rows(count: int) -> int:
    """The next count of rows, of those that are multiplied. Above `BLOCK` they are multiplied in blocks."""
    blocks, rest = divmod(count, BLOCK)
    return blocks * BLOCK + next(size for size in _SIZES if size >= rest)


def _by_blocks(apply: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    if len(inputs[0]) <= BLOCK:
        return apply(*inputs)
    return torch.cat([apply(*parts) for parts in zip(*(tensor.split(BLOCK) for tensor in inputs), strict=True)])
