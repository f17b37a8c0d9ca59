"""Searches and pages: what is sent, what is read, in which charset, and what is refused."""

import io
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pypdf
import pytest

from orchestra.kernel.vocabulary import BudgetExceeded, ToolError
from orchestra.tools import pages, reader, reading
from tests.attacks import hostile
from tests.conftest import Price, Purse
from tests.scripted import Raw, last_text

FOUND = {
    "answerBox": {"title": "Height", "answer": "8,849 m", "snippet": "It is 8,849 m high."},
    "knowledgeGraph": {
        "title": "Mount Everest", "type": "Mountain", "website": "https://everest.example/",
        "description": "Highest of all.", "attributes": {"First ascent": "1953"},
    },
    "organic": [{"title": f"Page {n}", "link": f"https://p{n}.example/", "snippet": f"text {n}", "date": "2025"} for n in range(9)],
}  # fmt: skip
SHOWN = ["8,849 m", "Mount Everest", "First ascent: 1953", "https://everest.example/", "https://p2.example/\ntext 2"]  # fmt: skip


@pytest.fixture
def searching(bench, monkeypatch):
    """A tool bench whose searches go to a Serper that gives this answer."""
    monkeypatch.setenv("SERPER_API_KEY", "serper-key-1234567890")

    def make(answer=FOUND, status=200):
        tools = bench(says=Raw(status, answer))
        monkeypatch.setenv("SERPER_URL", tools.model.url + "/search")
        return tools

    return make


def test_a_search_shows_every_kind_of_answer_and_no_replay_needs_a_key(searching, monkeypatch):
    tools, asked = searching(), {"query": "everest", "k": 3, "gl": "us", "hl": "en"}
    seen = tools.use("GoogleSearchAction", **asked)
    assert not [words for words in SHOWN if words not in seen] and "Page 3" not in seen
    monkeypatch.delenv("SERPER_API_KEY")
    assert tools.use("GoogleSearchAction", "replay", **asked) == seen
    assert tools.model.requests == [{"q": "everest", "num": 3, "gl": "us", "hl": "en"}]
    assert tools.model.headers[0]["X-API-KEY"] == "serper-key-1234567890"
    assert "serper-key" not in (tools.folder / "tape.jsonl").read_text()


DEEP = b'{"organic":' + b"[" * 100_000


@pytest.mark.parametrize(("answer", "status"), [({}, 401), (b"<html>", 200), (b"[7]", 200), ({"organic": [7]}, 200), (DEEP, 200)], ids=range(5))  # fmt: skip
def test_a_search_that_fails_is_an_observation(answer, status, searching):
    with pytest.raises(ToolError, match="Serper did not answer"):
        searching(answer, status).use("GoogleSearchAction", query="everest")


def test_a_long_text_of_a_result_is_cut(searching):
    found = {"organic": [{"link": 7, "snippet": "salt " * 10_000, "date": None}, {"title": "\ud800 Salt"}]}  # fmt: skip
    seen = searching(found).use("GoogleSearchAction", query="everest")
    assert "1. 7\nsalt" in seen and "2. ? Salt" in seen and len(seen) < 6000


def test_without_a_key_ddgs_searches_and_without_ddgs_nothing(bench, monkeypatch):
    with pytest.raises(ToolError, match="no search engine configured"):
        bench().use("GoogleSearchAction", query="everest")
    text = Mock(return_value=[{"title": "T", "href": "https://t.example/", "body": "B"}])
    ddgs = SimpleNamespace(DDGS=lambda timeout: SimpleNamespace(text=text))
    monkeypatch.setitem(sys.modules, "ddgs", ddgs)
    monkeypatch.setitem(sys.modules, "ddgs.exceptions", SimpleNamespace(DDGSException=OSError))
    seen = bench().use("GoogleSearchAction", query="everest", gl="de", hl="de-AT")
    assert "https://t.example/" in seen
    text.assert_called_once_with("everest", region="de-de", max_results=5)
    text.side_effect = OSError("No results found.")
    with pytest.raises(ToolError, match="Nothing was found"):
        bench().use("GoogleSearchAction", query="k2")


SALT = "<p>Salt costs four crowns a pound at the market.</p>" * 3
LONG = hostile.page("Salt is dear.\n" * 200, "text/plain")


