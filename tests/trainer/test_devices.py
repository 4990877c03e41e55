"""One list of devices, whatever the variables say."""

import pytest

from trainer.devices import DevicesError, show_only, visible_devices


@pytest.mark.parametrize(
    ("environ", "devices"),
    [
        ({}, None),
        ({"HIP_VISIBLE_DEVICES": "0,1"}, "0,1"),
        ({"CUDA_VISIBLE_DEVICES": " 2 , 3"}, "2,3"),
        ({"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "0, 1"}, "0,1"),
        ({"CUDA_VISIBLE_DEVICES": ""}, ""),  # all hidden is not the same as nothing said
    ],
)
def test_the_list_that_is_meant(environ: dict[str, str], devices: str | None) -> None:
    assert visible_devices(environ) == devices


def test_lists_that_differ_are_named() -> None:
    with pytest.raises(DevicesError, match="HIP_VISIBLE_DEVICES=0 and CUDA_VISIBLE_DEVICES=1 name different devices"):
        visible_devices({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"})


def test_a_list_below_hip_is_refused() -> None:
    with pytest.raises(DevicesError, match="unset it and set HIP_VISIBLE_DEVICES"):
        visible_devices({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"})


@pytest.mark.parametrize(("is_rocm", "name"), [(True, "HIP_VISIBLE_DEVICES"), (False, "CUDA_VISIBLE_DEVICES")])
def test_one_variable_is_left_and_ray_leaves_it_alone(is_rocm: bool, name: str) -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "7", "HIP_VISIBLE_DEVICES": "5", "CUDA_VISIBLE_DEVICES": "6", "PATH": "/bin"}
    show_only("4, 5", environ, is_rocm=is_rocm)
    assert environ == {
        "PATH": "/bin",
        name: "4,5",
        "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1",
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
        "RAY_EXPERIMENTAL_NOSET_ROCR_VISIBLE_DEVICES": "1",
    }
    assert visible_devices(environ) == "4,5"
