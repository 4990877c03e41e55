"""A node with one of its ideas taken out: python -m benchmarks.sandbox.ablated NAME serve ... Only for the benchmark.

The node has no switches for most of these, and should have none: the idea is taken out here, before it starts.
"""

import os
import sys
from collections.abc import Callable

import sandbox.slots
from sandbox.__main__ import main
from sandbox.gvisor import GvisorLauncher
from sandbox.pool import Pool
from sandbox.tiers import Tier


def without_spare() -> None:
    """Every child is forked when its call is there."""
    Pool.wants_spare = lambda self, tier: False  # type: ignore[method-assign]


def without_tiers() -> None:
    """Every box has imported numpy and sympy."""
    os.environ["SANDBOX_TIERS"] = Tier.SYMPY.value


def without_images() -> None:
    """Boxes are replaced by cold ones."""
    GvisorLauncher.wants_image = lambda self, tier: False  # type: ignore[method-assign]


def with_a_box_per_call() -> None:
    """Every call gets a box of its own, restored from the image."""
    sandbox.slots.RECYCLE_CALLS = 1


ABLATIONS: dict[str, Callable[[], None]] = {
    "no-spare": without_spare,
    "no-tiers": without_tiers,
    "no-images": without_images,
    "box-per-call": with_a_box_per_call,
}

if __name__ == "__main__":
    ABLATIONS[sys.argv.pop(1)]()
    sys.exit(main())
