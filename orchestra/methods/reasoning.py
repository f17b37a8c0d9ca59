"""The agents of MAS-Orchestra (arXiv 2601.14652, App. H): CoT, self-consistency, debate, Reflexion
and search, each over a Talk.

Differences from the paper / the released code
1. Samples, and the roles of one round, run in parallel; the released code calls one by one.
2. Votes are normalised (case, spaces, a final full stop); a tie goes to the first. An empty answer
   does not count.
3. A failed sample or role is left out; the agent fails only if all of a round fail. Reflexion then
   returns its last attempt, a debate the majority of the newest replies, as partial.
4. A reply is plain text that ends in "Answer: ..."; answers.py says where else an answer can be.
5. A reply that was cut off at its length limit is not used as if it were whole: the agent is asked
   once more, for its answer alone (talk.py). If that is cut off, too, the reply has no answer.
6. The search agent opens pages: the one that the model names, else the first that a search found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from orchestra.kernel.prompts import after_thinking, closed, outside, say
from orchestra.kernel.tool import SEARCH, VISIT
from orchestra.kernel.vocabulary import Reply
from orchestra.methods.answers import answer_of
from orchestra.methods.talk import Said, Talk, agent

SAMPLES = 5
DEBATE_ROUNDS = 5
REFLECTIONS = 5
SEARCHES = 5
TAGGED_QUERY = re.compile(r"(?s)<query>(.*?)</query>")
QUERY = re.compile(
    r"(?im)^[^\w\n]*(?:\d+[^\w\n]+)?query[^\w\n]*(?:\d+[^\w\n]*)?[:=]\s*(.+)$"
)
# A link may end in a pair of brackets, as .._(planet) does.
LINK = re.compile(r"https?://(?:[^\s<>\"'`()\[\]*]|\([\w,.-]*\))+(?<![.,;:])")
PROMPTS = "reasoning/messages"


@agent
def cot(talk: Talk) -> str:
    """Chain of thought: one call."""
    reply = ask(talk, "think", prompt("think", talk))
    return keep(talk, reply)


@agent
def self_consistency(talk: Talk) -> str:
    """The majority of SAMPLES answers to the same prompt."""
    think = prompt("think", talk)
    names = [f"sample {n}" for n in range(1, SAMPLES + 1)]
    replies = ask_all(talk, [(name, think) for name in names])
    return keep(talk, majority(replies))


@agent
def debate(talk: Talk) -> str:
    """DEBATE_ROUNDS rounds, in which each role reads the newest reply of all; then one decision."""
    newest: dict[str, Reply] = {}  # the newest reply of each role
    for number in range(1, DEBATE_ROUNDS + 1):
        newest |= _debate_round(talk, number, newest)
        keep(talk, majority(newest.values()))
    decide = prompt("decide", talk, statements=_statements(newest))
    decision = ask(talk, "decide", decide)
    return keep(talk, decision)


def _debate_round(
    talk: Talk, number: int, newest: Mapping[str, Reply]
) -> dict[str, Reply]:
    """The replies of one round by role, without those of failed calls."""
    roles = talk.job.u.roles
    statements = _statements(newest)
    prompts = []
    for role in roles:
        text = prompt("debate", talk, role=role, statements=statements)
        prompts.append((f"{role}, round {number}", text))
    rounds_left = DEBATE_ROUNDS - number
    later = rounds_left * len(roles) + 1  # the decision
    replies = ask_all(talk, prompts, later)
    by_role = zip(roles, replies, strict=True)
    return {role: reply for role, reply in by_role if reply is not None}


@agent
def reflexion(talk: Talk) -> str:
    """An attempt and a critic; again with all attempts and feedback, until it is "correct"."""
    later = 2 * REFLECTIONS  # a critic and an attempt each
    earlier = ""
    attempt = ask(talk, "attempt", prompt("think", talk), later)
    for n in range(1, REFLECTIONS + 1):
        keep(talk, attempt)
        later -= 1
        criticise = prompt("criticise", talk, attempt=attempt.text)
        verdict = ask(talk, f"critic {n}", criticise, later)
        if answer_in(verdict).lower().strip(" .*") == "correct":
            break
        texts = {"attempt": attempt.text, "feedback": verdict.text}
        earlier += _paragraph("attempt", number=n, **texts)
        later -= 1
        again = prompt("again", talk, earlier=earlier)
        newer = ask(talk, f"attempt {n + 1}", again, later)
        if answer_in(newer):
            attempt = newer
    return keep(talk, attempt)


@agent
def search(talk: Talk) -> str:
    """Up to SEARCHES thoughts, each with a search, a page or both; then the answer. After a search
    a page is read: the one that the model named, else the first new one.
    """
    found = ""
    read: set[str] = set()
    for n in range(1, SEARCHES + 1):
        later = 2 * (SEARCHES - n + 1)  # a page takes a call too
        think = prompt("query", talk, found=found if found else "-")
        thought = whole(talk, f"search {n}", think, say(PROMPTS, "query_only"), later)
        queries = queries_in(thought)[:1]
        links = LINK.findall(after_thinking(thought))
        if not queries and not links:
            break
        for query in queries:
            found += _used(talk, SEARCH, query=query)
            links += LINK.findall(talk.job.trace[-1].observation)
        new_links = [link for link in links if link not in read]
        for url in new_links[:1]:
            read.add(url)
            found += _used(talk, VISIT, url=url, browse_query=talk.job.u.instruction)
    last = prompt("from_search", talk, found=found if found else "-")
    reply = ask(talk, "answer", last)
    return keep(talk, reply)


# ---- prompts and replies -------------------------------------------------------------------------


def prompt(name: str, talk: Talk, **values: str) -> str:
    """The original question with the text of its files, the agent's input, and prompt `name`."""
    question = talk.job.task.question
    own_input = talk.job.u.instruction
    about = "\n\n".join(text for text in (question, talk.job.u.context) if text)
    kind = "task" if own_input == question else "sub_task"
    task = say(PROMPTS, kind, question=about, input=own_input)
    stripped = {key: value.strip() for key, value in values.items()}
    return say(PROMPTS, name, task=task, **stripped)


