"""The words all rooms share: pydantic and the standard library only. Never imports Django, torch or another room."""
