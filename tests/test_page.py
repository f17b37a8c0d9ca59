"""The page in a browser: what is read first, what the keyboard reaches, and what small screens show."""

import json
import shutil

import pytest

from orchestra.report import command as report
from tests import browser
from tests.conftest import ROOT
from tests.scripted import Raw, act, complete, delegate, finish, is_main, last_text
from tests.test_report import needs_chromium, sweep

pytestmark = needs_chromium
RUNS = ROOT / "fixtures" / "runs"
CUT = """(() => {
  const cut = (e) => ["hidden", "clip"].includes(getComputedStyle(e).overflowX) && e.scrollWidth > e.clientWidth + 1 && e.clientWidth;
  const outside = (t) => { const [a, b] = [t, t.ownerSVGElement].map((e) => e.getBoundingClientRect()); return a.right > b.right + 1 || a.left < b.left - 1; };
  return [document.documentElement.scrollWidth > innerWidth, ...[...document.querySelectorAll("body *")].filter(cut).map((e) => e.outerHTML),
    ...[...document.querySelectorAll("svg text, .tick")].filter((t) => t.ownerSVGElement ? outside(t) : t.offsetLeft + t.offsetWidth > t.parentNode.offsetWidth).map((t) => t.textContent)].filter(Boolean);
})()"""


@pytest.fixture
def opened(tmp_path):
    """Open the page of a run or of a folder in a browser."""
    pages = []

    def open_page(folder, place="", **how):
        file = report.write(folder, tmp_path / "page.html")
        url = file.as_uri() + (f"#{place}" if place else "")
        pages.append(browser.opened(url, **how))
        return pages[-1].__enter__()

    yield open_page
    for page in pages:
        page.__exit__(None, None, None)


def text_of(page, selector):
    return page.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")


# ---- a run ---------------------------------------------------------------------------------------


def test_a_run_that_failed_says_first_why_and_in_whose_words(run, opened):
    with pytest.raises(Exception, match="CUDA"):
        run(
            respond=lambda request: Raw(500, {"error": {"message": "CUDA is <b>full"}}),
            patience_s=0,
        )
    page = opened(run.folder)
    assert "Stopped without an answer: " in text_of(page, "header .state")
    assert "status 500: CUDA is <b>full" in text_of(page, "header .state")
    assert "CUDA is <b>full" in text_of(page, ".failures blockquote")
    assert f"resume {run.folder}" in text_of(page, "header")


def test_a_step_that_failed_is_seen_as_failed(run, opened):
    def respond(request):
        if is_main(request):
            return complete("42") if "it is 42" in last_text(request) else delegate("look")
        return finish("it is 42") if "not exist" in last_text(request) else act("NoAction", "hm")

    run(respond=respond)
    page = opened(run.folder, "r1/t1")
    assert text_of(page, ".bar.failed") == "✗"
    assert "1 step failed, and the run went on" in text_of(page, ".failures")
    assert "✗ It failed" in text_of(page, "#right")


def test_a_decision_is_sentences_with_its_equations_and_its_json_folded(opened):
    page = opened(RUNS / "equinox", "r1/decision")
    shown = text_of(page, "#right")
    assert "The main agent delegated 2 sub-tasks:" in shown and "Its reason:" in shown
    assert page.evaluate("document.querySelectorAll('#right math msub').length") > 3
    assert '"action": "delegate"' not in shown
    page.evaluate("for (const d of document.querySelectorAll('#right details')) d.open = true")
    assert '"action": "delegate"' in text_of(page, "#right")
    assert "def batch(" in text_of(page, "#right")


def test_the_keyboard_reaches_every_bar_opens_it_and_goes_back(opened):
    page = opened(RUNS / "equinox")
    bars = page.evaluate("document.querySelectorAll('.bar').length")
    reached = set()
    for _ in range(60):
        page.press("Tab")
        is_bar = page.evaluate("document.activeElement.matches('.bar')")
        reached |= {page.evaluate("document.activeElement.hash")} if is_bar else set()
    assert len(reached) == bars == 13
    page.evaluate("document.querySelector('.bar').focus()")
    page.press("ArrowRight")
    page.press("Enter")
    page.until("location.hash === '#r1/t1' && document.activeElement.id === 'place'")
    page.press("Escape")
    assert page.evaluate("document.activeElement.hash") == "#r1/t1"


def test_a_search_finds_prompts_and_marks_what_it_found(opened):
    page = opened(RUNS / "equinox", "r1/main/a1")
    search = """const box = document.querySelector("#search"); box.value = "NEED TO ANALYZE"; box.dispatchEvent(new Event("input")); 0"""
    page.evaluate(search)
    page.until("!!document.querySelector('#found a')")
    assert "places with this text" in text_of(page, "#found")
    assert page.evaluate("document.querySelector('#found a').hash") == "#r1/decision"
    assert text_of(page, "#right mark").lower() == "need to analyze"
    assert 0 < page.evaluate("document.querySelectorAll('.bar.dim').length") < 13


