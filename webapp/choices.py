"""`TextChoices` as the type checker should see it: Django ships no types, and without them a member is a plain str."""

from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:

    class TextChoices(StrEnum):
        values: ClassVar[list[str]]

else:
    from django.db.models import TextChoices

__all__ = ["TextChoices"]