def _paragraph(name: str, **values: object) -> str:
    return say(PROMPTS, name, **values) + "\n\n"


def _used(talk: Talk, tool: str, **params: str) -> str:
    """A paragraph about the call of a tool and its observation."""
    observation = talk.use(tool, **params).observation
    shown = dict(params)
    if tool == VISIT:  # the link may be one that a search found
        shown["url"] = outside(params["url"])
    return _paragraph(tool, observation=observation, **shown)


def _statements(newest: Mapping[str, Reply]) -> str:
    texts = {role: reply.text for role, reply in newest.items() if reply.text}
    if not texts:
        return say(PROMPTS, "nobody_yet")
    return "".join(
        _paragraph("statement", role=role, text=text) for role, text in texts.items()
    )


def ask(talk: Talk, what: str, text: str, later: int = 0) -> Reply:
    """One call of `ask_all`."""
    (reply,) = ask_all(talk, [(what, text)], later)
    assert reply is not None  # the failure of a single call is raised
    return reply


def ask_all(
    talk: Talk, prompts: Sequence[tuple[str, str]], later: int = 0
) -> list[Reply | None]:
    """The replies to prompts that ask for an answer. One that was cut off is asked again for its
    answer alone, which is then written below it. Only a reply without an answer is `cut`.
    """
    replies = talk.ask_all(prompts, later, if_cut=say(PROMPTS, "answer_only"))
    return [None if reply is None else _with_answer(reply) for reply in replies]


def _with_answer(reply: Said) -> Reply:
    """A reply as others read it: one that was cut off says so, and has the answer given later."""
    if reply.unfinished is None:
        return reply
    text = closed(reply.unfinished)
    answer = "" if reply.cut else answer_of(reply.text)
    if not answer:
        return replace(reply, text=say(PROMPTS, "no_answer", text=text), cut=True)
    return replace(reply, text=say(PROMPTS, "answered", text=text, answer=answer))


def whole(talk: Talk, what: str, text: str, if_cut: str, later: int = 0) -> str:
    """The reply to a prompt; if it was cut off, the second one, to the message `if_cut`. If that is
    cut off, too: "", and `talk.cut` is true.
    """
    reply = talk.ask(what, text, later, if_cut)
    talk.cut = reply.cut
    return "" if reply.cut else reply.text


def keep(talk: Talk, reply: Reply) -> str:
    """The answer of a reply. The talk keeps both, in case a later call fails."""
    talk.output = reply.text.strip()
    talk.answer = answer_in(reply)
    talk.cut = reply.cut
    return talk.answer


def answer_in(reply: Reply) -> str:
    """The answer of a reply; "" if it was cut off."""
    return "" if reply.cut else answer_of(reply.text)


def queries_in(reply: str) -> list[str]:
    """The text after each "Query:", numbered or not; or that between <query> and </query>."""
    text = after_thinking(reply)
    found = QUERY.findall(text) or TAGGED_QUERY.findall(text)
    queries = [query.strip(" \"'*`") for query in found]
    return [query for query in queries if query]


def majority(replies: Iterable[Reply | None]) -> Reply:
    """The first reply with the most frequent answer; if none has an answer, the first reply."""
    given = [reply for reply in replies if reply is not None]
    first_reply: dict[str, Reply] = {}  # by normalised answer
    votes: Counter[str] = Counter()
    for reply in given:
        vote = " ".join(answer_in(reply).lower().split()).rstrip(" .")
        if vote:
            first_reply.setdefault(vote, reply)
            votes[vote] += 1
    if not votes:
        return given[0] if given else Reply("")
    [(winner, _)] = votes.most_common(1)  # a tie goes to the first
    return first_reply[winner]
