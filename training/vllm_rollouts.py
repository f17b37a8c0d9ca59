"""`--rollouts vllm`: groups of completions from a vLLM server (README.md has its command).

Token ids go in and come out, so nothing is tokenized twice. New weights reach the server as a LoRA
adapter of a new name (`/v1/load_lora_adapter`), so that no answer can come from older ones; with
--full as a folder that it reads again (`reload_weights`). The server must see the same disk.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import requests
from pydantic import BaseModel, Field, FiniteFloat, TypeAdapter, ValidationError

from orchestra.vocabulary import ConfigError, EndpointError
from training import ranks
from training.policy import Ids, Policy
from training.rollouts import Group, group_of

TIMEOUT_S = 1800.0  # of one group
PARALLEL = 64  # requests in flight


class _Card(BaseModel):
    """The model that a server serves. `max_model_len`: tokens of prompt and completion."""

    id: str
    max_model_len: int


class _Logprobs(BaseModel):
    token_logprobs: list[FiniteFloat]


class _Choice(BaseModel):
    index: int
    token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    logprobs: _Logprobs


class _Completion(BaseModel):
    choices: list[_Choice]


def served(url: str) -> _Card:
    """What a vLLM server serves. Raises ConfigError for any other server."""
    try:
        found = requests.get(f"{url.rstrip('/').removesuffix('/v1')}/v1/models", timeout=30).json()
        return TypeAdapter(list[_Card]).validate_python(found["data"])[0]
    except (requests.RequestException, ValueError, KeyError, TypeError, IndexError) as error:
        raise ConfigError(
            f"--vllm-url {url}: no vLLM server there ({type(error).__name__}); start one as in "
            "training/README.md, or use --rollouts local"
        ) from None


class VllmRollouts:
    """A server that follows the policy. `folder` holds the weights on their way to it."""

    def __init__(self, url: str, policy: Policy, folder: Path, max_tokens: int) -> None:
        self.url, self.policy = url.rstrip("/").removesuffix("/v1"), policy
        self.folder, self.max_tokens = folder.resolve(), max_tokens
        self.served = served(url)
        unique = ranks.gathered(uuid.uuid4().hex[:6])[0]
        self.prefix = f"{self.folder.parent.name}-{unique}"
        self.model = self.served.id  # or the name of its newest adapter

    def sample(
        self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, temperature: float
    ) -> list[Group]:
        with ThreadPoolExecutor(PARALLEL) as pool:
            return list(pool.map(lambda p, s: self._group(p, s, n, temperature), prompts, seeds))

    def _group(self, prompt: Ids, seed: int, n: int, temperature: float) -> Group:
        text = self.post(
            "/v1/completions", model=self.model, prompt=prompt, n=n, seed=seed, top_p=1.0, top_k=-1,
            max_tokens=self.max_tokens, temperature=temperature, logprobs=0, return_token_ids=True,
            stop_token_ids=list(self.policy.eos), repetition_penalty=1.0,
        )  # fmt: skip
        try:
            choices = _Completion.model_validate_json(text).choices
            rows = {c.index: (c.token_ids, c.logprobs.token_logprobs) for c in choices}
            ids, logps = zip(*(rows[k] for k in range(n)), strict=True)
            fit = all(
                len(i) == len(p) <= self.max_tokens and max(i) < len(self.policy.tokenizer)
                for i, p in rows.values()
            )
            if not fit:
                raise ValueError
        except (ValidationError, ValueError, KeyError):
            beginning = " ".join(text[:100].split())
            raise EndpointError(
                f"{self.url}/v1/completions: no {n} completions with token ids and their "
                f"log-probabilities ({beginning!r}); use a newer vLLM"
            ) from None
        return group_of(self.policy, prompt, list(ids), list(logps))

    def post(self, path: str, **body: Any) -> str:
        """Raises EndpointError, with what the server replied."""
        try:
            reply = requests.post(self.url + path, json=body, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise EndpointError(f"{self.url}{path}: {error}") from None
        if not reply.ok:
            raise EndpointError(f"{self.url}{path}: {reply.status_code} {reply.text[:300]}")
        return reply.text

    def update(self, version: int) -> None:
        """The policy as it is now, under a name and a path that were never used before."""
        folder, old = self.folder / f"{self.prefix}-v{version}", self.model
        self.policy.save(folder)
        if self.policy.lora:
            self.model = folder.name
        if ranks.rank() == 0:
            if self.policy.lora:
                names = {"lora_name": folder.name, "lora_path": str(folder)}
                self.post("/v1/load_lora_adapter", **names)
                self._unload(old)
            else:
                weights = {"weights_path": str(folder)}
                self.post("/pause")
                self.post("/collective_rpc", method="reload_weights", kwargs=weights)
                self.post("/reset_prefix_cache")
                self.post("/resume")
            for other in self.folder.glob(f"{self.prefix}-v*"):
                if other != folder:
                    shutil.rmtree(other)
        ranks.gathered(0)  # nobody samples before it is loaded

    def _unload(self, adapter: str) -> None:
        """A server that keeps an old adapter loses memory, and no run its result."""
        if adapter != self.served.id:
            with contextlib.suppress(EndpointError):
                self.post("/v1/unload_lora_adapter", lora_name=adapter)

    def close(self) -> None:
        """Leave the server with its own model, unless that was trained itself."""
        if ranks.rank() == 0:
            self._unload(self.model)
            shutil.rmtree(self.folder)
