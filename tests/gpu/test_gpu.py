import asyncio

import pytest
import torch

from tests.gpu.checks import (
    TINY_VOCABULARY,
    check_learner,
    check_run,
    check_transfer,
    find_missing,
    has_two_gpus,
    with_model,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here"),
]


def test_a_bf16_step_of_the_learner():
    assert [figure for figure in with_model(check_learner) if not figure.is_right] == []


@pytest.mark.skipif(bool(find_missing()), reason=" ".join(find_missing()) or "-")
@pytest.mark.skipif(not has_two_gpus(), reason="a run needs a GPU for the learner and one for an engine")
def test_a_run_on_two_gpus():
    assert [figure for figure in with_model(check_run, TINY_VOCABULARY) if not figure.is_right] == []


@pytest.mark.skipif(bool(find_missing()), reason=" ".join(find_missing()) or "-")
def test_a_vllm_engine_that_takes_weights_over_nccl():
    figures = with_model(lambda folder: asyncio.run(check_transfer(folder)))
    assert [figure for figure in figures if not figure.is_right] == []