def test_the_changes_of_a_run_are_coloured(tmp_path, opened):
    shutil.copytree(RUNS / "equinox", tmp_path / "run")
    (tmp_path / "run/changes.diff").write_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+<i>new\n")
    page = opened(tmp_path / "run")
    kinds = page.evaluate("[...document.querySelectorAll('.diff span')].map(e => e.className)")
    assert kinds == ["file", "file", "hunk", "removed", "added", ""]


@pytest.mark.parametrize(("width", "scheme"), [(1400, "dark"), (900, "light"), (420, "dark")])
@pytest.mark.parametrize("place", ["r2/t1", "r3/main/a1"])
def test_no_text_is_cut_on_any_screen(width, scheme, place, opened):
    page = opened(RUNS / "equinox", place, width=width, scheme=scheme)
    assert page.evaluate(CUT) == [] and page.errors == []


def test_a_small_screen_goes_to_what_was_chosen_and_back(opened):
    page = opened(RUNS / "equinox", width=420)
    in_view = "document.querySelector('{}').getBoundingClientRect().top"
    for link, shown in (("#r1/t1", "#place"), ("#timeline", "#timeline")):
        page.evaluate(f"document.querySelector('a[href=\"{link}\"]').click()")
        page.until(f"Math.abs({in_view.format(shown)}) < 800")
    assert text_of(page, "#place") == "t1 in round 1"


def test_the_names_of_lanes_stay_visible(run, opened):
    decisions = iter([*(delegate(f"look at {n}") for n in range(20)), complete("42")])
    run(respond=lambda r: next(decisions) if is_main(r) else finish("x"), rounds=30)
    page = opened(run.folder, width=420)
    left = "document.querySelector('.lane:nth-child(3) .name').getBoundingClientRect().left"
    before = page.evaluate(left)
    box = "document.querySelector('.timeline').parentNode"
    assert page.evaluate(f"{box}.scrollLeft = 150; {box}.scrollLeft") == 150
    assert page.evaluate(left) == before


# ---- a folder ------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1400, 420])
def test_a_folder_counts_filters_sorts_and_opens_its_runs(width, tmp_path, opened):
    page = opened(sweep(tmp_path / "sweep"), width=width)
    counts = text_of(page, "header")
    assert "2 with an answer: 2 answered" in counts
    assert "1 without an answer: 1 without a run" in counts
    rows = "[...document.querySelectorAll('.all tbody th')].map(e => e.innerText)"
    by_answer = "[...document.querySelectorAll('.all button')].find(b => b.innerText.trim() === 'tokens').click()"
    assert page.evaluate(rows) == ["runs/equinox", "runs/lecture", "runs/third"]
    page.evaluate(by_answer)
    page.evaluate(by_answer)
    assert page.evaluate(rows) == ["runs/lecture", "runs/equinox", "runs/third"]
    page.evaluate(
        "const s = document.querySelector('select'); s.value = 'unfinished'; s.dispatchEvent(new Event('change'))"
    )
    assert page.evaluate(rows) == ["runs/third"] and page.evaluate(CUT) == []
    page.evaluate(
        "s.value = ''; s.dispatchEvent(new Event('change')); document.querySelector('.all a').click()"
    )
    page.until("document.title.startsWith('Find five facts')")
    assert page.errors == []


def test_two_runs_are_compared_call_by_call(opened):
    page = opened(RUNS)
    choose = "for (const n of ['equinox', 'equinox-aorchestra']) document.querySelector(`[aria-label='compare ${n}']`).click()"
    page.evaluate(choose)
    shown = text_of(page, "#right")
    assert "The answers differ; both ended as answered; the cost is the same." in shown
    assert "differ, first at r1/main/a1." in shown and "only equinox" in shown
    assert page.evaluate("document.querySelector('#right td a').getAttribute('href')").endswith(
        "equinox/index.html#r1/main/a1"
    )


def test_the_runs_of_a_folder_share_style_and_script(tmp_path):
    shutil.copytree(RUNS / "equinox", tmp_path / "a/b")
    shutil.copytree(RUNS / "lecture", tmp_path / "c")
    report.write(tmp_path)
    pages = tmp_path / "report-runs"
    assert {f.name for f in pages.glob("*.*")} == {"page.css", "page.js"}
    for name, answer in (("a/b", "2023-09-23"), ("c", "20 minutes")):
        file = pages / name / "index.html"
        assert b"<style>" not in file.read_bytes() and b"use strict" not in file.read_bytes()
        with browser.opened(file.as_uri()) as page:
            assert answer in text_of(page, "header")
            assert page.evaluate("getComputedStyle(document.body).margin") == "0px"
