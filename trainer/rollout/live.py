"""The live strip of a watched rollout: new tokens with entropy and class, as they are sampled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from contracts.events import LiveToken
from contracts.trajectory import EntropyKind, TokenClass
from trainer.analysis.classes import classify_turn
from trainer.rollout.chat import Chat

CHUNK_TOKENS = 256  # below the limit of `contracts.events.LiveChunk`


@dataclass(frozen=True, slots=True)
class LiveTokens:
    """New tokens of a watched rollout; `position` is the response index of the first."""

    prompt_id: str
    sample: int
    position: int
    tokens: list[LiveToken]
    ended: bool = False
    entropy_kind: EntropyKind = EntropyKind.FULL


OnLive = Callable[[LiveTokens], None]


class LiveStrip:
    """Keeps the position in the response and the text of the turn, so that classes can be told."""

    def __init__(self, prompt_id: str, sample: int, chat: Chat, on_live: OnLive, kind: EntropyKind) -> None:
        self._prompt_id = prompt_id
        self._sample = sample
        self._chat = chat
        self._on_live = on_live
        self._kind = kind
        self._position = 0
        self._turn: list[str] = []

    def add_sampled(self, ids: Sequence[int], entropies: Sequence[float]) -> None:
        texts = self._chat.token_texts(ids)
        self._turn += texts
        classes = classify_turn(self._turn)[-len(texts) :] if texts else []
        self._send(
            [
                LiveToken(text=text, entropy=max(entropy, 0.0), token_class=token_class)
                for text, entropy, token_class in zip(texts, entropies, classes, strict=True)
            ]
        )

    def add_tool_response(self, ids: Sequence[int]) -> None:
        """Ends the turn: what comes next is classified afresh."""
        self._turn = []
        kind = TokenClass.TOOL_RESPONSE
        self._send([LiveToken(text=t, entropy=0.0, token_class=kind) for t in self._chat.token_texts(ids)])

    def end(self) -> None:
        self._on_live(LiveTokens(self._prompt_id, self._sample, self._position, [], ended=True))

    def _send(self, tokens: list[LiveToken]) -> None:
        for at in range(0, len(tokens), CHUNK_TOKENS):
            part = tokens[at : at + CHUNK_TOKENS]
            self._on_live(LiveTokens(self._prompt_id, self._sample, self._position, part, entropy_kind=self._kind))
            self._position += len(part)
