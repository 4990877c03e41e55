"""Between text and token ids, in one direction for each: the model's own tokens are decoded, never re-encoded.

A conversation is rendered by the tokenizer's chat template with placeholders, cut at the special tokens
the template wrote, and only then filled in. So the ids equal one-shot rendering by transformers for
ordinary text, while a problem or a tool response that spells `<|im_end|>` stays plain text.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from trainer.rollout.trajectory import Trajectory

# Private-use characters: no template strips, escapes or splits on them.
_USER, _ASSISTANT, _TOOL = "\ue0f0", "\ue0f1", "\ue0f2"


class ChatError(ValueError):
    """The tokenizer's chat template cannot carry an agent's conversation; said at start, not in mid-run."""


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a model folder; from the folder only, never from a hub."""
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ChatError(f"{path} has no fast tokenizer (tokenizer.json)")
    return tokenizer


def open_chat(path: Path) -> "Chat":
    """The chat of a model folder, which stops at every end that its tokenizer, template or generation config names."""
    try:
        ends = json.loads((path / "generation_config.json").read_text())["eos_token_id"]
    except (OSError, ValueError, LookupError, TypeError):
        ends = None
    return Chat(load_tokenizer(path), ends if isinstance(ends, list) else [ends])


class Chat:
    """Prompts, tool responses and stop ids in the ids of one tokenizer. `ends`: further ids that end a turn."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, ends: Sequence[int | None] = ()) -> None:
        self.tokenizer = tokenizer
        backend = tokenizer.backend_tokenizer
        self._special = {token.content: i for i, token in backend.get_added_tokens_decoder().items()}
        longest_first = sorted(self._special, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._plain = _without_added_tokens(backend)
        self._texts: dict[int, str] = {}
        self._check_plain()
        self._prompt = self._template([{"role": "user", "content": _USER}])
        self._turn_end, self._suffix = self._split_suffix()
        end_ids = self._fill(self._turn_end, "")
        if len(end_ids) != 1:
            raise ChatError("the chat template does not close an assistant turn with one special token")
        self.turn_end_id: int = end_ids[0]
        self._empty_response = len(self._fill(self._suffix, ""))
        stops = {self.turn_end_id, tokenizer.eos_token_id, *ends} - {None}
        self.stop_ids: tuple[int, ...] = tuple(sorted(stops))

    def prompt_ids(self, problem: str) -> list[int]:
        """Ids of the conversation up to where the model begins to write."""
        return self._fill(self._prompt, problem)

    def tool_response_ids(self, text: str, closed: bool) -> list[int]:
        """Ids between the end of an assistant turn and the start of the next one.

        closed: the turn already ends with the turn-end token, so it is not written again. All of them
        carry mask 0.
        """
        ids = self._fill(self._suffix, text)
        return ids if closed else [self.turn_end_id, *ids]

    def tool_response_size(self, text: str) -> int:
        """Ids that `text` adds to an empty tool response."""
        return len(self._fill(self._suffix, text)) - self._empty_response

    def spans(self, text: str) -> list[tuple[int, int]]:
        """First and last (exclusive) character of each id of untrusted text; ids of one character share them."""
        return list(self._plain.encode(text, add_special_tokens=False).offsets)

    def encode(self, text: str) -> list[int]:
        """Ids of trusted text: special tokens spelled in it become special tokens (demonstrations)."""
        return self._fill(text, "")

    def encode_plain(self, text: str) -> list[int]:
        """Ids of untrusted text: no special token whatever it spells."""
        return self._plain.encode(text, add_special_tokens=False).ids

    def text(self, ids: Sequence[int]) -> str:
        """Ids decoded together, special tokens shown."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Each id decoded alone; bytes that are no character alone become U+FFFD."""
        for token in set(ids) - self._texts.keys():
            self._texts[token] = self.text([token])
        return [self._texts[token] for token in ids]

    def turn_texts(self, trajectory: Trajectory) -> list[str]:
        """The text of each assistant turn, what the template wrote before it excluded."""
        return [self.text(trajectory.response_ids[turn.start : turn.end]) for turn in trajectory.turns]

    def _template(self, messages: list[dict[str, str]], prompt: bool = True) -> str:
        rendered = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        if not isinstance(rendered, str):
            raise ChatError("the chat template gave no text")
        return rendered

    def _split_suffix(self) -> tuple[str, str]:
        """(what closes an assistant turn, what follows it up to the next turn) of two dummy conversations."""
        turn = [{"role": "user", "content": _USER}, {"role": "assistant", "content": _ASSISTANT}]
        ended = self._template(turn, prompt=False).rpartition(_ASSISTANT)[2]
        with_tool = self._template([*turn, {"role": "tool", "content": _TOOL}])
        _, found, tail = with_tool.rpartition(_ASSISTANT)
        if not found or tail.count(_TOOL) != 1:
            raise ChatError("the chat template drops or repeats the text of a message")
        match = self._special_pattern.match(tail)
        if match is None or not ended.startswith(match.group()):
            raise ChatError("the chat template does not close an assistant turn with a special token")
        return match.group(), tail[match.end() :]

    def _fill(self, template: str, content: str) -> list[int]:
        """Ids of the template text with `content` for its placeholder; only the template's tags are special."""
        ids: list[int] = []
        at = 0
        for match in self._special_pattern.finditer(template):
            ids += self._plain_part(template[at : match.start()], content)
            ids.append(self._special[match.group()])
            at = match.end()
        return ids + self._plain_part(template[at:], content)

    def _plain_part(self, part: str, content: str) -> list[int]:
        for placeholder in (_USER, _TOOL):
            part = part.replace(placeholder, content)
        return self.encode_plain(part) if part else []

    def _check_plain(self) -> None:
        special = set(self._special.values())
        for text in self._special:
            if special & set(self.encode_plain(text)):
                raise ChatError(f"the tokenizer cannot write {text!r} as plain text")


def _without_added_tokens(backend: Tokenizer) -> Tokenizer:
    """The same tokenizer, blind to special tokens."""
    state = json.loads(backend.to_str())
    state.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
    return Tokenizer.from_str(json.dumps(state))
