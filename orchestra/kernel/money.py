"""The budget (Eq. 21): the run has a purse, and so has each sub-task and each decision.

    >>> run = Purse(limit_usd=1.0)
    >>> part = Purse(limit_usd=0.5)
    >>> part.charge(0.4, tokens=1000)
    >>> run.join(part)
    >>> run.left_usd, run.calls, run.tokens
    (0.6, 1, 1000)

A cost of None is unknown, and so is a sum with it.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from typing import Any

from orchestra.kernel.vocabulary import Backend, BudgetExceeded, Messages

ROUNDING = 1 + 1e-9  # shares, as floats, may add up to a little more than the whole
LEAST_OUTPUT_TOKENS = 64  # a call is not started if the purse cannot pay for these
DEFAULT_OUTPUT_TOKENS = 4096  # sent only under a budget
MAX_TOKENS = 1 << 30  # no plausible count is larger
MAX_USD = 1e6  # nor a cost
DECISION_TOKENS = 6000, 500  # of one decision of the main agent: read, written


def add_usd(*amounts: float | None) -> float | None:
    """A sum of costs, the same in any order; None if one is unknown."""
    known = [amount for amount in amounts if amount is not None]
    return math.fsum(known) if len(known) == len(amounts) else None


class Purse:
    """The money that a run (B_t), a sub-task or a decision may spend, and what it has spent.

    A purse belongs to one thread. Shares are fixed before threads start, and joined afterwards in
    a fixed order, so no request depends on the timing of threads.
    """

    def __init__(self, limit_usd: float | None = None) -> None:
        self.limit_usd = limit_usd
        self.spent_usd: float | None = 0.0
        self.costs: list[float | None] = []  # of each attempt, in USD
        self.paid: list[float | None] = []  # of those that did not come from a tape
        self.tokens = 0

    @property
    def calls(self) -> int:
        return len(self.costs)

    @property
    def left_usd(self) -> float | None:
        """B_t. None: no limit. An unknown cost counts as 0."""
        if self.limit_usd is None:
            return None
        return self.limit_usd - (self.spent_usd or 0.0)

    def join(self, part: Purse) -> None:
        """Add what another purse spent. Eq. 21: B_{t+1} = B_t - sum of c."""
        self.costs += part.costs
        self.paid += part.paid
        self.tokens += part.tokens
        self.spent_usd = add_usd(self.spent_usd, part.spent_usd)  # Eq. 21

    def charge(
        self, cost_usd: float | None, played: bool = False, tokens: int = 0
    ) -> None:
        """Spend the cost of one attempt. `played`: it comes from a tape, so nobody is paid."""
        self.costs.append(cost_usd)
        self.tokens += tokens
        self.spent_usd = add_usd(self.spent_usd, cost_usd)
        if not played:
            self.paid.append(cost_usd)

    def affords(self, cost_usd: float | None) -> bool:
        """Whether the purse can pay a cost. An unknown cost counts as 0."""
        left_usd = self.left_usd
        return left_usd is None or (cost_usd or 0.0) <= left_usd

    def output_tokens(self, backend: Backend, input_tokens: int) -> int | None:
        """The longest answer that the purse can pay and the backend allows; None: no limit. Raises
        BudgetExceeded.
        """
        left_usd = self.left_usd
        price = backend.price_usd_per_mtok
        if left_usd is None or price is None:
            return backend.max_output_tokens
        most = backend.max_output_tokens or DEFAULT_OUTPUT_TOKENS
        least = min(most, LEAST_OUTPUT_TOKENS)
        needed_usd = backend.cost_usd(input_tokens, least) or 0.0
        if needed_usd > left_usd:
            raise BudgetExceeded(
                f"budget exhausted: USD {max(left_usd, 0):.6f} are left, and a call to "
                f"{backend.name!r} needs USD {needed_usd:.6f}"
            )
        if price.output == 0:
            return most
        rest_usd = left_usd - (backend.cost_usd(input_tokens, 0) or 0.0)
        return int(min(rest_usd / price.output * 1e6, most))


def reserve_usd(main: Backend, left_usd: float) -> float:
    """The part of B_t that no batch may spend: it pays the main agent's next decisions."""
    read, written = DECISION_TOKENS
    two_decisions = main.cost_usd(2 * read, 2 * written) or 0.0
    return min(left_usd / 2, two_decisions)


# ---- one call ------------------------------------------------------------------------------------


def input_token_bound(
    backend: Backend, messages: Messages, fields: Mapping[str, Any]
) -> int:
    """An upper bound: a token per byte of text, `image_tokens` per image, 100 per s of sound."""
    total = len(json.dumps(fields)) + len(json.dumps(dict(backend.options)))
    for message in messages:
        content = message["content"]
        for part in content if isinstance(content, list) else [content]:
            match part:
                case {"type": "image_url"}:
                    total += backend.image_tokens
                case {"type": "input_audio"}:
                    total += 1000 + len(part["input_audio"]["data"]) // 300
                case {"text": text} | text:
                    total += 16 + len(str(text).encode("utf-8", "surrogatepass"))
    return total


