"""A GGUF file (llama.cpp's format, quantised or not) made a model folder: float32 safetensors, tokenizer, template.

transformers reads the file, by the packages `gguf` and `accelerate` (the extra `gguf`). Done once for a file:
`python -m trainer import-gguf FILE --out FOLDER`.
"""

import importlib.util
import struct
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from trainer.pretrain.chat import CHAT_TEMPLATE

MAGIC = b"GGUF"
PACKAGES = ("gguf", "accelerate")


class GgufError(Exception):
    """The file cannot be made a model folder; the message names it and says why."""


def import_gguf(file: Path, out: Path, template: Path | None = None) -> int:
    """Write the model folder `out`; how many parameters it has.

    template: a Jinja file; without one the folder gets this project's template, in which the tool is called and
    answered. Raises GgufError.
    """
    _check(file, out)
    chat_template = CHAT_TEMPLATE if template is None else _read(template)
    transformers_logging.disable_progress_bar()
    place: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    try:
        config = AutoConfig.from_pretrained(file.parent, **place)
        if config.model_type not in ("llama", "qwen3"):
            raise GgufError(
                f"{file} holds a {config.model_type} model; the embedded engine runs Qwen3 and Llama models"
            )
        quantised = AutoModelForCausalLM.from_pretrained(file.parent, **place, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **place)
    except (OSError, ValueError, LookupError, RuntimeError, struct.error) as error:
        raise GgufError(f"{file} cannot be read as a model: {error}") from error
    # A model that came from GGUF refuses to be saved; its weights in a plain one do not.
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    tokenizer.chat_template = chat_template
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return sum(parameter.numel() for parameter in model.parameters())


def _check(file: Path, out: Path) -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise GgufError(f"GGUF files need {' and '.join(missing)}: .venv/bin/python -m pip install {' '.join(missing)}")
    try:
        with file.open("rb") as opened:
            magic = opened.read(len(MAGIC))
    except OSError as error:
        raise GgufError(f"{file}: {error.strerror}") from error
    if magic != MAGIC:
        raise GgufError(f"{file} is no GGUF file: it does not begin with {MAGIC.decode()}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise GgufError(f"{out} is there already and not empty")


def _read(template: Path) -> str:
    try:
        return template.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise GgufError(f"{template} cannot be read as a chat template: {error}") from error
