"""--workdir on a repository of someone else: no setting, hook, remote or name in it runs a command."""

import hashlib
import os
import shutil
import subprocess
from contextlib import suppress

import pytest

from orchestra.coding import worktree
from tests.conftest import ConfigError, needs_git
from tests.test_mini_swe import git

pytestmark = needs_git


def new(folder, **files):
    """A repository with a commit of these files and two more."""
    (folder / "d").mkdir(parents=True)
    for name, text in {"a": "1\n", "d/x": "2\n", **files}.items():
        (folder / name).write_text(text)
    git(folder, "init", "-q")
    git(folder, "add", "-A", "-f")
    git(folder, "-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "1")
    return folder


def settings(repo, **values):
    """Settings in its .git/config; `__` stands for a full stop."""
    for name, value in values.items():
        git(repo, "config", name.replace("__", "."), value)


def program(file, trap):
    """A program that leaves the file `trap`, and otherwise does what git expects of a filter."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\ntouch {trap}\ncat\n")
    file.chmod(0o755)
    return str(file)


def fetches(repo, url, **more):
    """A partial clone with a sparse index: git fetches the tree of `d` to list its files."""
    git(repo, "sparse-checkout", "init", "--cone", "--sparse-index")
    more |= {"extensions__partialClone": "o", "core__repositoryformatversion": "1"}
    settings(repo, remote__o__url=url, remote__o__promisor="true", protocol__allow="always", **more)
    asked = ["git", "-C", repo, "rev-parse", "--git-common-dir", "HEAD:d"]
    found = subprocess.run(asked, capture_output=True, check=True, text=True)
    common, tree = found.stdout.split()
    (repo / common / "objects" / tree[:2] / tree[2:]).unlink()


def over_ssh(repo, trap):
    fetches(repo, "ssh://h/x", core__sshCommand=f"touch {trap};")


def over_ext(repo, trap):
    fetches(repo, f"ext::touch {trap}", protocol__ext__allow="always")


def from_a_folder(repo, trap):
    fetches(repo, "/nowhere", remote__o__uploadpack=f"touch {trap};")


def over_git_with_a_proxy(repo, trap):
    fetches(repo, "git://h/x", core__gitProxy=program(repo / "proxy", trap))


def with_a_monitor(repo, trap):
    settings(repo, core__fsmonitor=program(repo / "monitor", trap), core__untrackedCache="true")


def with_a_monitor_in_an_included_file(repo, trap):
    (repo / "more").write_text(f"[core]\n\tfsmonitor = {program(repo / 'monitor', trap)}\n")
    settings(repo, include__path=str(repo / "more"))


def with_a_monitor_of_the_work_tree(repo, trap):
    settings(repo, extensions__worktreeConfig="true", core__repositoryformatversion="1")
    git(repo, "config", "--worktree", "core.fsmonitor", program(repo / "monitor", trap))


def with_hooks(repo, trap):
    for name in ("post-index-change", "post-checkout", "pre-commit", "fsmonitor-watchman"):
        settings(repo, core__hooksPath=str(repo / "hooks"))
        program(repo / "hooks" / name, trap)
        program(repo / ".git/hooks" / name, trap)
    (repo / "a").touch()


def with_filters_and_diffs(repo, trap):
    (repo / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
    for key in (
        "filter.x.clean",
        "filter.x.process",
        "diff.external",
        "diff.x.textconv",
        "diff.x.command",
    ):
        git(repo, "config", key, program(repo / "filter", trap))
    (repo / "a").write_text("changed\n")


def with_aliases_and_pagers(repo, trap):
    for key in (
        "alias.ls-files",
        "alias.init",
        "alias.add",
        "core.pager",
        "pager.ls-files",
        "core.editor",
    ):
        git(repo, "config", key, f"!touch {trap}")


def with_its_git_elsewhere(repo, trap):
    over_ssh(repo, trap)
    settings(repo, core__fsmonitor=program(repo / "monitor", trap))
    (repo / ".git").rename(repo.parent / "elsewhere")
    (repo / ".git").write_text("gitdir: ../elsewhere\n")


def as_a_work_tree(repo, trap):
    main = repo.rename(repo.parent / "main")
    git(main, "worktree", "add", "-q", repo)
    settings(main, core__fsmonitor=program(main / "monitor", trap))
    over_ssh(repo, trap)


def with_a_common_folder(repo, trap):
    over_ssh(repo, trap)
    shutil.copytree(repo / ".git", repo.parent / "common")
    (repo / ".git/config").write_text("")
    (repo / ".git/commondir").write_text("../../common\n")


def with_objects_elsewhere(repo, trap):
    other = new(repo.parent / "other", **{"d/x": "3\n"})
    (repo / ".git/objects/info/alternates").write_text(f"{other}/.git/objects\n")
    settings(repo, core__alternateRefsCommand=program(repo / "refs", trap))
    over_ssh(repo, trap)


def with_a_submodule(repo, trap):
    sub = new(repo / "sub")
    git(repo, "add", "sub")
    (repo / ".gitmodules").write_text('[submodule "sub"]\n\tpath = sub\n\turl = ./sub\n')
    settings(repo, submodule__sub__active="true", submodule__sub__url="./sub")
    over_ssh(sub, trap)
    settings(sub, core__fsmonitor=program(sub / "monitor", trap))


def with_its_settings_in_the_index(repo, trap):
    """An index that lists .git/config, which would become the settings of the copy."""
    (repo / "agit").mkdir()
    (repo / "agit/config").touch()
    (repo / ".gitattributes").write_text("* filter=x\n")
    git(repo, "add", "-A", "-f")
    settings(repo, filter__x__clean=program(repo / "filter", trap))
    index = repo / ".git/index"
    data = index.read_bytes()[:-20].replace(b"agit/config", b".git/config")
    index.write_bytes(data + hashlib.sha1(data).digest())
    shutil.rmtree(repo / "agit")


HOSTILE = (
    over_ssh, over_ext, from_a_folder, over_git_with_a_proxy, with_a_monitor,
    with_a_monitor_in_an_included_file, with_a_monitor_of_the_work_tree, with_hooks, with_filters_and_diffs,
    with_aliases_and_pagers, with_its_git_elsewhere, as_a_work_tree, with_a_common_folder, with_objects_elsewhere,
    with_a_submodule, with_its_settings_in_the_index,
)  # fmt: skip


@pytest.fixture
def copied(tmp_path):
    """The names in the copy of a repository."""

    def copy(repo):
        run = tmp_path / "run"
        run.mkdir()
        worktree.copy_into(run, repo, print)
        files = (p.relative_to(run / "workdir") for p in (run / "workdir").rglob("*"))
        return {str(p) for p in files if p.parts[0] != ".git"}

    return copy


@pytest.mark.parametrize("make", HOSTILE)
def test_a_repository_of_someone_else_runs_no_command(make, copied, tmp_path):
    repo, trap = new(tmp_path / "repo"), tmp_path / "TRAPPED"
    make(repo, trap)
    trap.unlink(missing_ok=True)  # git obeyed it while the repository was made
    found = copied(repo)
    assert not trap.exists() and "a" in found


@pytest.mark.parametrize("make", [over_ssh, over_ext, from_a_folder, over_git_with_a_proxy])
def test_a_git_without_the_variable_against_lazy_fetches_fetches_nothing(make, copied, tmp_path, monkeypatch):  # fmt: skip
    """One before 2.39.4."""
    monkeypatch.delitem(worktree.FOREIGN, "GIT_NO_LAZY_FETCH")
    repo, trap = new(tmp_path / "repo"), tmp_path / "TRAPPED"
    make(repo, trap)
    trap.unlink(missing_ok=True)
    with suppress(ConfigError):  # git may refuse it
        copied(repo)
    assert not trap.exists()


@pytest.mark.parametrize("name", ["/etc/hostname", "../outside", "d/../../outside", ".git/HEAD", "d/.GIT/x", ".g\u200cit/x"])  # fmt: skip
def test_a_name_in_an_index_that_leads_out_is_left_out(name):
    assert not worktree._is_inside(name) and worktree._is_inside("d/.gitignore")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder to another user")
def test_a_repository_of_another_user_is_refused_until_the_user_calls_it_safe(copied, tmp_path, monkeypatch):  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    repo = new(tmp_path / "repo")
    shutil.chown(repo, 1234)
    shutil.chown(repo / ".git", 1234)
    with pytest.raises(
        ConfigError, match="dubious ownership in repository at .*git config --global"
    ):
        copied(repo)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / ".gitconfig").write_text(f"[safe]\n\tdirectory = {repo}\n")
    assert copied(repo) == {"a", "d", "d/x"}


def test_the_files_that_the_user_ignores_everywhere_are_not_copied(copied, tmp_path, monkeypatch):
    repo = new(tmp_path / "repo")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "settings"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other"))
    (tmp_path / "settings").write_text(f"[core]\n\texcludesFile = {tmp_path}/ignored\n")
    (tmp_path / "ignored").write_text("*.key\n")
    (repo / "my.key").touch()
    (repo / "new").touch()
    assert copied(repo) == {"a", "d", "d/x", "new"}


def test_a_broken_repository_does_not_list_the_one_around_it(copied, tmp_path):
    inner = new(tmp_path / "outer") / "inner"
    (inner / ".git").mkdir(parents=True)
    (inner / "secret").touch()
    with pytest.raises(ConfigError, match="not a git repository"):
        copied(inner)


@pytest.mark.parametrize("name", [".git/index", ".git/config", ".git/HEAD", ".gitignore"])
def test_a_pipe_on_which_git_waits_is_one_line_after_a_while(name, copied, tmp_path, monkeypatch):
    monkeypatch.setattr(worktree, "GIT_TIMEOUT_S", 0.5)
    repo = new(tmp_path / "repo")
    (repo / name).unlink(missing_ok=True)
    os.mkfifo(repo / name)
    with pytest.raises(ConfigError, match="git took longer than 0.5 s"):
        copied(repo)


def test_files_of_a_work_tree_elsewhere_are_not_copied(copied, tmp_path):
    private = new(tmp_path / "private", secret="x")
    repo = new(tmp_path / "repo")
    settings(repo, core__worktree=str(private))
    assert "secret" not in copied(repo)


def test_a_linked_environment_is_not_shown_unless_the_user_activated_it(tmp_path, monkeypatch):
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    repo, private = new(tmp_path / "repo"), tmp_path / "private"
    private.mkdir()
    (private / "pyvenv.cfg").touch()
    (repo / ".venv").symlink_to(private)
    assert worktree.virtual_environment(repo) is None
    monkeypatch.setenv("VIRTUAL_ENV", str(repo / ".venv"))
    assert worktree.virtual_environment(repo) == repo / ".venv"
