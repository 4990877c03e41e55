"""TRL's GRPO step, a line of JSON for each line on stdin. Run by `benchmarks.learner` in TRL's own environment.

It imports nothing of ours. Its one argument is a `Task` of `benchmarks.learner` in JSON.
"""

import json
import os
import random
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

OUT = sys.stdout
STEPS = 1000  # never reached: the benchmark closes stdin


def memory_mb(field):
    """VmRSS (now) or VmHWM (the most since the last reset)."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith(field))


def reset_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def reward(completions, **_):
    """Any number that differs within a group: the same work for both."""
    return [len(set(text.split())) % 7 / 7 for text in completions]


class Clock(TrainerCallback):
    """Waits for the benchmark before a step and answers after it."""

    def __init__(self):
        self.started = self.prepared = self.generated = self.base_mb = 0.0

    def on_step_begin(self, args, state, control, **_):
        if not self.base_mb:
            self.base_mb = memory_mb("VmRSS")
            reset_peak()
        print("ready", file=OUT, flush=True)
        if not sys.stdin.readline():
            os._exit(0)
        self.generated = 0.0
        self.started = time.perf_counter()

    def on_step_end(self, args, state, control, **_):
        ended = time.perf_counter()
        answer = {
            "step_s": ended - self.started,
            "generate_s": self.generated,
            "learn_s": ended - self.prepared,
            "peak_mb": memory_mb("VmHWM") - self.base_mb,
        }
        print(json.dumps(answer), file=OUT, flush=True)


def main():
    task = json.loads(sys.argv[1])
    torch.set_num_threads(task["threads"])
    tokenizer = AutoTokenizer.from_pretrained(task["folder"], padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(task["folder"], dtype=torch.float32)
    rollouts = len(task["lengths"])
    micro_batch = task["micro_batch"] or rollouts
    settings = GRPOConfig(
        output_dir=os.path.join(task["folder"], "trl"),
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=rollouts // micro_batch,
        num_generations=task["group_size"],
        max_completion_length=max(task["lengths"]),
        generation_kwargs={"min_new_tokens": max(task["lengths"])},
        max_steps=STEPS,
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        beta=0.0,
        temperature=1.0,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=STEPS,
        disable_tqdm=True,
        log_level="error",
        seed=0,
    )
    prompts = Dataset.from_dict({"prompt": [task["prompts"][i % len(task["prompts"])] for i in range(256)]})
    trainer = GRPOTrainer(model, reward, args=settings, train_dataset=prompts, processing_class=tokenizer)
    clock = Clock()
    trainer.add_callback(clock)
    generate, prepare = trainer._generate_single_turn, trainer._prepare_inputs

    def timed_generate(prompt_ids, *others, **named):
        started = time.perf_counter()
        if task["given"]:
            draw = random.Random(0)
            made = [[draw.randrange(task["words"]) for _ in range(n)] for n in task["lengths"]], None
        else:
            made = generate(prompt_ids, *others, **named)
        clock.generated += time.perf_counter() - started
        return made

    def timed_prepare(inputs):
        made = prepare(inputs)
        if clock.prepared < clock.started:  # later micro-batches are only cut out of what the first one made
            clock.prepared = time.perf_counter()
        return made

    trainer._generate_single_turn, trainer._prepare_inputs = timed_generate, timed_prepare
    trainer.train()


main()
