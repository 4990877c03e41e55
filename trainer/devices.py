"""Which accelerators a process may use, said once: one visible-devices variable, the same for Ray, torch and vLLM.

On ROCm three variables hide devices and the libraries disagree about them: Ray sets HIP_VISIBLE_DEVICES and refuses
ROCR_VISIBLE_DEVICES, vLLM fails when the lists of HIP and CUDA differ (facts: vllm#12572, verl#1465, openrlhf#933).
torch calls both kinds of device "cuda", and RCCL "nccl".
"""

from collections.abc import Mapping, MutableMapping

HIP, CUDA, ROCR = "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
KEEP_RAY_OUT = tuple(f"RAY_EXPERIMENTAL_NOSET_{name}" for name in (HIP, CUDA, ROCR))  # else Ray writes lists of its own


class DevicesError(Exception):
    """The environment names devices in ways that contradict each other; the message says which and what to do."""


def visible_devices(environ: Mapping[str, str]) -> str | None:
    """The list that is meant, e.g. "0,1"; None when no variable hides anything.

    Raises DevicesError when two variables name different devices, or ROCR_VISIBLE_DEVICES is set: it renumbers the
    devices below HIP, so that a list of HIP's would be read twice.
    """
    if ROCR in environ:
        raise DevicesError(f"{ROCR}={environ[ROCR]} renumbers devices under Ray and vLLM: unset it and set {HIP}")
    given = {name: _normal(environ[name]) for name in (HIP, CUDA) if name in environ}
    if len(set(given.values())) > 1:
        said = " and ".join(f"{name}={environ[name]}" for name in given)
        raise DevicesError(f"{said} name different devices: keep one of them, or make them equal")
    return next(iter(given.values()), None)


def show_only(devices: str, environ: MutableMapping[str, str], *, is_rocm: bool) -> None:
    """Let this process see the devices "0,1": one variable set, the others removed, and Ray told to leave it so."""
    for name in (HIP, CUDA, ROCR):
        environ.pop(name, None)
    environ[HIP if is_rocm else CUDA] = _normal(devices)
    for name in KEEP_RAY_OUT:
        environ[name] = "1"


def _normal(devices: str) -> str:
    return ",".join(part.strip() for part in devices.split(",") if part.strip())
