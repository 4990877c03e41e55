"""One engine in its own process for `benchmarks.engine`: a line of JSON in, a line out, until stdin ends.

In: [requests, prompt tokens, sampled tokens, seed]. Out: wall_s, prompts, ids, logprobs.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import torch

from trainer.rollout.engine import SamplingSpec

Answer = tuple[list[list[int]], list[list[float]]]
Generate = Callable[[list[list[int]], int, int], Coroutine[Any, Any, Answer]]


def start_torch(folder: Path) -> Generate:
    from trainer.policy.model import load_model
    from trainer.rollout.torch_engine import TorchEngine

    engine = TorchEngine(load_model(folder), max_batch=64)

    async def generate(prompts: list[list[int]], tokens: int, seed: int) -> Answer:
        specs = [SamplingSpec(tokens, 1.0, seed * 1000 + i, ()) for i in range(len(prompts))]
        found = await asyncio.gather(*(engine.generate(p, s) for p, s in zip(prompts, specs, strict=True)))
        return [g.ids for g in found], [g.logprobs for g in found]

    return generate


def start_transformers(folder: Path) -> Generate:
    from trainer.policy.model import load_model

    model = load_model(folder)

    async def generate(prompts: list[list[int]], tokens: int, seed: int) -> Answer:
        torch.manual_seed(seed)
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                eos_token_id=None,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
            sampled = out.sequences[:, ids.shape[1] :]
            logprobs = torch.stack(out.logits, dim=1).log_softmax(dim=-1).gather(2, sampled[..., None])[..., 0]
        return sampled.tolist(), logprobs.tolist()

    return generate


def start_vllm(folder: Path) -> Generate:
    from safetensors.torch import load_file, save_file

    from trainer.rollout.remote import EngineSettings
    from trainer.rollout.vllm_engine import VllmEngine

    tensors = load_file(folder / "model.safetensors")
    weights = folder / "update.safetensors.tmp"  # not by a name that vLLM would take for a part of the model
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, weights)
    engine: list[VllmEngine] = []
    count = 0

    async def generate(prompts: list[list[int]], tokens: int, seed: int) -> Answer:
        nonlocal count
        if not engine:  # it belongs to the loop that it is made in
            engine.append(VllmEngine(EngineSettings(str(folder), max_context=1024, max_running=64)))
            await engine[0].init_transfer({})
            await engine[0].pause()
            await engine[0].update({"path": str(weights)}, 1, [])  # it says of each token which version sampled it
            await engine[0].resume()
        turns = []
        for i, prompt in enumerate(prompts):
            count += 1
            turns.append(engine[0].generate(str(count), prompt, SamplingSpec(tokens, 1.0, seed * 1000 + i, ())))
        found = await asyncio.gather(*turns)
        return [g.ids for g in found], [g.logprobs for g in found]

    return generate


def start_vllm_in_process(folder: Path) -> Generate:
    """vLLM as its own users call it offline: no server, no second process, log-probabilities of sampled tokens only."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(folder),
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=64,
        skip_tokenizer_init=True,
        enforce_eager=True,
        logprobs_mode="processed_logprobs",
    )

    async def generate(prompts: list[list[int]], tokens: int, seed: int) -> Answer:
        asked = [
            SamplingParams(
                temperature=1.0,
                max_tokens=tokens,
                ignore_eos=True,
                seed=seed * 1000 + i,
                logprobs=0,
                detokenize=False,
            )
            for i in range(len(prompts))
        ]
        found = [
            request.outputs[0]
            for request in llm.generate([{"prompt_token_ids": ids} for ids in prompts], asked, use_tqdm=False)
        ]
        logprobs = [[at[i].logprob for i, at in zip(o.token_ids, o.logprobs, strict=True)] for o in found]
        return [list(o.token_ids) for o in found], logprobs

    return generate


STARTS: dict[str, Callable[[Path], Generate]] = {
    "torch": start_torch,
    "transformers": start_transformers,
    "vllm-in-process": start_vllm_in_process,
    "vllm": start_vllm,
}


def main() -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print; the pipe is for answers alone
    generate = STARTS[sys.argv[1]](Path(sys.argv[2]))
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            requests, length, tokens, seed = json.loads(line)
            drawn = torch.randint(5, 300, (requests, length), generator=torch.Generator().manual_seed(seed))
            prompts: list[list[int]] = drawn.tolist()
            started = time.perf_counter()
            ids, logprobs = runner.run(generate(prompts, tokens, seed))
            wall_s = time.perf_counter() - started
            answers.write(
                json.dumps({"wall_s": [[wall_s]], "prompts": prompts, "ids": ids, "logprobs": logprobs}) + "\n"
            )
            answers.flush()


if __name__ == "__main__":
    main()
