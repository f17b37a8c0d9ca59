"""A smoke test of training: a tiny random-initialised model learns one template of MiniGAIA.

    python -m training.tiny --out runs/tiny

Makes the data, a tokenizer and a model; imitates the expert until some decisions are right (SFT);
then DA-GRPO must raise the reward. Exit code 1 where it does not.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from training import minigaia
from training.examples import Example, write
from training.metrics import read as read_metrics
from training.policy import text_of

TEMPLATE = "price"
START, END = "<|im_start|>", "<|im_end|>"
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
RISE = 0.1  # of the reward, from the first steps of GRPO to the last
WINDOW = 5  # steps
SFT = "--steps 60 --batch 4 --lr 1e-2 --lr-floor 1"
GRPO = "--steps 80 --batch 4 --micro-batch 32 --lr 2e-3 --beta 0.001 --clip-high 0.28"
BOTH = "--full --dtype float32 --max-tokens 64 --save-every 1000"


def examples(n: int) -> list[Example]:
    """First decisions of one template, without the system prompt: short, and all of one kind."""
    drawn = minigaia.examples("train", 0, "brief")
    chosen = (e for e in drawn if e.meta["template"] == TEMPLATE and e.meta["kind"] == "read")
    return [replace(e, messages=e.messages[-1:]) for e in islice(chosen, n)]


def make_model(data: Sequence[Example], out: Path, words: int = 512, width: int = 64) -> None:
    """A Llama of two layers, and a byte-level tokenizer of at most `words` tokens learned from the
    data.
    """
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    texts = [m["content"] for e in data for m in e.messages] + [text_of(e) for e in data]
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(
        texts, vocab_size=words, special_tokens=[END, START], show_progress=False
    )
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=learned._tokenizer, eos_token=END, pad_token=END, chat_template=CHAT
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(out)
    tokenizer.save_pretrained(out)


def trained(stage: str, model: Path, data: Path, out: Path, flags: str) -> list[float]:
    """Run train_da_grpo.py. Returns the loss of each step, or its reward."""
    script = Path(__file__).resolve().parent.parent / "train_da_grpo.py"
    paths = ["--model", str(model), "--data", str(data), "--out", str(out)]
    subprocess.run(
        [sys.executable, script, "--stage", stage, *paths, *f"{flags} {BOTH}".split()], check=True
    )
    rows = read_metrics(out / "metrics.jsonl")
    return [row["loss" if stage == "sft" else "reward"] for row in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where the reward rose, else 1."""
    parser = argparse.ArgumentParser(prog="python -m training.tiny", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    out: Path = parser.parse_args(arguments).out
    shutil.rmtree(out, ignore_errors=True)
    data = examples(4)
    write(out / "train.jsonl", data)
    make_model(data, out / "model")
    trained("sft", out / "model", out / "train.jsonl", out / "sft", SFT)
    rewards = trained("grpo", out / "sft/model", out / "train.jsonl", out / "grpo", GRPO)
    first, last = (sum(part) / WINDOW for part in (rewards[:WINDOW], rewards[-WINDOW:]))
    rose = last - first > RISE
    verdict = "rose" if rose else f"did not rise by {RISE}"
    print(f"the reward {verdict}: {first:.3f} -> {last:.3f} ({out}/grpo/metrics.png)")
    return 0 if rose else 1


if __name__ == "__main__":
    sys.exit(main())
