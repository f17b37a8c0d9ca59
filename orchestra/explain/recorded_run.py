"""A recorded run as its panels need it. Nothing that its folder names is loaded or reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from orchestra.contracts import adapter
from orchestra.matching import Capabilities
from orchestra.runtime import completion, run_folder, tape_file
from orchestra.runtime.chat import CHAT
from orchestra.runtime.options import Options
from orchestra.runtime.pool import Pool
from orchestra.runtime.retrace import Round, rounds
from orchestra.runtime.run_folder import Manifest
from orchestra.runtime.user_code import is_spec
from orchestra.stopping import Logprobs
from orchestra.tools.shipped import tools_for
from orchestra.vocabulary import ConfigError, Media, Place, SubTask, Task

# The method whose prompt has C_t of Eq. 20, and which stops by Eq. 22
PAPER = "orchestra-o1"
# The methods whose main agent names models and tools; one of the user's own may do so too.
NAMES_EXECUTORS = (PAPER, "aorchestra")


@dataclass(frozen=True)
class RecordedRun:
    """`psi` has the tools that the program ships. `logprobs` are those of each attempt at a
    decision, if Eq. 22 was on.
    """

    manifest: Manifest
    task: Task
    options: Options
    pool: Pool
    psi: Capabilities
    rounds: list[Round]
    logprobs: Mapping[Place, Logprobs | None]

    def in_round(self, t: int) -> RecordedRun:
        """The same with the settings of round t: a fork may have changed them."""
        settings = self.manifest.in_round(t)
        return replace(self, options=settings.options, pool=settings.pool)

    @property
    def names_executors(self) -> bool:
        method = self.options.method
        return method in NAMES_EXECUTORS or is_spec(method)

    @property
    def has_own_tools(self) -> bool:
        return bool(self.options.tools or self.options.mcp)

    def is_known(self, u: SubTask) -> bool:
        """Whether r(u) can be computed: what tools of the user's own can do is not recorded."""
        if u.requirements or not self.has_own_tools:
            return True
        return all(tool in self.psi for tool in u.tools or ())


def read(folder: Path) -> RecordedRun:
    """Raises ConfigError or TapeMiss for a folder that is not a run, or damaged."""
    manifest = run_folder.read_manifest(folder)
    task = _task(folder, manifest)
    tools = tools_for(task, manifest.code)
    psi = {name: tool.capabilities for name, tool in tools.items()}
    return RecordedRun(
        manifest=manifest,
        task=task,
        options=manifest.options,
        pool=manifest.pool,
        psi=psi,
        rounds=rounds(folder, manifest, task, psi),
        logprobs=_logprobs(folder, manifest.options),
    )


def _task(folder: Path, manifest: Manifest) -> Task:
    """The task. Its files may be missing, since their names are enough here."""
    media = []
    for m in manifest.media:
        path = folder / "media" / m.name
        media.append(Media(m.modality, name=m.name, path=path, sha256=m.sha256))
    return Task(manifest.question, media=tuple(media))


def _logprobs(folder: Path, options: Options) -> dict[Place, Logprobs | None]:
    """The log-probabilities of each decision, by its place; {} if Eq. 22 was off."""
    found: dict[Place, Logprobs | None] = {}
    if options.stop_threshold is None or options.method != PAPER:
        return found
    path = folder / "tape.jsonl"
    for row in tape_file.exchanges(path):
        place = Place.parse(row["call"])
        if place is None or place.subtask > 0 or "answer" not in row:
            continue
        try:
            adapter(CHAT.shape).validate_python(row["answer"])
        except ValidationError:
            problem = f"the answer of {row['call']!r} is damaged; restore a copy"
            raise ConfigError(f"{path}: {problem}") from None
        choice = row["answer"]["data"]["choices"][0]
        # A decision to stop is followed by a second call, for the answer.
        found.setdefault(place, completion.logprobs_of(choice))
    return found