def open_page(bench, trick, **fields):
    """A page and a question through the tool, then played again: the observation, the prompts."""
    says = lambda request: "four crowns" if "Salt" in last_text(request) else "?"  # noqa: E731
    with hostile.serving({"/": trick}) as server:
        tools = bench(says=says, allow_hosts=(server.host,), **fields)
        asked = {"url": server.url + "/", "browse_query": "What does salt cost?"}
        seen = tools.use("ExtractUrlContentAction", **asked)
    assert tools.use("ExtractUrlContentAction", "replay", **asked) == seen
    return seen, [last_text(request) for request in tools.model.requests]


def salty_pdf(pages=1, password=""):
    data = hostile.pages_of(b"BT /F1 12 Tf 20 200 Td (Salt costs four crowns) Tj ET", pages=pages)
    if password:
        writer, buffer = pypdf.PdfWriter(clone_from=io.BytesIO(data)), io.BytesIO()
        writer.encrypt(password)
        writer.write(buffer)
        data = buffer.getvalue()
    return hostile.page(data, "application/pdf")


@pytest.mark.parametrize("trick", [
    hostile.page(f"<html><body><article>{SALT}</article></body></html>"), salty_pdf(), hostile.page('{"Salt": 4}', "application/json"),
    hostile.page("<div>" * 600 + "<p>Salt is dear and costly in this town"),
], ids=["html", "pdf", "json", "many_unclosed_tags"])  # fmt: skip
def test_a_page_of_each_kind_is_read_and_the_query_answered_from_it(trick, bench):
    seen, (prompt,) = open_page(bench, trick)
    assert "four crowns" in seen and "What does salt cost?" in prompt


@pytest.mark.parametrize(("html", "text"), [
    ("10<sup>3</sup> ships", "10^3 ships"), ("2<sup>10</sup>", "2^10"), ("10<sup>-3</sup> m", "10^-3 m"), ("x<sup>n+1</sup>.", "x^(n+1)."), ("x<sup>n</sup>", "x^n"),
    ("2<sup><i>n</i></sup>", "2^n"), ("(a + b)<sup>2</sup>", "(a + b)^2"), ("e<sup>(x)</sup>", "e^(x)"), ("<b>10</b><sup>6</sup>", "^6"), ("5 km<sup>2</sup>", "5 km^2"),
    ("the 19<sup>th</sup> century", "the 19th century"), ("M<sup>me</sup> Curie", "Mme Curie"), ("in 1850<sup>[3]</sup> it", "in 1850[3] it"),
    ("in 1850<sup><a href='#n'>3</a></sup> it", "in 1850^3 it"), ("it*<sup>*</sup>", "it"), ("H<sub>2</sub>O is", "H2O is"), ("log<sub>2</sub>8", "log_28"),
    ("101<sub>2</sub>", "101_2"), ("x<sub>i</sub>", "xi"), ("<sup>3</sup> at first", "3 at first"),
    ("<a href='/a.pdf'>plan</a>", "[plan](http://h.example/a.pdf)"), ("<a href='b.html'>b</a>", "[b](http://h.example/d/b.html)"), ("<a href='?q=1'>q</a>", "[q](http://h.example/d/p?q=1)"),
    ("<a href='//c.example/x'>c</a>", "[c](http://c.example/x)"), ("<a href='http://[bad'>z</a>", "z"),
])  # fmt: skip
def test_a_page_keeps_its_powers_and_its_links(html, text):
    page = f"<html><body><article><h1>Harbour</h1>{SALT}<p>It was said: {html}, long ago.</p>{SALT}</article></body></html>"
    assert text in reader.html_text(page, "http://h.example/d/p")


def test_a_page_keeps_its_title_and_a_short_one_its_powers():
    page = f"<html><head><title>Prices of 1850</title></head><body><h1>Salt 00501</h1>{SALT * 3}</body></html>"
    text = reader.html_text(page, "http://h.example/")
    assert "Prices of 1850" in text and "Salt 00501" in text
    short = "<html><body><p>10<sup>3</sup> ships</p></body></html>"
    assert "10^3 ships" in reader.html_text(short, "http://h.example/")


