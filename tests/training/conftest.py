"""One CPU thread for torch, since sums depend on their number; a tiny model and its examples."""

import os
from importlib.util import find_spec
from itertools import islice

import pytest

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}  # tests fork
MISSING = [name for name in ("torch", "transformers", "peft") if not find_spec(name)]
NEED_THEM = (
    "test_lab_arms.py",
    "test_parity.py",
    "test_rewards.py",
    "test_script.py",
    "test_train.py",
    "test_vllm.py",
)
if not MISSING:
    import torch

    torch.set_num_threads(1)

START, END = "<|im_start|>", "<|im_end|>"
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Skipped(pytest.Module):
    """A file of tests that is not imported."""

    def collect(self):
        pytest.skip(f"needs {', '.join(MISSING)} (make .venv/train)")


def pytest_pycollect_makemodule(module_path, parent):
    if MISSING and module_path.name in NEED_THEM:
        return Skipped.from_parent(parent, path=module_path)
    return None  # pytest goes on as usual


def short_examples(n):
    """First decisions of one kind, without the system prompt: as short as they come."""
    from benchmarks.minigaia.examples import examples

    drawn = examples("train", 0)
    chosen = (e for e in drawn if e.id.endswith("r1") and len(e.reference["params"]["tasks"]) == 1)
    return [e.model_copy(update={"messages": e.messages[-1:]}) for e in islice(chosen, n)]


def make_model(data, out, words=384, width=16):
    """A random Llama of two layers, and a byte-level tokenizer learned from the examples."""
    import json

    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    texts = [m["content"] for e in data for m in e.messages]
    texts += [json.dumps(e.reference) for e in data]
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(texts, words, special_tokens=[END, START], show_progress=False)
    about = {"eos_token": END, "pad_token": END, "chat_template": CHAT}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=learned._tokenizer, **about)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=4 * width, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=True,
        attention_dropout=0.5,  # training turns it off: a completion has one probability
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(out)
    tokenizer.save_pretrained(out)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A model folder and a file of eight examples."""
    from orchestra.training.examples import write

    home, data = tmp_path_factory.mktemp("tiny"), short_examples(8)
    write(home / "train.jsonl", data)
    make_model(data, home / "model")
    return home / "model", home / "train.jsonl"
