"""`python -m trainer.pretrain --out models/tiny-base`: corpus, tokenizer, training, figures and README in one go."""

import argparse
import json
import logging
import sys
import time
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from trainer.pretrain.card import write_card
from trainer.pretrain.evaluate import evaluate_base
from trainer.pretrain.tokenizer import build_tokenizer
from trainer.pretrain.train import PretrainSettings, build_model, train


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.pretrain", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument("--seed", type=int, default=PretrainSettings.seed)
    parser.add_argument("--steps", type=int, default=PretrainSettings.steps)
    parser.add_argument("--threads", type=int, default=1, help="torch threads; the result is exact only for one")
    parser.add_argument("--evaluate-only", action="store_true", help="print the figures of an existing model")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    torch.set_num_threads(options.threads)
    if options.evaluate_only:
        model = Qwen3ForCausalLM.from_pretrained(options.out, dtype=torch.float32, local_files_only=True)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(options.out, local_files_only=True)
        sys.stdout.write(json.dumps(evaluate_base(model, tokenizer).as_dict(), indent=2) + "\n")
        return 0
    settings = PretrainSettings(seed=options.seed, steps=options.steps)
    options.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    tokenizer = build_tokenizer(settings.seed)
    tokenizer.save_pretrained(options.out)
    model = build_model(tokenizer, settings.seed)
    record = train(model, tokenizer, settings, options.out)
    minutes = (time.monotonic() - started) / 60
    write_card(options.out, settings, record, evaluate_base(model, tokenizer), minutes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
