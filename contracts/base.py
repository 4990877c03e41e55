"""The one base class of everything that crosses a process: frozen, unknown keys refused."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A value that crosses a process: it does not change and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
