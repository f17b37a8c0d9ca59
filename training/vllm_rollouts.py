"""Groups of completions from a vLLM server: `--rollouts vllm --vllm-url http://127.0.0.1:8000`.

Token ids go in and come out, so nothing is tokenized twice. New weights reach the server as a LoRA
adapter of a new name (`/v1/load_lora_adapter`), so that no answer can come from older ones; or, for
full weights, as a folder that it reads again (`reload_weights`). Both need a path that the server
sees too, and its environment: VLLM_ALLOW_RUNTIME_LORA_UPDATING=True for the first,
VLLM_SERVER_DEV_MODE=1 for the second.

Only `temperature` other than 1 needs `--logprobs-mode processed_logprobs` on the server.
"""

from __future__ import annotations

import json
import math
import operator
import shutil
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests
from openai import APIError, OpenAI

from orchestra.vocabulary import ConfigError, EndpointError
from training import ranks
from training.policy import Ids, Policy
from training.rollouts import Group

TIMEOUT_S = 1800.0  # of one group
SIDE_BY_SIDE = 64  # requests in flight


class Server:
    """The parts of a vLLM server that are not OpenAI's. Raises ConfigError for any other server."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        served = self._get("/v1/models").get("data")
        card = served[0] if isinstance(served, list) and served else {}
        if not isinstance(card, dict) or card.get("owned_by") != "vllm":
            raise ConfigError(
                f"--vllm-url {url}: is no vLLM server; start one (training/README.md)"
            )
        if not isinstance(card.get("id"), str) or not isinstance(card.get("max_model_len"), int):
            raise ConfigError(
                f"--vllm-url {url}: tells no model and max_model_len; use a newer vLLM"
            )
        self.model: str = card["id"]
        self.max_tokens: int = card["max_model_len"]  # of prompt and completion

    def _get(self, path: str) -> dict[str, Any]:
        try:
            found = requests.get(self.url + path, timeout=30).json()
        except requests.JSONDecodeError:
            raise ConfigError(
                f"--vllm-url {self.url}: answers no JSON at {path}: no vLLM"
            ) from None
        except requests.RequestException as error:
            why = type(error).__name__
            raise ConfigError(
                f"--vllm-url {self.url}: cannot be reached ({why}); start vLLM there, or use "
                "--rollouts local"
            ) from None
        return found if isinstance(found, dict) else {}

    def post(self, path: str, **body: Any) -> requests.Response:
        """Raises EndpointError, with what the server said."""
        try:
            reply = requests.post(self.url + path, json=body, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise EndpointError(f"{self.url}{path}: {error}") from None
        if not reply.ok:
            raise EndpointError(f"{self.url}{path}: {reply.status_code} {reply.text[:300]}")
        return reply

    def tokens(self, text: str) -> Ids:
        """Raises EndpointError."""
        reply = self.post("/tokenize", model=self.model, prompt=text, add_special_tokens=False)
        try:
            ids: Ids = reply.json()["tokens"]
        except (ValueError, KeyError, TypeError):
            said = " ".join(reply.text[:100].split())
            raise EndpointError(f"{self.url}/tokenize: gives no tokens but {said!r}") from None
        return ids

    def unload(self, adapter: str) -> None:
        """A server that keeps it costs it memory, and no run its result."""
        try:
            self.post("/v1/unload_lora_adapter", lora_name=adapter)
        except EndpointError as error:
            print(f"train_da_grpo.py: {error}; the server keeps {adapter}", file=sys.stderr)


class VllmRollouts:
    """A server that follows the policy. `folder` holds the weights on their way to it."""

    def __init__(self, server: Server, policy: Policy, folder: Path, max_tokens: int) -> None:
        self.server, self.policy = server, policy
        self.folder, self.max_tokens = folder.resolve(), max_tokens
        self.client = OpenAI(
            base_url=f"{server.url}/v1", api_key="none", timeout=TIMEOUT_S, max_retries=2
        )
        self.prefix = ranks.same(f"{self.folder.parent.name}-{uuid.uuid4().hex[:6]}")
        self.model = server.model
        self.newest: Path | None = None

    def sample(
        self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, temperature: float
    ) -> list[Group]:
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            return list(pool.map(lambda p, s: self._group(p, s, n, temperature), prompts, seeds))

    def _group(self, prompt: Ids, seed: int, n: int, temperature: float) -> Group:
        try:
            text = self.client.completions.with_raw_response.create(
                model=self.model,
                prompt=prompt,
                n=n,
                seed=seed,
                max_tokens=self.max_tokens,
                temperature=temperature,
                top_p=1.0,
                logprobs=0,
                extra_body={
                    "return_token_ids": True,
                    "stop_token_ids": list(self.policy.eos),
                    "top_k": -1,
                    "repetition_penalty": 1.0,
                },
            ).text
        except APIError as error:
            raise EndpointError(f"{self.server.url}: {error}") from None
        try:
            ids, logps = read_choices(text, n, self.max_tokens, len(self.policy.tokenizer))
        except ValueError as odd:
            said = " ".join(text[:100].split())
            raise EndpointError(
                f"{self.server.url}/v1/completions: {odd} ({said!r}); is it a vLLM of these days?"
            ) from None
        return Group(prompt, ids, logps, [self.policy.decode(c) for c in ids])

    def update(self, version: int) -> None:
        """The policy as it is now, under a name and a path that were never used before."""
        folder = self.folder / f"{self.prefix}-v{version}"
        self.policy.save(folder)
        ranks.gathered(0)  # written before it is read
        if self.policy.lora_rank:
            self._load_adapter(folder)
        else:
            self._reload(folder)
        ranks.gathered(0)
        if self.newest and ranks.rank() == 0:
            shutil.rmtree(self.newest)
        self.newest = folder

    def close(self) -> None:
        """Leave the server with its own model, unless that was trained itself."""
        if ranks.rank() == 0:
            if self.policy.lora_rank:
                self.server.unload(self.model)
            shutil.rmtree(self.folder)

    def _load_adapter(self, folder: Path) -> None:
        old, self.model = self.model, folder.name
        if ranks.rank():
            return
        self.server.post("/v1/load_lora_adapter", lora_name=folder.name, lora_path=str(folder))
        if old != self.server.model:
            self.server.unload(old)

    def _reload(self, folder: Path) -> None:
        if ranks.rank():
            return
        self.server.post("/pause")
        self.server.post(
            "/collective_rpc", method="reload_weights", kwargs={"weights_path": str(folder)}
        )
        self.server.post("/reset_prefix_cache")
        self.server.post("/resume")


def read_choices(
    text: str, n: int, max_tokens: int, words: int
) -> tuple[list[Ids], list[list[float]]]:
    """The ids and log-probabilities of n completions. Raises ValueError, which says what is odd."""
    try:
        choices = sorted(json.loads(text)["choices"], key=lambda c: c["index"])
        ids = [[operator.index(id) for id in c["token_ids"]] for c in choices]
        logps = [[float(p) for p in c["logprobs"]["token_logprobs"]] for c in choices]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError("gives no token ids with their log-probabilities") from None
    if len(ids) != n:
        raise ValueError(f"gives {len(ids)} completions of {n}")
    for c, p in zip(ids, logps, strict=True):
        if not 1 <= len(c) <= max_tokens or len(c) != len(p):
            raise ValueError(f"gives {len(c)} tokens, of {max_tokens} at most, {len(p)} known")
        if not all(0 <= id < words for id in c):
            raise ValueError(f"gives a token that none of the {words} of the model is")
        if not all(map(math.isfinite, p)):
            raise ValueError("gives a log-probability that is not finite")
    return ids, logps
