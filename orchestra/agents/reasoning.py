"""The agents of MAS-Orchestra (arXiv 2601.14652, App. H): CoT, self-consistency, debate, Reflexion
and search, each over `Job`.

Differences from the paper / the released code
1. Samples, and the roles of one round, run in parallel; the released code calls one by one.
2. Votes are normalised (case, spaces, a final full stop); a tie goes to the first. An empty answer
   and a reply that was cut off at its length limit do not count.
3. A failed sample or role is left out; the agent fails only if all of a round fail. Reflexion then
   returns its last attempt, a debate the majority of the newest replies, as partial.
4. A reply is plain text that ends in "Answer: ..."; without that line its last line is the answer.
5. The search agent opens pages: the one that the model names, else the first that a search found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from orchestra.agents.job import SEARCH, VISIT, Job, agent
from orchestra.runtime.parsing import after_thinking
from orchestra.runtime.prompts import say
from orchestra.vocabulary import Reply

SAMPLES = DEBATE_ROUNDS = REFLECTIONS = SEARCHES = 5
ANSWER = re.compile(
    r"^[^\w\n]*_*(?:final[ \t]+)?answer\b[^\w\n]*?:[ \t*_]*", flags=re.I | re.M
)
QUERY = re.compile(
    r"(?im)^[^\w\n]*(?:\d+[^\w\n]+)?query[^\w\n]*(?:\d+[^\w\n]*)?[:=]\s*(.+)$"
)
LINK = re.compile(
    r"https?://(?:[^\s<>\"'`()\[\]*]|\([\w,.-]*\))+(?<![.,;:])"
)  # .._(planet) too


@agent
def cot(job: Job) -> str:
    """Chain of thought: one call."""
    return keep(job, job.ask("think", prompt("think", job)))


@agent
def self_consistency(job: Job) -> str:
    """The majority of SAMPLES answers to the same prompt."""
    prompts = [(f"sample {n}", prompt("think", job)) for n in range(1, SAMPLES + 1)]
    return keep(job, majority(job.ask_all(prompts)))


@agent
def debate(job: Job) -> str:
    """DEBATE_ROUNDS rounds, in which each role reads the newest reply of all; then one decision."""
    roles, newest = job.u.roles, dict[str, Reply]()  # the newest reply of each role
    for n in range(1, DEBATE_ROUNDS + 1):
        statements = _statements(newest)
        prompts = [
            (
                f"{role}, round {n}",
                prompt("debate", job, role=role, statements=statements),
            )
            for role in roles
        ]
        replies = job.ask_all(prompts, later=(DEBATE_ROUNDS - n) * len(roles) + 1)
        newest |= {
            role: reply for role, reply in zip(roles, replies, strict=True) if reply
        }
        keep(job, majority(newest.values()))
    return keep(
        job, job.ask("decide", prompt("decide", job, statements=_statements(newest)))
    )


@agent
def reflexion(job: Job) -> str:
    """An attempt and a critic; again with all attempts and feedback, until it is "correct"."""
    later, earlier = 2 * REFLECTIONS, ""
    attempt = job.ask("attempt", prompt("think", job), later)
    for n in range(1, REFLECTIONS + 1):
        keep(job, attempt)
        criticise = prompt("criticise", job, attempt=attempt)
        verdict = job.ask(f"critic {n}", criticise, later - 2 * n + 1)
        if answer_of(verdict).lower().strip(" .*") == "correct":
            break
        earlier += _paragraph("attempt", number=n, attempt=attempt, feedback=verdict)
        again = prompt("again", job, earlier=earlier)
        newer = job.ask(f"attempt {n + 1}", again, later - 2 * n)
        attempt = newer if answer_of(newer) else attempt
    return keep(job, attempt)


@agent
def search(job: Job) -> str:
    """Up to SEARCHES thoughts, each with a search, a page or both; then the answer. After a search
    a page is read: the one that the model named, else the first new one.
    """
    found, read = "", list[str]()

    def use(tool: str, **params: str) -> None:
        nonlocal found
        found += _paragraph(tool, observation=job.use(tool, **params), **params)

    for n in range(1, SEARCHES + 1):
        later = 2 * (SEARCHES - n + 1)  # a page takes a call too
        thought = job.ask(
            f"search {n}", prompt("query", job, found=found or "-"), later
        )
        queries, links = queries_in(thought)[:1], LINK.findall(after_thinking(thought))
        if not queries and not links:
            break
        for query in queries:
            use(SEARCH, query=query)
            links += LINK.findall(job.trace[-1].observation)
        for url in [link for link in links if link not in read][:1]:
            read.append(url)
            use(VISIT, url=url, browse_query=job.u.instruction)
    return keep(job, job.ask("answer", prompt("from_search", job, found=found or "-")))


# ---- prompts and replies -------------------------------------------------------------------------


def prompt(name: str, job: Job, **values: str) -> str:
    """The original question with the text of its files, the agent's input, and prompt `name`."""
    question, own = job.env.task.question, job.u.instruction
    about = "\n\n".join(text for text in (question, job.u.context) if text)
    kind = "task" if own == question else "sub_task"
    task = say("reasoning/messages", kind, question=about, input=own)
    return say(
        "reasoning/messages",
        name,
        task=task,
        **{k: v.strip() for k, v in values.items()},
    )


def _paragraph(name: str, **values: object) -> str:
    return say("reasoning/messages", name, **values) + "\n\n"


def _statements(newest: Mapping[str, Reply]) -> str:
    replies = newest.items()
    rows = [
        _paragraph("statement", role=r, text=reply.text)
        for r, reply in replies
        if reply.text
    ]
    return "".join(rows) or say("reasoning/messages", "nobody_yet")


def keep(job: Job, reply: str) -> str:
    """The answer of a reply. The job keeps both, in case a later call fails."""
    job.output, job.answer = reply.strip(), answer_of(reply)
    return job.answer


def answer_of(reply: str) -> str:
    """The text after the last "Answer:" that is not empty; without one, the last line."""
    before, *parts = ANSWER.split(after_thinking(reply))
    answers = [text for part in parts if (text := part.strip().strip("*").strip())]
    lines = [row.strip() for row in before.splitlines() if row.strip()]
    return (answers or lines or [""])[-1]


def queries_in(reply: str) -> list[str]:
    """The text after each "Query:", numbered or not."""
    rows = QUERY.findall(after_thinking(reply))
    return [query for row in rows if (query := row.strip(" \"'*`"))]


def majority(replies: Iterable[Reply | None]) -> str:
    """The first reply with the most frequent answer; "" if no complete reply has an answer."""
    texts = [reply.text for reply in replies if reply and not reply.cut]
    keys = [" ".join(answer_of(text).lower().split()).rstrip(" .") for text in texts]
    counts = Counter(key for key in keys if key)
    return texts[keys.index(counts.most_common(1)[0][0])] if counts else ""
