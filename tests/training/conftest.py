"""One CPU thread for torch, since sums depend on their number; a tiny model and its examples."""

import contextlib
import os

import pytest

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}  # tests fork
with contextlib.suppress(ImportError):  # without torch, the tests that need it are skipped
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A model folder and a file of eight examples."""
    from training.examples import write
    from training.tiny import examples, make_model

    home = tmp_path_factory.mktemp("tiny")
    data = examples(8)
    write(home / "train.jsonl", data)
    make_model(data, home / "model", words=384, width=16)
    return home / "model", home / "train.jsonl"
