"""A tiny random-initialised model with a tokenizer of its own, made in a second: for the smoke test
and for tests.

    python -m training.tiny --data train.jsonl --out runs/tiny/model
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestra.vocabulary import ConfigError
from training.examples import Example, read

START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}" + START + "{{ m['role'] }}\n{{ m['content'] }}" + END + "\n{% endfor %}"
    "{% if add_generation_prompt %}" + START + "assistant\n{% endif %}"
)  # fmt: skip


def make(
    examples: Sequence[Example], out: Path, words: int = 1024, width: int = 64, layers: int = 2
) -> None:
    """Write a Llama of `layers` layers of `width` and a byte-level tokenizer of `words` tokens,
    learned from the examples, to `out`.
    """
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    texts = [m["content"] for e in examples for m in e.messages]
    texts += [json.dumps(e.reference, ensure_ascii=False) for e in examples]
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(
        texts, vocab_size=words, special_tokens=[END, START], show_progress=False
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=learned._tokenizer, eos_token=END, pad_token=END, chat_template=TEMPLATE
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(out)
    tokenizer.save_pretrained(out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.tiny", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    a = parser.parse_args(arguments)
    try:
        make(read(a.data), a.out)
    except ConfigError as error:
        print(f"training.tiny: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
