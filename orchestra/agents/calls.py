"""One call of a sub-agent to its model, and a second one if the reply was cut off.

Half a reply is not a reply. If the first one hits its length limit, and the sub-agent has said what
it then wants (`if_cut`), the model sees the end of its reply and is asked once to state that alone,
in a few tokens. The second call has a place of its own, r1/t2/s1/again, and the money for it is
held back while the first one is made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestra.money import Purse, add_usd
from orchestra.runtime.chat import STOPPED, Chat
from orchestra.runtime.completion import input_token_bound
from orchestra.runtime.prompts import closed, say
from orchestra.seams import Messages
from orchestra.vocabulary import Backend, Place, Reply, Step

AGAIN = "again"  # the part of the second call's place
AGAIN_TOKENS = 256  # the length limit of the second reply
SHOWN_BYTES = 4000  # of the end of the first one: a full context has room for them
Prompt = str | Messages  # one message, or several with roles
FIELD_TOKENS = 64  # of what a request has besides messages and options


@dataclass(frozen=True)
class Call:
    """A call with a place, a chat client and a purse of its own, so it may run in parallel."""

    what: str  # the name of its step
    prompt: Prompt
    place: Place
    backend: Backend
    chat: Chat
    purse: Purse
    temperature: float | None
    if_cut: str = (
        ""  # the message that asks again; "": a cut reply is returned as it is
    )

    def outcome(self) -> Reply | Exception:
        """The reply, or the failure that ends a sub-task."""
        try:
            return self._whole_reply()
        except STOPPED as failure:
            return failure

    def _whole_reply(self) -> Reply:
        """The reply; if it was cut off, the second one, with the first as `unfinished`."""
        messages = self._messages()
        purse = self._held_back(messages) if self.if_cut else self.purse
        try:
            first = self._reply(self.place, self.backend, messages, purse)
        finally:
            if purse is not self.purse:
                self.purse.join(purse)
        if not first.cut or not self.if_cut:
            return first
        part = "/".join(filter(None, (self.place.part, AGAIN)))
        second = self._reply(
            self.place._replace(part=part),
            _with_limit(self.backend),
            self._messages_again(first.text),
            self.purse,
        )
        cost_usd = add_usd(first.cost_usd, second.cost_usd)
        return replace(second, cost_usd=cost_usd, unfinished=first.text)

    def _reply(
        self, place: Place, backend: Backend, messages: Messages, purse: Purse
    ) -> Reply:
        with self.chat.tape.call(place):
            return self.chat(backend, messages, purse, temperature=self.temperature)

    def _messages(self) -> Messages:
        if isinstance(self.prompt, str):
            return [{"role": "user", "content": self.prompt}]
        return self.prompt

    def _messages_again(self, text: str) -> Messages:
        """The messages of the second call, after a first reply that was cut off."""
        shown = text.encode("utf-8", "replace")[-SHOWN_BYTES:].decode("utf-8", "ignore")
        messages = self._messages()
        if not shown.strip():  # it was still thinking
            *before, last = messages
            content = f"{last['content']}\n\n{self.if_cut}"
            return [*before, {**last, "content": content}]
        return [
            *messages,
            {"role": "assistant", "content": shown},
            {"role": "user", "content": self.if_cut},
        ]

    def _held_back(self, messages: Messages) -> Purse:
        """The purse of the first call, without the most that the second one can cost."""
        first_tokens = input_token_bound(self.backend, messages, {}) + FIELD_TOKENS
        longest = self._messages_again("x" * SHOWN_BYTES)
        tokens = input_token_bound(self.backend, longest, {}) + FIELD_TOKENS
        return self.purse.holding_back(
            self.backend.cost_usd(tokens, AGAIN_TOKENS),
            least_usd=self.backend.cost_usd(first_tokens, AGAIN_TOKENS),
        )

    def step(self, outcome: Reply | Exception) -> Step:
        """The call as a step of its sub-agent."""
        failed = isinstance(outcome, Exception)
        text = str(outcome) if isinstance(outcome, Exception) else _shown(outcome)
        return Step(self.what, params={}, memory="", observation=text, failed=failed)


def _with_limit(backend: Backend) -> Backend:
    limits = [AGAIN_TOKENS, backend.max_output_tokens or AGAIN_TOKENS]
    return replace(backend, max_output_tokens=min(limits))


def _shown(reply: Reply) -> str:
    """A reply, after the one that was cut off, if there is one."""
    if reply.unfinished is None:
        return reply.text
    text = closed(reply.unfinished)
    return say("notes", "asked_again", text=text, again=reply.text)
