"""A run on disk: made, locked, read again, forked; and the media that go into it."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import av
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import orchestra_min
from orchestra import run_folder
from orchestra.lines import read
from orchestra.media import check, copy_into
from orchestra.run_folder import (
    Manifest,
    Options,
    begun,
    check_round,
    create,
    default_path,
    fork,
    locked,
    read_manifest,
    write_manifest,
)
from orchestra.vocabulary import ConfigError, Price, Task
from tests.conftest import ROOT, pool_at

CLOCK = ROOT / "fixtures" / "media" / "clock.png"
SPEECH = ROOT / "fixtures" / "media" / "equinox.wav"


def refusal(function: Any, *arguments: Any) -> str:
    """The one line that ends the run."""
    with pytest.raises(ConfigError) as refused:
        function(*arguments)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with a manifest and one picture."""
    folder = create(tmp_path / "run")
    task = Task("Which city?", copy_into(folder, [("image", CLOCK)]))
    pool = pool_at("http://127.0.0.1:9/v1", "small", "big", price=Price(1, 2, 0.5))
    write_manifest(folder, Manifest(task, pool, Options(rounds=3, budget_usd=1.5)))
    return folder


def posted(status: int, call: str = "r1/main/a1") -> dict[str, Any]:
    """An exchange as it is on a tape."""
    request = {"method": "POST", "uri": "http://x/v1/chat/completions"}
    response = {"status": {"code": status}, "body": '{"choices": [{}]}'}
    return {"v": 1, "call": call, "key": "k", "request": request, "response": response}


def tape(folder: Path, *calls: str) -> list[dict[str, Any]]:
    rows = [posted(200, c) for c in calls]
    (folder / "tape.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return rows


# ---- a new folder --------------------------------------------------------------------------------


def test_runs_that_start_together_get_folders_of_their_own():
    with ThreadPoolExecutor(4) as executor:
        paths = list(executor.map(lambda _: default_path(), range(4)))
    assert {p.parent for p in paths} == {Path("runs")}
    assert len(set(paths)) == 4


def test_a_new_folder_is_made_with_its_parents(tmp_path):
    assert create(tmp_path / "a" / "b").is_dir()


def test_an_empty_folder_may_be_used(tmp_path):
    assert create(tmp_path) == tmp_path


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_there_already_is_not_written_to(kind, tmp_path):
    taken = tmp_path / "mine" if kind == "file" else tmp_path
    (tmp_path / "mine").write_text("mine")
    said = refusal(create, taken)
    assert said == f"{taken}: is there already and not empty; give another --out, or --resume it"


@pytest.mark.parametrize("name", ["file/run", "x" * 300])
def test_a_folder_that_can_not_be_made_is_said(name, tmp_path):
    (tmp_path / "file").write_text("")
    assert "can not be made (" in refusal(create, tmp_path / name)


def test_of_runs_that_make_the_same_folder_one_holds_it(tmp_path):
    together, made = threading.Barrier(8), []

    def one() -> None:
        together.wait()
        with suppress(ConfigError), locked(create(tmp_path / "same")):
            made.append(threading.get_ident())
            time.sleep(0.2)

    threads = [threading.Thread(target=one) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(made) == 1


def test_on_a_full_disk_nothing_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "FREE_BYTES", 1 << 60)
    assert "MiB free on this disk; free some" in refusal(create, tmp_path / "a" / "run")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("row", [None, {"fact": "small serves", "value": "m"}, posted(401)])
def test_a_run_that_fails_before_its_first_answer_leaves_no_folder(row, tmp_path):
    with pytest.raises(KeyboardInterrupt), begun(tmp_path / "run") as run:
        (run / "tape.jsonl").write_text(json.dumps(row) + "\n" if row else "")
        (run / "workdir" / "closed").mkdir(parents=True)
        (run / "workdir" / "closed").chmod(0o555)
        raise KeyboardInterrupt
    assert not run.exists()


def test_a_medium_that_was_changed_is_said(run, tmp_path):
    (file,) = (run / "media").iterdir()
    file.write_bytes(b"another")
    assert "is not the file of the run; restore it from a copy" in refusal(read_manifest, run)


def test_a_run_that_has_an_answer_leaves_its_folder(tmp_path):
    with pytest.raises(KeyboardInterrupt), begun(tmp_path / "run") as run:
        tape(run, "r1/main/a1")
        raise KeyboardInterrupt
    assert (run / "tape.jsonl").exists()


# ---- its manifest --------------------------------------------------------------------------------


def test_a_manifest_is_read_as_it_was_written(run):
    manifest = read_manifest(run)
    assert manifest.task.question == "Which city?"
    assert manifest.task.media[0].path == run / "media" / "clock.png"
    assert manifest.pool == pool_at("http://127.0.0.1:9/v1", "small", "big", price=Price(1, 2, 0.5))
    assert manifest.options == Options(rounds=3, budget_usd=1.5)


@pytest.mark.parametrize("name", ["", "nothing-here", "x" * 300, "run.json"])
def test_what_is_no_run_folder_is_said(name, tmp_path, run):
    path = tmp_path / "empty" / name if name != "run.json" else run / name
    assert refusal(read_manifest, path) == (
        f"{path}: is no run folder (it has no run.json); give a folder that a run wrote"
    )


def test_a_run_folder_of_a_newer_version_is_refused(run):
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace('"v": 1', '"v": 2'))
    assert refusal(read_manifest, run).endswith(
        "run.json: version 2, and this program reads up to 1; use a newer orchestra-min"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "null",
        '{"v": 1}',
        '{"v": "1"}',
        '{"v": 1, "task": []}',
        '{"v": 1, "task": {"question": "?", "media": [{}]}}',
        '{"v": 1, "task": {"question": "?", "media": []}, "options": {"speed": 1}}',
        '{"v": 1, "task": {"question": "?", "media": []}, "options": {}, "pool": []}',
        '{"v": 1, "task": {"question": "?", "media": []}, "options": {}, "parent": "",'
        ' "pool": {"backends": [], "main": "m", "engines": []}}',
    ],
)
def test_a_damaged_manifest_is_said(text, run):
    (run / "run.json").write_text(text)
    said = refusal(read_manifest, run)
    assert said.startswith(f"{run / 'run.json'}: damaged (")
    assert said.endswith("restore it from a copy")