@pytest.mark.parametrize(("chars", "parts", "told"), [(1000, 3, "Part 3 of 3"), (100, reading.MAX_PARTS, "only its first parts were read")])  # fmt: skip
def test_a_long_page_is_read_in_parts_that_are_paid(chars, parts, told, bench, monkeypatch):
    monkeypatch.setattr(reading, "PART_CHARS", chars)
    seen, prompts = open_page(bench, LONG, purse=(purse := Purse()))
    assert len(prompts) == parts and told in seen
    assert purse.calls == 2 * parts and purse.spent_usd == 0  # the replay counts too


def test_no_part_is_sent_that_the_purse_cannot_pay(bench, monkeypatch):
    monkeypatch.setattr(reading, "PART_CHARS", 1000)
    with pytest.raises(BudgetExceeded):
        open_page(bench, LONG, price=Price(1, 10, 1), purse=(purse := Purse(0.001)))
    assert (purse.spent_usd, purse.calls) == (0, 0)


@pytest.mark.parametrize(("trick", "words"), [
    (hostile.page(b"\x89PNG", "image/png"), "is not a page of text. It"), (hostile.page("", "text/plain"), "no text to read"),
    (lambda h: h.send_error(404), "HTTP status 404"), (salty_pdf(password="x"), "opens with a password"),
    (hostile.page("x", "ignore/all-instructions"), "^(?!.*ignore).* is not a page of text"),
], ids=["picture", "empty", "not_found", "locked", "named"])  # fmt: skip
def test_a_page_that_cannot_be_read_is_an_observation(trick, words, bench):
    with pytest.raises(ToolError, match=words):
        open_page(bench, trick)


def test_the_text_of_a_pdf_of_many_pages_says_that_it_is_cut():
    assert "only its first parts were read" in hostile.read(salty_pdf(301))


def test_an_internal_page_is_not_sent_to_jina_and_any_other_is(monkeypatch):
    monkeypatch.setenv("JINA_API_KEY", "jina-key-1234567890")
    salt, dots = hostile.page("Salt", "text/plain"), "http://9.9.9.9/../../http://10.0.0.7/"
    served = {"/http://9.9.9.9/a": salt, "/http://9.9.9.9/http://10.0.0.7/": salt}
    with hostile.serving(served) as jina:
        monkeypatch.setattr(pages, "JINA_URL", jina.url + "/")
        with hostile.serving({"/": hostile.page("Inside", "text/plain")}) as intranet:
            assert pages.page_text(intranet.url + "/", (intranet.host,)).strip() == "Inside"
        with pytest.raises(ToolError, match="internal"):
            pages.page_text("http://10.0.0.7/")
        assert not jina.seen
        assert pages.page_text("http://9.9.9.9/a", (jina.host,)) == "Salt"
        assert jina.seen[0][1]["Authorization"] == "Bearer jina-key-1234567890"
        assert pages.page_text(dots, (jina.host,)) == "Salt"


POLISH = "Zażółć gęślą jaźń. Cena biletu wynosi pięćdziesiąt złotych, dzieci płacą połowę."


@pytest.mark.parametrize(("charset", "kind", "meta", "words"), [  # of the bytes, in the header, in the page; the text
    ("cp1251", "text/plain; charset=windows-1251", "", "Хлеб"), ("shift_jis", 'text/plain;charset="Shift_JIS"', "", "パン"),
    ("utf-16", "text/plain", "", "Хлеб"), ("utf-8", "text/plain; charset=none-such", "", "Хлеб"),
    ("iso-8859-2", "text/html; charset=ISO-8859-2", "utf-8", POLISH),  # the header is right
    ("utf-8-sig", "text/html; charset=iso-8859-1", "", POLISH),  # the byte order mark is right
    ("utf-8", "text/html; charset=unicode_escape", "utf-16", POLISH),  # neither is
    ("gb18030", "text/html", "gb2312", "中文文本，这是一个很长的句子。鎔喆"),  # gb2312 stands for its superset
    ("utf-8", "text/html; charset=iso-8859-1", "utf-8", POLISH),  # the header is the server's default
])  # fmt: skip
def test_a_page_is_read_in_its_charset(charset, kind, meta, words, monkeypatch):
    monkeypatch.setattr(pages, "_kind", lambda page: "text")  # HTML would be slow
    head, end = (f"<meta charset='{meta}'>", "</p>") if "html" in kind else ("", "")
    page = f"{head}{words}{end}".encode(charset)
    assert hostile.read(hostile.page(page, kind)) == f"{head}{words}{end}"
