"""The README of the base model, written by the program that made it: recipe, seed, corpus and measured figures."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from trainer.pretrain.evaluate import BaseFigures
from trainer.pretrain.train import PretrainSettings

FIGURES_FILE = "figures.json"

_CARD = """\
# tiny-base

A Qwen3-architecture model of {parameters:,} parameters ({layers} layers, width {width}, vocabulary {vocabulary}),
the base that the demo run starts from. Made from nothing but our own generator by

    make base-model        # python -m trainer.pretrain --out models/tiny-base

in {minutes:.0f} minutes on one core (float32, one torch thread).

## Corpus

An endless stream drawn from `trainer/data/synthetic.py` and `trainer/data/transcripts.py` with seed {seed}: whole
transcripts with every habit (right program, wrong program, mistake and repair, answer at once), problems with their
first call, copying exercises, bare programs with what they print. Problem texts and tool responses count a tenth in
the loss. One problem in eight, chosen by a hash of its text, is left out; the figures below are measured on those.

## Recipe

{settings}

Loss of the last {tail} steps: {loss:.3f}.

## Figures

Greedy decoding, {problems} problems of the same families whose texts were never seen in training. Right code is
compared with the generator's own programs character by character; no program of the model is run for these figures.

| figure | share |
|---|---|
{figures}

Right code by family: {families}.

## Format

ChatML; an assistant turn starts with `<reason>`, which the template writes. There is **no system prompt and no list
of tools** in the template: the context is small ({positions} positions) and the model knows one tool, so
both would only cost every rollout a few hundred tokens. Digits are single tokens, so numbers are copied digit
by digit; the fixed beginning and end of a call's JSON are one token each. Any UTF-8 text can be encoded.

It is no general language model: outside the families of the generator it writes confident nonsense.
"""


def write_card(
    folder: Path, settings: PretrainSettings, losses: Sequence[float], figures: BaseFigures, minutes: float
) -> None:
    """README.md for people, figures.json for tests; sizes come from the model's own config."""
    config = json.loads((folder / "config.json").read_text())
    tail = min(100, len(losses))
    shares = {name: value for name, value in figures.as_dict().items() if isinstance(value, float)}
    card = _CARD.format(
        parameters=figures.parameters,
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        vocabulary=config["vocab_size"],
        positions=config["max_position_embeddings"],
        minutes=minutes,
        seed=settings.seed,
        settings="\n".join(f"- {name.replace('_', ' ')}: {value}" for name, value in asdict(settings).items()),
        tail=tail,
        loss=sum(losses[-tail:]) / tail,
        problems=figures.problems,
        figures="\n".join(f"| {name.replace('_', ' ')} | {value:.3f} |" for name, value in shares.items()),
        families=", ".join(f"{family} {share:.2f}" for family, share in figures.by_family.items()),
    )
    (folder / "README.md").write_text(card)
    record = {"settings": asdict(settings), "figures": figures.as_dict()}
    (folder / FIGURES_FILE).write_text(json.dumps(record, indent=2) + "\n")