def test_a_manifest_that_is_no_text_is_said(run):
    (run / "run.json").write_bytes(b"\xff\xfe\x00")
    assert "run.json: damaged (UnicodeDecodeError" in refusal(read_manifest, run)


def test_a_copy_without_its_media_is_said(run):
    (run / "media" / "clock.png").unlink()
    path = run / "media" / "clock.png"
    assert refusal(read_manifest, run) == f"{path}: is missing; copy the whole run folder"


def test_a_manifest_can_not_name_a_file_outside_its_folder(run, tmp_path):
    (tmp_path / "secret.png").write_bytes(CLOCK.read_bytes())
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace('"clock.png"', '"../../secret.png"'))
    assert "secret.png: is missing" in refusal(read_manifest, run)


# ---- its lock ------------------------------------------------------------------------------------


def hold(path: Path, shared: bool = False) -> None:
    with locked(path, shared):
        pass


@pytest.mark.parametrize("shared", [False, True])
def test_a_folder_that_a_run_writes_is_in_use(shared, run):
    with locked(run):
        said = refusal(hold, run, shared)
    assert said == f"{run}: is in use by another process; wait for it, or copy the folder"


def test_replays_may_read_a_folder_together(run):
    hold(run)
    with locked(run, shared=True), locked(run, shared=True):
        assert "is in use" in refusal(hold, run)


def test_a_folder_is_free_again_after_a_run(run):
    hold(run)
    with locked(run):
        assert "in use" in refusal(hold, run)
    hold(run)


def test_a_folder_without_a_lock_file_can_be_replayed_without_writing_one(run):
    hold(run, shared=True)
    assert not (run / "lock").exists()


def test_a_folder_that_can_not_be_written_is_said(tmp_path):
    assert "gone: can not be written (No such file" in refusal(hold, tmp_path / "gone")


# ---- a fork of it --------------------------------------------------------------------------------

KEPT = {"v": 1, "kept": True}  # no failure before it is asked again


def test_a_fork_keeps_the_calls_of_the_rounds_before(run, tmp_path):
    rows = tape(run, "r1/main/a1", "r1/t1/s1", "r2/main/a1", "r10/main/a1")
    fork(run, create(tmp_path / "new"), 2, read_manifest(run))
    assert list(read(tmp_path / "new" / "tape.jsonl")) == [*rows[:2], KEPT]


def test_a_fork_keeps_what_was_learnt_about_the_endpoints(run, tmp_path):
    (run / "tape.jsonl").write_text('{"v": 1, "fact": "small serves", "value": "m"}\n')
    fork(run, create(tmp_path / "new"), 1, read_manifest(run))
    assert next(read(tmp_path / "new" / "tape.jsonl"))["value"] == "m"


