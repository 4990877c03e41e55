"""The tiny model's chat format, as text in pieces and as the template stored with its tokenizer.

There is no system prompt and no list of tools: the context is small and the model knows exactly one tool. An
assistant message is rendered with the `<reason>` that every turn starts inside of, so that token by token rendering
and rendering a whole conversation give the same text.
"""

from collections.abc import Sequence

from trainer.data.transcripts import Message

END_OF_TEXT = "<|endoftext|>"
TURN_END = "<|im_end|>"
ASSISTANT_START = "<|im_start|>assistant\n<reason>"
SPECIAL_TOKENS = (
    END_OF_TEXT,
    "<|im_start|>",
    TURN_END,
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<reason>",
    "</reason>",
    "<answer>",
    "</answer>",
)
CHAT_TEMPLATE = r"""
{%- for message in messages -%}
    {%- if message.role == 'user' -%}
        {{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' -}}
    {%- elif message.role == 'assistant' -%}
        {{- '<|im_start|>assistant\n<reason>' + message.content + '<|im_end|>\n' -}}
    {%- elif message.role == 'tool' -%}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' -}}
    {%- else -%}
        {{- raise_exception('this model knows the roles user, assistant and tool, not ' + message.role) -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\n<reason>' -}}
{%- endif -%}
""".strip()


def render_pieces(messages: Sequence[Message]) -> list[tuple[str, bool]]:
    """The conversation as (text, written by the model) pieces; joined, they are what the template renders."""
    pieces: list[tuple[str, bool]] = []
    for message in messages:
        match message.role:
            case "user":
                pieces.append((f"<|im_start|>user\n{message.content}{TURN_END}\n", False))
            case "tool":
                body = f"<tool_response>\n{message.content}\n</tool_response>"
                pieces.append((f"<|im_start|>user\n{body}{TURN_END}\n", False))
            case "assistant":
                pieces += [(ASSISTANT_START, False), (f"{message.content}{TURN_END}", True), ("\n", False)]
            case role:
                raise ValueError(f"unknown role {role}")
    return pieces
