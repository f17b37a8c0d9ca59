"""`--rollouts vllm`: groups of completions from a vLLM server (docs/training.md has its command).

Requests and replies are token ids, so nothing is tokenized twice. New weights reach the server as a
LoRA adapter with a new name (`/v1/load_lora_adapter`), so no reply can come from older ones. With
--full the server reads a folder again (`reload_weights`). The server must see the same disk.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests

from orchestra.training import ranks
from orchestra.training.policy import Ids, Policy
from orchestra.training.rollouts import Group, group_of
from orchestra.vocabulary import ConfigError, EndpointError

TIMEOUT_S = 1800.0  # of one group
PARALLEL = 64  # requests in flight


def served(url: str) -> str:
    """The model that a vLLM server serves. Raises ConfigError for any other server."""
    try:
        reply = requests.get(f"{url}/v1/models", timeout=30).json()
        model = reply["data"][0]
        int(model["max_model_len"])  # only vLLM has it
        return str(model["id"])
    except (requests.RequestException, ValueError, LookupError, TypeError) as error:
        kind = type(error).__name__
        why = f"no vLLM server ({kind}); see docs/training.md for its command"
        raise ConfigError(f"--vllm-url {url}: {why}") from None


class VllmRollouts:
    """A server that gets the weights of the policy through `folder`."""

    def __init__(self, url: str, policy: Policy, folder: Path, max_tokens: int) -> None:
        self.url = url
        self.policy = policy
        self.folder = folder.resolve()
        self.max_tokens = max_tokens
        self.served = served(url)
        self.model = self.served  # or the name of its newest adapter
        unique = ranks.gathered(uuid.uuid4().hex[:6])[0]  # that of rank 0
        self.prefix = f"{self.folder.parent.name}-{unique}"

    # ---- sampling --------------------------------------------------------------------------------

    def sample(
        self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, temperature: float
    ) -> list[Group]:
        """n completions of each prompt. Raises EndpointError."""

        def sample_one(prompt: Ids, seed: int) -> Group:
            return self._group(prompt, seed, n, temperature)

        with ThreadPoolExecutor(PARALLEL) as pool:
            return list(pool.map(sample_one, prompts, seeds))

    def _group(self, prompt: Ids, seed: int, n: int, temperature: float) -> Group:
        text = self.post(
            "/v1/completions",
            model=self.model,
            prompt=prompt,
            n=n,
            seed=seed,
            top_p=1.0,
            top_k=-1,
            max_tokens=self.max_tokens,
            temperature=temperature,
            logprobs=0,
            return_token_ids=True,
            stop_token_ids=self.policy.eos,
            repetition_penalty=1.0,
        )
        try:
            ids, logps = completions_of(text, n)
        except (ValueError, KeyError, TypeError):
            needs = f"no {n} completions with token ids and log-probabilities"
            why = f"{needs} ({text[:100]!r}); use a newer vLLM"
            raise EndpointError(f"{self.url}/v1/completions: {why}") from None
        return group_of(self.policy, prompt, ids, logps)

    # ---- new weights -----------------------------------------------------------------------------

    def update(self, step: int) -> None:
        """Each version of the weights has a new name and path, so that nothing can mix them up."""
        folder = self.folder / f"{self.prefix}-v{step}"
        before = self.model
        self.policy.save(folder)
        self.model = folder.name if self.policy.lora else self.served
        if ranks.rank() == 0:
            if self.policy.lora:
                self._load_adapter(folder)
                self._unload_adapter(before)
            else:
                self._reload_weights(folder)
            for older in set(self.folder.iterdir()) - {folder}:
                shutil.rmtree(older)
        ranks.wait_for_all()  # no rank samples before the weights are loaded

    def close(self) -> None:
        """Unload the adapter. With --full the server keeps the trained weights."""
        if ranks.rank() == 0:
            self._unload_adapter(self.model)
            shutil.rmtree(self.folder)

    def _load_adapter(self, folder: Path) -> None:
        adapter = {"lora_name": folder.name, "lora_path": str(folder)}
        self.post("/v1/load_lora_adapter", **adapter)

    def _unload_adapter(self, name: str) -> None:
        if name != self.served:
            self.post("/v1/unload_lora_adapter", lora_name=name)

    def _reload_weights(self, folder: Path) -> None:
        weights = {"weights_path": str(folder)}
        self.post("/pause")
        self.post("/collective_rpc", method="reload_weights", kwargs=weights)
        self.post("/reset_prefix_cache")
        self.post("/resume")

    def post(self, path: str, **body: Any) -> str:
        """The server's reply to one request. Raises EndpointError, with what it replied."""
        try:
            reply = requests.post(self.url + path, json=body, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise EndpointError(f"{self.url}{path}: {error}") from None
        if not reply.ok:
            why = f"{reply.status_code} {reply.text[:300]!r}"
            raise EndpointError(f"{self.url}{path}: {why}")
        return reply.text


def completions_of(text: str, n: int) -> tuple[list[Ids], list[list[float]]]:
    """Token ids and log-probabilities of the n completions in a reply of `/v1/completions`. Raises
    ValueError, KeyError or TypeError for any other reply.
    """
    choices = sorted(json.loads(text)["choices"], key=lambda choice: choice["index"])
    ids = [choice["token_ids"] for choice in choices]
    logps = [choice["logprobs"]["token_logprobs"] for choice in choices]
    if len(choices) != n:
        raise ValueError
    for tokens, of_tokens in zip(ids, logps, strict=True):
        if not tokens or len(tokens) != len(of_tokens):
            raise ValueError
    return ids, logps
