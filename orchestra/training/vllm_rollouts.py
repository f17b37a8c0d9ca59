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
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import requests
import torch

from orchestra.kernel.vocabulary import ConfigError, EndpointError
from orchestra.training.logprobs import log_ratio
from orchestra.training.policy import Ids, Policy
from orchestra.training.rollouts import Group, group_of
from orchestra.training.samples import micro_batch

TIMEOUT_S = 1800.0  # of one group
PARALLEL = 64  # requests in flight
MAX_MISMATCH = 1.0  # nats a token; the same weights are less than 0.1 apart
SAME = 1e-3  # nats a token; closer log-probabilities may be of the same weights
FEW = 16  # tokens; fewer tell nothing about the weights
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


@dataclass
class VllmRollouts:
    """A server that gets the weights of the policy through `folder`. Raises EndpointError."""

    url: str
    policy: Policy
    folder: Path
    max_tokens: int

    def __post_init__(self) -> None:
        self.processes = self.policy.processes
        self.folder = self.folder.resolve()
        self.served = served(self.url)
        self.model = self.served  # or the name of its newest adapter
        unique = self.processes.gathered(uuid.uuid4().hex[:6])[0]  # the first one's
        self.prefix = f"{self.folder.parent.name}-{unique}"
        # The newest weights that the server is known to have: as it was started, without an adapter
        self.applied = copied(self.policy)
        if self.policy.lora:
            self.applied = [torch.zeros_like(weights) for weights in self.applied]
        self.can_sleep = self._can_sleep()
        self.wake_up()  # a run that was killed may have left the server asleep or paused

    # ---- sampling --------------------------------------------------------------------------------

    def sample(
        self, prompts: Sequence[Ids], seeds: Sequence[int], n: int, temperature: float
    ) -> list[Group]:
        """n completions of each prompt. Afterwards the server sleeps. Raises EndpointError, also if
        the server has other weights than it was sent.
        """
        self.wake_up()
        with ThreadPoolExecutor(PARALLEL) as pool:
            how = repeat(n), repeat(temperature)
            groups = list(pool.map(self._group, prompts, seeds, *how))
        self.sleep()
        # At temperature 0 the server's log-probabilities are those of temperature 1
        if temperature > 0:
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
        for the longest completions. Raises EndpointError if the latter are clearly closer, or the
        former are far away: the server did not apply the newest. Weights that hardly differ tell
        nothing.
        """
        longest = sorted(range(len(group.ids)), key=lambda j: -len(group.ids[j]))
        most = 4 if self.policy.packs else 1
        part = micro_batch(group, longest[:most], advantages=torch.zeros(1))
        tokens = self.processes.total(sum(map(len, part.completions)))
        apart = []  # nats a token, from the newest weights and from `applied`
        for weights in (self.policy.weights(), self.applied):
            given = part.prompt, part.completions, temperature
            ours = self.policy.logprobs_under(weights, *given).cpu()  # (N, T)
            total = float(log_ratio(ours, part.sampler_logprobs).abs().sum())
            apart.append(self.processes.total(total) / tokens)
        newest, before = apart
        is_other = newest > MAX_MISMATCH or (newest > SAME and before < newest / 2)
        if tokens >= FEW and is_other:
            found = (
                f"{newest:.2g} nats a token from them, {before:.2g} from earlier ones"
            )
            check = f"check that it serves the same model and can read {self.folder}"
            why = f"the server did not apply the newest weights ({found}); {check}"
            raise EndpointError(f"{self.url}: {why}")
        if newest < before / 2:
            self.applied = copied(self.policy)

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
                adapter = {"lora_name": folder.name, "lora_path": str(folder)}
                self.post("/v1/load_lora_adapter", **adapter)
                self._unload(before)
            else:
                weights = {"weights_path": str(folder)}
                self.post("/pause")
                self.post("/collective_rpc", method="reload_weights", kwargs=weights)
                self.post("/reset_prefix_cache")
                self.post("/resume")
            for older in set(self.folder.iterdir()) - {folder}:
                shutil.rmtree(older)
        self.processes.wait()  # none samples before the weights are loaded

    def close(self) -> None:
        """Unload the adapter. With --full the server keeps the trained weights."""
        self.wake_up()
        if self.processes.rank == 0:
            self._unload(self.model)
            shutil.rmtree(self.folder)

    def _unload(self, name: str) -> None:
        if name != self.served:
            self.post("/v1/unload_lora_adapter", lora_name=name)

    # ---- memory ----------------------------------------------------------------------------------

    def sleep(self) -> None:
        """Free the server's GPU memory, when every process has its completions."""
        self.processes.wait()
        if self.can_sleep and self.processes.rank == 0:
            self.post("/sleep?level=1")  # the weights wait in the server's main memory
        self.processes.wait()

    def wake_up(self) -> None:
        """Give the server its GPU memory back, which this program must not hold on to."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.processes.wait()
        if self.processes.rank == 0 and self._is_asleep():
            self.post("/wake_up")
        self.processes.wait()

    def _is_asleep(self) -> bool:
        """Whether requests wait for `/wake_up`. After `/pause` they do so too."""
        return bool(self._asked("/is_sleeping").get("is_sleeping"))

    def _can_sleep(self) -> bool:
        """Whether sleeping frees memory. If not, a line says so once."""
        info = self._asked("/server_info?config_format=json")
        try:
            can_sleep = bool(info["vllm_config"]["model_config"]["enable_sleep_mode"])
        except (LookupError, TypeError):
            can_sleep = False
        if not can_sleep and self.processes.rank == 0:
            print(STAYS_AWAKE, file=sys.stderr)
        return can_sleep

    def _asked(self, path: str) -> dict[str, Any]:
        """The JSON object of a GET request; {} from a server that does not offer it."""
        try:
            found = json.loads(self._reply("get", path).text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def post(self, path: str, **body: Any) -> str:
        """The server's reply to one request. Raises EndpointError, with what it replied."""
        reply = self._reply("post", path, json=body)
        if not reply.ok:
            why = f"{reply.status_code} {reply.text[:300]!r}"
            raise EndpointError(f"{self.url}{path}: {why}")
        return reply.text

    def _reply(self, method: str, path: str, **body: Any) -> requests.Response:
        try:
            return requests.request(method, self.url + path, timeout=TIMEOUT_S, **body)
        except requests.RequestException as error:
            raise EndpointError(f"{self.url}{path}: {error}") from None


def copied(policy: Policy) -> list[torch.Tensor]:
    """The trained weights, in main memory."""
    return [weights.to("cpu", copy=True) for weights in policy.weights()]


def completions_of(text: str, n: int) -> tuple[list[Ids], list[list[float]]]:
    """Token ids and log-probabilities of the n completions in a reply of `/v1/completions`. Raises
    ValueError, KeyError or TypeError for any other reply.
    """
    choices = json.loads(text)["choices"]
    ids = [choice["token_ids"] for choice in choices]
    logprobs = [choice["logprobs"]["token_logprobs"] for choice in choices]
    lengths = list(map(len, ids))
    if len(ids) != n or 0 in lengths or lengths != list(map(len, logprobs)):
        raise ValueError
    return ids, logprobs
