from hypothesis import given
from hypothesis import strategies as st

from trainer.seeds import derive_seed

PART = st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=20))


def test_known_value_never_changes():
    # A change of this number silently breaks the resumption of every stored run.
    assert derive_seed(1, "rl", 3, "prompt", 0, 2) == 2314023892987992573


@given(st.integers(0, 2**31), st.lists(PART, max_size=6))
def test_fits_63_bits(run_seed, parts):
    assert 0 <= derive_seed(run_seed, *parts) < 2**63


@given(st.lists(PART, max_size=4), st.lists(PART, max_size=4))
def test_different_parts_different_seeds(a, b):
    assert (derive_seed(1, *a) == derive_seed(1, *b)) == (a == b)


def test_type_and_grouping_of_parts_count():
    seeds = {derive_seed(1, "12"), derive_seed(1, 12), derive_seed(1, 1, 2), derive_seed(1, "1", "2"), derive_seed(1)}
    assert len(seeds) == 5


def test_samples_of_a_group_differ():
    assert len({derive_seed(1, "rl", 1, "p", sample) for sample in range(32)}) == 32
