"""When to stop: the probability that the main agent gives to completing (Eq. 22).

A model that writes `"action": "complete"` token by token gives each token a probability. Their
product is p_stop. If it wrote another action, its endpoint may still list the tokens that it nearly
wrote; those that begin `complete` give p_stop.

    >>> probabilities = {'{"action": "': 1.0, "com": 0.5, "plete": 0.9, '", "params"': 1.0}
    >>> rows = [{"token": t, "logprob": math.log(p)} for t, p in probabilities.items()]
    >>> round(stop_probability(rows), 2)
    0.45
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

# `choices[0].logprobs.content`, one entry a token
Logprobs = Sequence[Mapping[str, Any]]

COMPLETE = "complete"
# Matches up to the name of the action, and captures the name.
ACTION = re.compile(r'"action"\s*:\s*"(?=(complete|delegate(?:_task)?)")')
ROUNDED = 1.01  # a probability of a little more than 1 is a rounding error


def stop_probability(logprobs: Logprobs | None) -> float | None:
    """p_stop(s_t) = p(a_t = complete | s_t), Eq. 22, from the decision's token log-probabilities.

    `logprobs` is `choices[0].logprobs.content` of a chat completion that ends with a decision. If
    the model chose `complete`: the product of the probabilities of its tokens. Otherwise: the sum
    of the probabilities of the alternatives that begin the word `complete`. None: the endpoint gave
    no usable log-probabilities, or the text has no action.
    """
    if logprobs is None:
        return None
    try:
        p = _probability_of_complete(logprobs)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None  # not in the format of OpenAI
    if p is None or math.isnan(p) or p >= ROUNDED:
        return None
    return min(p, 1.0)


def is_sure(p_stop: float, tau_stop: float) -> bool:
    """Whether the main agent is sure enough to answer."""
    return p_stop > tau_stop  # Eq. 22


def _probability_of_complete(logprobs: Logprobs) -> float | None:
    text = "".join(str(entry["token"]) for entry in logprobs)
    actions = list(ACTION.finditer(text))
    if not actions:
        return None
    decision = actions[-1]  # an earlier one is part of the thinking
    name = decision[1]
    start_of_name = decision.end()
    end_of_name = start_of_name + len(name)
    log_p = 0.0
    end = 0
    for entry in logprobs:
        start = end
        end += len(str(entry["token"]))
        if end <= start_of_name or start >= end_of_name:
            continue  # this token has no part of the name
        if name != COMPLETE:
            return _mass_of_complete(entry, prefix=text[start:start_of_name])
        log_p += float(entry["logprob"])
    return math.exp(log_p)


def _mass_of_complete(entry: Mapping[str, Any], prefix: str) -> float | None:
    """The probability that this token begins `complete` after the same `prefix`."""
    alternatives = entry.get("top_logprobs")
    if not alternatives:
        return None
    mass = 0.0
    for alternative in alternatives:
        token = str(alternative["token"])
        if token.startswith(prefix) and _begins_complete(token.removeprefix(prefix)):
            mass += math.exp(float(alternative["logprob"]))
    return mass


def _begins_complete(word: str) -> bool:
    """Whether a part of a reply, from the name of the action on, may become `complete"`."""
    is_part = word != "" and COMPLETE.startswith(word)
    return is_part or word.startswith(f'{COMPLETE}"')