def test_a_fork_is_of_the_same_question_and_names_its_parent(run, tmp_path):
    tape(run)
    fork(run, create(tmp_path / "new"), 2, read_manifest(run))
    forked = read_manifest(tmp_path / "new")
    assert forked.parent == "run from round 2"
    assert forked.task == read_manifest(run).task
    assert forked.task.media[0].path.read_bytes() == CLOCK.read_bytes()


def test_a_fork_has_the_work_folders_of_the_rounds_before(run, tmp_path):
    tape(run)
    for name in ("r1-t1", "r2-t1", "r10-t1"):
        (run / "work" / name).mkdir(parents=True)
    fork(run, create(tmp_path / "new"), 2, read_manifest(run))
    assert [p.name for p in (tmp_path / "new" / "work").iterdir()] == ["r1-t1"]


def test_a_round_that_the_run_did_not_come_to_is_refused(run):
    tape(run, "r1/main/a1", "r10/main/a1", "r2/main/a1")
    check_round(run, 10)
    said = f"--from-round 11: the last round on the tape of {run} is 10; give one"
    assert refusal(check_round, run, 11).startswith(said)


def test_a_run_that_was_stopped_before_its_first_call_has_its_first_round(run):
    check_round(run, 1)
    assert "is 0;" in refusal(check_round, run, 2)


@pytest.mark.parametrize("torn", ['{"v": 1, "call": "r1/t', "", "[]", '{"v": 1, "call": "\xff'])
def test_a_line_that_a_crash_tore_is_left_out_of_a_fork(torn, run, tmp_path):
    rows = tape(run, "r1/main/a1", "r1/t1/s1")
    first, second = (run / "tape.jsonl").read_bytes().splitlines(keepends=True)
    (run / "tape.jsonl").write_bytes(first + torn.encode("latin-1") + b"\n" + second)
    fork(run, create(tmp_path / "new"), 9, read_manifest(run))
    assert list(read(tmp_path / "new" / "tape.jsonl")) == [*rows, KEPT]


def test_a_run_that_was_stopped_before_its_first_call_can_be_forked(run, tmp_path):
    fork(run, create(tmp_path / "new"), 1, read_manifest(run))
    assert list(read(tmp_path / "new" / "tape.jsonl")) == [KEPT]


def test_a_fork_that_can_not_be_written_is_said_and_has_no_tape(run, tmp_path):
    tape(run, "r1/main/a1")
    target = create(tmp_path / "new")
    (target / "media").write_text("in the way")
    assert f"{target}: can not be written (" in refusal(fork, run, target, 2, read_manifest(run))
    assert not (target / "tape.jsonl").exists()


def test_a_fork_that_is_interrupted_is_taken_away(run, tmp_path, monkeypatch):
    tape(run, "r1/main/a1", "r2/main/a1")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_folder, "write_manifest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        orchestra_min.resume(run, from_round=2, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_no_second_fork_harms_the_first_into_the_same_folder(run, tmp_path):
    tape(run, "r1/main/a1", "r2/main/a1")
    (tmp_path / "new").mkdir()
    with begun(tmp_path / "new") as first:
        (first / "media").mkdir()
        with pytest.raises(ConfigError, match="is there already and not empty"):
            orchestra_min.resume(run, from_round=2, out=first)
        assert (first / "media").exists()


# ---- media ---------------------------------------------------------------------------------------


def media_file(kind: str, folder: Path) -> Path:
    path = folder / kind
    match kind:
        case "empty.png":
            path.touch()
        case "folder.png":
            path.mkdir()
        case "pipe.png":
            os.mkfifo(path)
        case "huge.png":
            path.touch()
            os.truncate(path, (100 << 20) + 1)
        case "notes.txt" | "notes.png" | "notes.mp4" | "notes.nfo":
            path.write_text("these are notes\n" * 100)
        case "film.mp4":
            film(path)
        case "bomb.png":  # a few bytes that say they are 900 million pixels
            Image.new("RGB", (1, 1)).save(path)
            data = bytearray(path.read_bytes())
            data[16:24] = struct.pack(">II", 30_000, 30_000)
            data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
            path.write_bytes(data)
    return path