def usage_of(
    completion: Mapping[str, Any], backend: Backend, assumed_usd: float | None
) -> tuple[float | None, int]:
    """The cost and the tokens of a completion. The endpoint's own figure in USD counts before the
    prices of the pool; `assumed_usd` if it reports neither.
    """
    usage = completion.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    read = _count(usage.get("prompt_tokens"))
    written = _count(usage.get("completion_tokens"))
    cached = (
        _count(details.get("cached_tokens") if isinstance(details, dict) else None) or 0
    )
    if (
        read is not None and written is not None
    ):  # some count reasoning in the total alone
        written = max(written, (_count(usage.get("total_tokens")) or 0) - read)
    tokens = (read or 0) + (written or 0)
    cost: Any = usage.get("cost")
    if type(cost) in (int, float) and 0 <= cost < MAX_USD:
        return float(cost), tokens
    if read is None or written is None:
        return assumed_usd, tokens
    return backend.cost_usd(read, written, min(cached, read)), tokens


def _count(value: Any) -> int | None:
    """A plausible number of tokens; None for anything else."""
    return value if type(value) is int and 0 <= value < MAX_TOKENS else None


# ---- over all threads ----------------------------------------------------------------------------


class Ledger:
    """What all threads of a run have spent, and hold back for their calls in flight.

    While no call costs more than it may, shares alone keep a run within its budget. The ledger is
    for an endpoint that ignores `max_tokens`: no call starts that could exceed what is then left.
    """

    def __init__(
        self, limit_usd: float | None = None, spent_usd: float | None = 0.0
    ) -> None:
        self.limit_usd = limit_usd
        self.lock = threading.Lock()
        self.committed_usd = spent_usd or 0.0  # spent or held back
        self.worst_usd: dict[
            str, float
        ] = {}  # by backend: of calls that cost more than they may

    def hold(self, usd: float) -> bool:
        """Hold back an amount. False if that could exceed the limit."""
        with self.lock:
            committed_usd = self.committed_usd + usd
            if self.limit_usd is not None and committed_usd > self.limit_usd * ROUNDING:
                return False
            self.committed_usd = committed_usd
            return True

    def correct(self, usd: float) -> None:
        """Add what was spent beyond the amount that is held back for it."""
        with self.lock:
            self.committed_usd += usd


class Bill:
    """What one exchange may cost and costs: held back in the ledger while it is in flight, charged
    to a purse afterwards.

        >>> ledger, backend = Ledger(limit_usd=1.0), Backend("b", "b", "http://127.0.0.1/v1")
        >>> first, second, third = (Bill(ledger, Purse(), backend, most_usd=0.4) for _ in range(3))
        >>> first.covers(attempts=1), second.covers(attempts=1), third.covers(attempts=1)
        (True, True, False)
        >>> first.settle()
        >>> third.covers(attempts=1)
        True
    """

    def __init__(
        self, ledger: Ledger, purse: Purse, backend: Backend, most_usd: float | None
    ) -> None:
        """`most_usd`: the most that one attempt costs; None: unknown. `assumed_usd`: the cost of an
        attempt for which the endpoint reports none, the most under a budget and else unknown.
        """
        self.ledger = ledger
        self.purse = purse
        self.backend = backend
        self.most_usd = most_usd
        is_assumed = purse.limit_usd is not None or most_usd == 0
        self.assumed_usd = most_usd if is_assumed else None
        self.played = False  # the outcome comes from a tape: nobody is paid
        self.is_exceeded = False  # an answer cost more than it may
        self._held_usd = 0.0
        self._spent_usd = 0.0

    def covers(self, attempts: int) -> bool:
        """Hold back what so many attempts may cost. False if that could exceed the budget."""
        if attempts > 1 and not self.purse.affords(attempts * (self.most_usd or 0.0)):
            return False
        worst_usd = self.ledger.worst_usd.get(self.backend.name, 0.0)
        most_usd = attempts * max(self.most_usd or 0.0, worst_usd)
        if not self.ledger.hold(most_usd - self._held_usd):
            return False
        self._held_usd = most_usd
        return True

    def charge(
        self, unanswered: int, completion: Mapping[str, Any] | None = None
    ) -> float | None:
        """Book the attempts that may be billed, and the completion. Returns its cost."""
        for _ in range(unanswered):
            self.book(self.assumed_usd)
        if completion is None:
            return 0.0
        cost_usd, tokens = usage_of(completion, self.backend, self.assumed_usd)
        self.book(cost_usd, tokens)
        return cost_usd

    def book(self, cost_usd: float | None, tokens: int = 0) -> None:
        """Book one attempt, in the purse and here. After one that cost more than it may, later
        calls of the backend hold back as much.
        """
        self.purse.charge(cost_usd, self.played, tokens)
        usd = cost_usd or 0.0
        self._spent_usd += usd
        if (
            self.ledger.limit_usd is not None
            and usd > (self.most_usd or 0.0) * ROUNDING
        ):
            self.is_exceeded = True
            with self.ledger.lock:
                worst_usd = self.ledger.worst_usd
                worst_usd[self.backend.name] = max(
                    worst_usd.get(self.backend.name, 0.0), usd
                )

    def settle(self) -> None:
        """The exchange has ended: what it cost replaces what was held back."""
        self.ledger.correct(self._spent_usd - self._held_usd)
        self._held_usd = self._spent_usd
