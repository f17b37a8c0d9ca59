"""`--rollouts vllm`: groups of completions from a vLLM server (docs/training.md has its command).

Requests and replies are token ids, so nothing is tokenized twice. New weights reach the server as a
LoRA adapter with a new name (`/v1/load_lora_adapter`), so no reply can come from older ones; with
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
from orchestra.training.rollouts import Group, Rollouts, group_of
from orchestra.vocabulary import ConfigError, EndpointError

TIMEOUT_S = 1800.0  # of one group
PARALLEL = 64  # requests in flight


def served(url: str) -> str:
    """The model that a vLLM server serves. Raises ConfigError for any other server."""
    try:
        found = requests.get(f"{url}/v1/models", timeout=30).json()
        int(found["data"][0]["max_model_len"])  # only vLLM has it
        return str(found["data"][0]["id"])
    except (requests.RequestException, ValueError, LookupError, TypeError) as error:
        why = f"no vLLM server ({type(error).__name__}); see docs/training.md for its command"
        raise ConfigError(f"--vllm-url {url}: {why}") from None


class VllmRollouts(Rollouts):
    """A server that gets the weights of the policy through `folder`."""

    def __init__(self, url: str, policy: Policy, folder: Path, max_tokens: int) -> None:
        self.url, self.policy = url, policy
        self.folder, self.max_tokens = folder.resolve(), max_tokens
        self.served = served(url)
        unique = ranks.gathered(uuid.uuid4().hex[:6])[0]
        self.prefix = f"{self.folder.parent.name}-{unique}"
        self.model = self.served  # or the name of its newest adapter

    def sample(
        self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, temperature: float
    ) -> list[Group]:
        with ThreadPoolExecutor(PARALLEL) as pool:
            return list(
                pool.map(lambda p, s: self._group(p, s, n, temperature), prompts, seeds)
            )

    def _group(self, prompt: Ids, seed: int, n: int, temperature: float) -> Group:
        text = self.post(
            "/v1/completions", model=self.model, prompt=prompt, n=n, seed=seed, top_p=1.0, top_k=-1,
            max_tokens=self.max_tokens, temperature=temperature, logprobs=0, return_token_ids=True,
            stop_token_ids=self.policy.eos, repetition_penalty=1.0,
        )  # fmt: skip
        try:
            rows = sorted(json.loads(text)["choices"], key=lambda c: c["index"])
            ids = [row["token_ids"] for row in rows]
            logps = [row["logprobs"]["token_logprobs"] for row in rows]
            if len(rows) != n or [*map(len, ids)] != [*map(len, logps)] or not all(ids):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            why = f"no {n} completions with token ids and log-probabilities ({text[:100]!r})"
            raise EndpointError(
                f"{self.url}/v1/completions: {why}; use a newer vLLM"
            ) from None
        return group_of(self.policy, prompt, ids, logps)

    def post(self, path: str, **body: Any) -> str:
        """Raises EndpointError, with what the server replied."""
        try:
            reply = requests.post(self.url + path, json=body, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise EndpointError(f"{self.url}{path}: {error}") from None
        if not reply.ok:
            raise EndpointError(
                f"{self.url}{path}: {reply.status_code} {reply.text[:300]!r}"
            )
        return reply.text

    def update(self, step: int) -> None:
        """Each version of the weights has a new name and path, so that nothing can mix them up."""
        folder, old = self.folder / f"{self.prefix}-v{step}", self.model
        self.policy.save(folder)
        self.model = folder.name if self.policy.lora else self.served
        if ranks.rank() == 0:
            if self.policy.lora:
                self.post(
                    "/v1/load_lora_adapter",
                    lora_name=folder.name,
                    lora_path=str(folder),
                )
                self._unload(old)
            else:
                weights = {"weights_path": str(folder)}
                self.post("/pause")
                self.post("/collective_rpc", method="reload_weights", kwargs=weights)
                self.post("/reset_prefix_cache")
                self.post("/resume")
            for other in {*self.folder.iterdir()} - {folder}:
                shutil.rmtree(other)
        ranks.gathered(0)  # no rank samples before it is loaded

    def _unload(self, adapter: str) -> None:
        if adapter != self.served:
            self.post("/v1/unload_lora_adapter", lora_name=adapter)

    def close(self) -> None:
        """Unload the adapter. With --full the server keeps the trained weights."""
        if ranks.rank() == 0:
            self._unload(self.model)
            shutil.rmtree(self.folder)
