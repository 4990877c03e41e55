import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.rollout.packed_linear import PackedLinear, pad_rows

SHAPES = [(16, 32), (32, 61), (96, 64), (256, 768), (768, 256), (1536, 576)]


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def make_linear(inputs: int, outputs: int, seed: int, *, bias: bool = False) -> nn.Linear:
    part = nn.Linear(inputs, outputs, bias=bias)
    part.weight.copy_(draw(outputs, inputs, seed=seed) / inputs**0.5)
    if bias:
        part.bias.copy_(draw(outputs, seed=seed + 1))
    return part


@torch.inference_mode()
def test_hand_worked_products():
    double, add_both = nn.Linear(2, 1, bias=False), nn.Linear(2, 1)
    double.weight.copy_(torch.tensor([[2.0, 0.0]]))
    add_both.weight.copy_(torch.tensor([[1.0, 1.0]]))
    x, other = torch.tensor([[3.0, 4.0]]), torch.tensor([[10.0]])
    assert PackedLinear([double]).apply(x).tolist() == [[6.0]]
    assert PackedLinear([double], norm=torch.tensor([0.5, 7.0])).apply(x).tolist() == [[3.0]]
    assert PackedLinear([double]).apply_plus(x, other).tolist() == [[16.0]]
    assert PackedLinear([double]).apply_times(x, other).tolist() == [[60.0]]
    add_both.bias.fill_(0.5)
    assert PackedLinear([add_both]).apply(x).tolist() == [[7.5]]


@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_equals_torch(bias):
    parts = [make_linear(96, outputs, outputs, bias=bias) for outputs in (64, 32, 32)]
    norm, x, other = 1 + 0.1 * draw(96, seed=1), draw(300, 96, seed=2), draw(300, 128, seed=3)
    packed = PackedLinear(parts, norm)
    expected = torch.cat([part(x * norm) for part in parts], dim=-1)
    assert torch.allclose(packed.apply(x), expected, atol=1e-5)
    assert torch.allclose(packed.apply_silu(x), F.silu(expected), atol=1e-5)
    assert torch.allclose(packed.apply_times(x, other), expected * other, atol=1e-5)
    assert torch.allclose(packed.apply_plus(x, other), expected + other, atol=1e-5)


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@torch.inference_mode()
def test_a_row_is_the_same_bits_whatever_the_count_of_rows(inputs, outputs):
    packed = PackedLinear([make_linear(inputs, outputs, 0)])
    x, other = draw(560, inputs, seed=1), draw(560, outputs, seed=2)
    for apply in (packed.apply, packed.apply_silu):
        whole = apply(x)
        assert all(torch.equal(apply(x[at : at + n]), whole[at : at + n]) for n in counts() for at in (0, 7))
    for apply_both in (packed.apply_times, packed.apply_plus):
        whole = apply_both(x, other)
        assert all(torch.equal(apply_both(x[:n], other[:n]), whole[:n]) for n in counts())


def counts() -> list[int]:
    return sorted({pad_rows(count) for count in range(1, 257)} | {260, 304, 512})


def test_is_a_copy_of_the_weights():
    part = make_linear(8, 8, 0)
    packed, x = PackedLinear([part]), draw(4, 8, seed=1)
    before = packed.apply(x)
    with torch.no_grad():
        part.weight.mul_(2)
    assert torch.equal(packed.apply(x), before)


@pytest.mark.parametrize(
    ("count", "padded"), [(1, 4), (4, 4), (5, 8), (9, 16), (17, 32), (256, 256), (257, 260), (300, 304), (530, 544)]
)
def test_counts_of_rows(count, padded):
    assert pad_rows(count) == padded
