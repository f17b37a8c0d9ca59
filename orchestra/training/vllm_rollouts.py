"""`--rollouts vllm`: groups of completions from a vLLM server (docs/training.md has its command).

Requests and replies are token ids, so nothing is tokenized twice. New weights reach the server as a
LoRA adapter with a new name (`/v1/load_lora_adapter`), so no reply can come from older ones. With
--full the server reads a folder again (`reload_weights`). The server must see the same disk.

Between sampling and the next weights the server sleeps, if it can: its GPU memory is then free for
the training step. It can if it was started with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode,
which a CPU does not have.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests
import torch

from orchestra.kernel.vocabulary import ConfigError, EndpointError
from orchestra.training.logprobs import log_ratio
from orchestra.training.policy import Ids, Policy
from orchestra.training.rollouts import Group, group_of
from orchestra.training.samples import Sample, micro_batch

TIMEOUT_S = 1800.0  # of one group
PARALLEL = 64  # requests in flight
SAME = 1e-3  # nats a token; closer log-probabilities may be of the same weights
FEW = 16  # tokens; fewer tell nothing about the weights
POLL_S = 0.2  # between two looks at whether the server sleeps
STAYS_AWAKE = (
    "the vLLM server keeps its memory during training steps; to free it, start it with "
    "VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode (GPU only)"
)


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
        self.processes = policy.processes
        self.folder = folder.resolve()
        self.max_tokens = max_tokens
        self.served = served(url)
        self.model = self.served  # or the name of its newest adapter
        unique = self.processes.gathered(uuid.uuid4().hex[:6])[0]  # the first one's
        self.prefix = f"{self.folder.parent.name}-{unique}"
        self.can_sleep = self._can_sleep()
        # The newest weights that the server is known to have: as it was started, without an adapter
        self.applied = [weights.to("cpu", copy=True) for weights in policy.weights()]
        if policy.lora:
            self.applied = [torch.zeros_like(weights) for weights in self.applied]
        self.wake_up()  # a run that was killed may have left the server asleep or paused

    # ---- sampling --------------------------------------------------------------------------------

    def sample(
        self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, temperature: float
    ) -> list[Group]:
        """n completions of each prompt. Afterwards the server sleeps. Raises EndpointError."""
        self.wake_up()

        def sample_one(prompt: Ids, seed: int) -> Group:
            return self._group(prompt, seed, n, temperature)

        with ThreadPoolExecutor(PARALLEL) as pool:
            groups = list(pool.map(sample_one, prompts, seeds))
        self.sleep()
        if (
            temperature > 0
        ):  # else the server's log-probabilities are those of temperature 1
            self._check_weights(groups[0], temperature)
        return groups

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
            ids, logprobs = completions_of(text, n)
        except (ValueError, KeyError, TypeError):
            needs = f"no {n} completions with token ids and log-probabilities"
            why = f"{needs} ({text[:100]!r}); use a newer vLLM"
            raise EndpointError(f"{self.url}/v1/completions: {why}") from None
        return group_of(self.policy, prompt, ids, logprobs)

    def _check_weights(self, group: Group, temperature: float) -> None:
        """Compare the server's log-probabilities with those of the newest weights and of `applied`,
        for the longest completions. Raises EndpointError if the latter are clearly closer: the
        server did not apply the newest. Weights that hardly differ tell nothing.
        """
        sampled = zip(group.ids, group.logprobs, strict=True)
        samples = [Sample(group.prompt, *completion) for completion in sampled]
        samples.sort(key=lambda sample: len(sample.ids), reverse=True)
        part = micro_batch(samples[: 4 if self.policy.packs else 1])
        tokens = self.processes.total(sum(map(len, part.completions)))
        given = (part.prompt, part.completions, temperature)
        apart = []  # nats a token, from the newest weights and from `applied`
        for weights in (self.policy.weights(), self.applied):
            ours = self.policy.logprobs_under(weights, *given)  # (N, T)
            differences = log_ratio(ours.cpu(), part.sampler_logprobs).abs()
            apart.append(self.processes.total(float(differences.sum())) / tokens)
        newest, before = apart
        if tokens >= FEW and newest > SAME and before < newest / 2:
            found = (
                f"{newest:.2g} nats a token from theirs, {before:.2g} from earlier ones"
            )
            check = f"check that it can read {self.folder} and loads what it is sent"
            why = f"the server did not apply the newest weights ({found}); {check}"
            raise EndpointError(f"{self.url}: {why}")
        if newest < before / 2:
            self.applied = [w.to("cpu", copy=True) for w in self.policy.weights()]

    # ---- new weights -----------------------------------------------------------------------------

    def update(self, step: int) -> None:
        """Each version of the weights has a new name and path, so that nothing can mix them up."""
        folder = self.folder / f"{self.prefix}-v{step}"
        before = self.model
        self.policy.save(folder)
        self.wake_up()
        self.model = folder.name if self.policy.lora else self.served
        if self.processes.rank == 0:
            if self.policy.lora:
                self._load_adapter(folder)
                self._unload_adapter(before)
            else:
                self._reload_weights(folder)
            for older in set(self.folder.iterdir()) - {folder}:
                shutil.rmtree(older)
        self.processes.wait()  # none samples before the weights are loaded

    def close(self) -> None:
        """Unload the adapter. With --full the server keeps the trained weights."""
        self.wake_up()
        if self.processes.rank == 0:
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

    # ---- memory ----------------------------------------------------------------------------------

    def sleep(self) -> None:
        """Free the server's GPU memory, when every process has its completions."""
        self.processes.wait()
        if self.can_sleep and self.processes.rank == 0:
            self.post("/sleep?level=1")  # the weights wait in the server's main memory
            self._wait_until(asleep=True)
        self.processes.wait()

    def wake_up(self) -> None:
        """Give the server its GPU memory back, which this program must not hold on to."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.processes.wait()
        if self.processes.rank == 0 and self._is_asleep():
            self.post("/wake_up")
            self._wait_until(asleep=False)
        self.processes.wait()

    def _wait_until(self, asleep: bool) -> None:
        """The server may reply before it is done. Raises EndpointError if it does not get there."""
        end_s = time.monotonic() + TIMEOUT_S
        while self._is_asleep() != asleep:
            if time.monotonic() > end_s:
                state = "asleep" if asleep else "awake"
                raise EndpointError(f"{self.url}: the server does not become {state}")
            time.sleep(POLL_S)

    def _is_asleep(self) -> bool:
        """Whether requests wait for `/wake_up`. After `/pause` they do so too."""
        return bool(self._asked("/is_sleeping").get("is_sleeping"))

    def _can_sleep(self) -> bool:
        """Whether sleeping frees memory. If not, a line says so once."""
        info = self._asked("/server_info?config_format=json").get("vllm_config")
        model = info.get("model_config") if isinstance(info, dict) else None
        can_sleep = isinstance(model, dict) and bool(model.get("enable_sleep_mode"))
        if not can_sleep and self.processes.rank == 0:
            print(STAYS_AWAKE, file=sys.stderr)
        return can_sleep

    def _asked(self, path: str) -> dict[str, Any]:
        """The JSON object of a GET request; {} from a server that does not offer it."""
        try:
            reply = requests.get(self.url + path, timeout=TIMEOUT_S)
            found = reply.json() if reply.ok else {}
        except requests.JSONDecodeError:
            return {}
        except requests.RequestException as error:
            raise EndpointError(f"{self.url}{path}: {error}") from None
        return found if isinstance(found, dict) else {}

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
    logprobs = [choice["logprobs"]["token_logprobs"] for choice in choices]
    if len(choices) != n:
        raise ValueError
    for tokens, of_tokens in zip(ids, logprobs, strict=True):
        if not tokens or len(tokens) != len(of_tokens):
            raise ValueError
    return ids, logprobs