def film(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        frame = av.VideoFrame.from_image(Image.new("RGB", (32, 32)))
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


@pytest.mark.parametrize(
    "modality, kind, problem",
    [
        ("image", "gone.png", "there is no such file; check the path"),
        ("image", "empty.png", "is empty; give another file"),
        ("image", "folder.png", "is not a file; name the file itself"),
        ("image", "pipe.png", "is not a file; name the file itself"),
        ("image", "huge.png", "100 MiB is over the limit of 100 MiB; cut or shrink it"),
        ("image", "notes.txt", "is no image file; no picture and no sound can be read from it"),
        ("image", "notes.png", "is no image file; no picture and no sound can be read from it"),
        ("image", "bomb.png", "is no image file; no picture and no sound can be read from it"),
        ("video", "notes.mp4", "is no video file; no picture and no sound can be read from it"),
        ("video", "notes.nfo", "is no video file; no picture and no sound can be read from it"),
        ("audio", "film.mp4", "is no audio file; it holds video: use --video"),
        ("image", "film.mp4", "is no image file; it holds video: use --video"),
        ("image", "x" * 300, "can not be read (File name too long); give another file"),
    ],
)
def test_a_file_that_is_not_what_its_flag_says_is_refused(modality, kind, problem, tmp_path):
    path = media_file(kind, tmp_path)
    assert refusal(check, [(modality, path)]) == f"--{modality} {path}: {problem}"


@pytest.mark.parametrize(
    "modality, path, use",
    [("audio", CLOCK, "image"), ("video", CLOCK, "image"), ("image", SPEECH, "audio")],
)
def test_a_file_under_the_wrong_flag_is_told_the_right_one(modality, path, use):
    assert refusal(check, [(modality, path)]).endswith(f"it holds {use}: use --{use}")


def test_files_under_the_right_flags_pass(tmp_path):
    given = [("image", CLOCK), ("audio", SPEECH), ("video", media_file("film.mp4", tmp_path))]
    assert check(given) == given


def test_a_file_counts_by_its_content_and_not_by_its_name(tmp_path):
    path = tmp_path / "sound.png"
    path.write_bytes(SPEECH.read_bytes())
    assert check([("audio", path)])


def test_the_first_bad_file_of_many_is_named(tmp_path):
    assert "gone.wav" in refusal(check, [("image", CLOCK), ("audio", tmp_path / "gone.wav")])


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["TIFF", "GIF", "PNG", "JPEG", "BMP", "WEBP", "ICO"]),
    changes=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=8),
    length=st.integers(1, 1000),
)
def test_no_damaged_picture_makes_the_check_raise_or_warn(tmp_path_factory, kind, changes, length):
    path = tmp_path_factory.mktemp("media") / "picture"
    Image.new("RGB", (16, 16), "red").save(path, kind)
    data = bytearray(path.read_bytes())
    for place, value in changes:
        data[place % len(data)] = value
    path.write_bytes(data[:length])
    with suppress(ConfigError):
        check([("image", path)])


def test_media_are_copied_into_the_folder_with_their_digest(tmp_path):
    [picture] = copy_into(tmp_path, [("image", CLOCK)])
    assert picture.path.read_bytes() == CLOCK.read_bytes()
    assert picture.sha256 == hashlib.sha256(CLOCK.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "name, plain",
    [
        ("My clock (1).png", "My_clock_1.png"),
        ("../x y.png", "x_y.png"),
        ("-rf.png", "rf.png"),
        ("?.png", "media.png"),
        ("Uhr-größe.png", "Uhr-größe.png"),
        ("a" * 100 + ".png", "a" * 60 + ".png"),
        ("no-suffix", "no-suffix"),
        ("line\nbreak.png", "line_break.png"),
        (os.fsdecode(b"\xff.png"), "media.png"),
    ],
)
def test_a_name_is_made_one_that_a_model_can_write(name, plain, tmp_path):
    (tmp_path / "in").mkdir()
    source = tmp_path / "in" / Path(name).name
    source.write_bytes(b"x")
    (tmp_path / "run").mkdir()
    [media] = copy_into(tmp_path / "run", [("image", source)])
    assert media.name == plain


def test_files_of_one_name_keep_apart(tmp_path):
    sources = [tmp_path / folder / "a.png" for folder in ("x", "y", "z")]
    for source in sources:
        source.parent.mkdir()
        source.write_text(str(source))
    media = copy_into(tmp_path, [("image", s) for s in sources])
    assert [m.name for m in media] == ["a.png", "a_2.png", "a_3.png"]
    assert [m.path.read_text() for m in media] == [str(s) for s in sources]
