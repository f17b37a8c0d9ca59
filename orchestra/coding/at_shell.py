"""--agent mini-swe: AOrchestra whose sub-agents work at a shell, with --workdir in a copy of the
user's repository.

    repo = Path("project")
    check(options, repo)
    orchestrate("Make the failing test pass.", pool=pool, options=options, out="runs/fix",
                more={"workdir": str(repo)}, change=change_of(Path("runs/fix"), repo))

A replay needs no repository; a resume names it again, because a run folder may come from someone
else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from orchestra.coding import mini_swe, worktree
from orchestra.kernel.folder import Manifest, Options
from orchestra.kernel.method import Ask
from orchestra.kernel.prompts import named, say
from orchestra.kernel.tool import Tool
from orchestra.kernel.vocabulary import (
    Complete,
    ConfigError,
    Decision,
    Delegate,
    ModelMistake,
    Pool,
    State,
)
from orchestra.methods.aorchestra import PROMPTS, AOrchestra
from orchestra.tools import sandbox
from orchestra_min import Parts

AGENT = "mini-swe"


class AtShell(AOrchestra):
    """Sub-agents have no tool but their shell. `top`: the names at the top of the repository. While
    none is done and nothing is changed, an answer is a fallback.
    """

    def __init__(
        self,
        pool: Pool,
        tools: Mapping[str, Tool],
        options: Options,
        top: Sequence[str] = (),
    ) -> None:
        super().__init__(pool, tools, options)
        self.manuals = say(PROMPTS, "shell")
        self.top = top

    def decide(
        self, state: State, ask: Ask, mistake: str, last_chance: bool
    ) -> Decision:
        """y_t ~ pi_theta(. | s_t). Raises ModelMistake."""
        offered = replace(state, tools=(), capabilities={})
        y_t = super().decide(offered, ask, mistake, last_chance)
        if isinstance(y_t, Complete) and not last_chance and _is_undone(state):
            error = state.history[-1].error
            raise ModelMistake(
                "nobody_done", wanted="complete", answer=y_t.answer, error=error
            )
        if isinstance(y_t, Delegate):
            at_shell = tuple(replace(u, tools=()) for u in y_t.subtasks)
            return replace(y_t, subtasks=at_shell)
        return y_t

    def files(self, state: State) -> str:
        """M, and what the repository has."""
        if not self.top:
            return super().files(state)
        repo = say(PROMPTS, "repo", top=", ".join(map(named, self.top)))
        return f"{super().files(state)}\n\n{repo}"


def _is_undone(state: State) -> bool:
    """Whether no sub-agent has reported that its task is done, and nothing has been changed."""
    same = say(mini_swe.PROMPTS, "same")
    history = state.history
    has_done = any(h.status == "done" for h in history)
    return bool(history) and not has_done and same in history[-1].summary


def check(options: Options, repo: Path | None = None, with_media: bool = False) -> None:
    """Raises ConfigError if a run cannot work at a shell, in a copy of the repository."""
    if options.agent != AGENT:
        if repo:
            raise ConfigError(f"--workdir: needs --agent {AGENT}")
        return
    if not options.more.get("unsafe_code") and sandbox.trouble():
        raise ConfigError(f"--agent {AGENT}: {sandbox.missing()}")
    if repo:
        worktree.check(repo, with_media)


def change_of(
    folder: Path,
    repo: Path | None = None,
    tell: Callable[[str], None] = lambda message: None,
) -> Callable[[Parts, Manifest], Parts]:
    """The `change` that gives the run in a folder its shell. The repository is copied unless it
    has been; `tell` shows progress.
    """

    def change(parts: Parts, manifest: Manifest) -> Parts:
        if parts.options.agent != AGENT:
            return parts
        if not isinstance(parts.method, AOrchestra):
            raise ConfigError(f"--agent {AGENT}: add --method aorchestra")
        if repo and not (folder / "workdir.git").exists():
            worktree.copy_into(folder, repo, tell)
        if "parent" in manifest.more and not (folder / "changes.diff").exists():
            worktree.write_changes(folder)
        top = worktree.top_level(folder)
        method = AtShell(parts.pool, parts.tools, parts.options, top)
        absolute = repo.absolute() if repo else None
        agents: dict[str, Any] = {AGENT: partial(mini_swe.run, repo=absolute)}
        return replace(parts, method=method, agents={**parts.agents, **agents})

    return change
