"""The Python tool: a parsed call becomes a sandbox execution, and that the text the model reads."""

from contracts.recipe import ToolSettings
from sandbox.client import SandboxClient
from trainer.rollout.agent import ToolResponse
from trainer.rollout.tool_calls import ParsedCall


class PythonTool:
    def __init__(self, client: SandboxClient, settings: ToolSettings) -> None:
        raise NotImplementedError

    async def respond(self, call: ParsedCall, call_id: str, seed: int) -> ToolResponse:
        raise NotImplementedError
