from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
import time

import pytest

from orchestra.money import Purse
from orchestra.vocabulary import BudgetExceeded, Price
from tests.attacks import hostile
from tests.conftest import pool_at
from tests.scripted import Raw, last_text
from tools import ToolError, reading, search, visit

FOUND = {
    "answerBox": {"title": "Height", "answer": "8,849 m", "snippet": "It is 8,849 m high."},
    "knowledgeGraph": {
        "title": "Mount Everest", "type": "Mountain", "website": "https://everest.example/",
        "description": "Highest of all.", "attributes": {"First ascent": "1953"},
    },
    "organic": [
        {"title": f"Page {n}", "link": f"https://p{n}.example/", "snippet": f"text {n}", "date": "2025"}
        for n in range(9)
    ],
}  # fmt: skip


@pytest.fixture
def serper(endpoint, monkeypatch):
    """Serper's /search, as far as it is used here."""
    server = endpoint(lambda _: Raw(200, FOUND))
    monkeypatch.setenv("SERPER_API_KEY", "serper-key-1234567890")
    monkeypatch.setattr(search, "SERPER_URL", server.url + "/search")
    return server


def test_a_search_asks_serper_in_its_format(serper, bench):
    bench().use("GoogleSearchAction", query="everest", k=3, gl="us", hl="en")
    assert serper.requests == [{"q": "everest", "num": 3, "gl": "us", "hl": "en"}]
    headers = {name.lower(): value for name, value in serper.headers[0].items()}
    assert headers["x-api-key"] == "serper-key-1234567890"


def test_a_search_shows_every_kind_of_answer(serper, bench):
    observation = bench().use("GoogleSearchAction", query="everest", k=3)
    for words in (
        "8,849 m",
        "Mount Everest",
        "First ascent: 1953",
        "https://everest.example/",
        "Page 2",
        "https://p2.example/",
    ):
        assert words in observation
    assert "Page 3" not in observation


def test_a_search_is_replayed_without_a_key_and_without_network(serper, bench, monkeypatch):
    tools = bench()
    observation = tools.use("GoogleSearchAction", query="everest")
    monkeypatch.delenv("SERPER_API_KEY")
    assert tools.use("GoogleSearchAction", "replay", query="everest") == observation
    assert len(serper.requests) == 1
    assert "serper-key" not in (tools.folder / "tape.jsonl").read_text()


@pytest.mark.parametrize("answer", [Raw(401, {"message": "no"}), Raw(200, b"<html>"), Raw(500)])
def test_a_search_that_fails_is_an_observation(answer, serper, bench, endpoint, monkeypatch):
    monkeypatch.setattr(search, "SERPER_URL", endpoint(lambda _: answer).url)
    with pytest.raises(ToolError, match="Serper did not answer"):
        bench().use("GoogleSearchAction", query="everest")


def test_a_search_that_drips_ends_in_time(bench, no_keys, monkeypatch):
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        connection, _ = listener.accept()
        with contextlib.suppress(OSError), connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n{")
            while True:
                connection.sendall(b" ")
                time.sleep(0.05)

    threading.Thread(target=drip, daemon=True).start()
    monkeypatch.setenv("SERPER_API_KEY", "serper-key-1234567890")
    monkeypatch.setenv("SERPER_URL", f"http://127.0.0.1:{listener.getsockname()[1]}/search")
    monkeypatch.setattr(search, "TIMEOUT_S", 0.4)
    with (
        contextlib.closing(listener),
        pytest.raises(ToolError, match="did not answer the search: Timeout"),
    ):
        bench().use("GoogleSearchAction", query="everest")


DEEP, BIG = b'{"organic":' + b"[" * 100_000, b'{"organic": []' + b" " * (8 << 20) + b"}"


@pytest.mark.parametrize("answer", [DEEP, BIG])
def test_a_search_that_is_too_deep_or_too_big_is_an_observation(
    answer, serper, bench, endpoint, monkeypatch
):
    monkeypatch.setattr(search, "SERPER_URL", endpoint(lambda _: Raw(200, answer)).url)
    with pytest.raises(ToolError, match="Serper did not answer"):
        bench().use("GoogleSearchAction", query="everest")


ODD = {
    "title": {"a": [1]},
    "link": 7,
    "snippet": "salt " * 10_000,
    "snippetHighlighted": [None, {}],
}


def test_what_is_no_text_in_a_result_is_left_out_and_a_huge_one_cut(
    serper, bench, endpoint, monkeypatch
):
    server = endpoint(lambda _: Raw(200, {"organic": [ODD, {"title": "\ud800 Salt"}]}))
    monkeypatch.setattr(search, "SERPER_URL", server.url)
    observation = bench().use("GoogleSearchAction", query="everest")
    assert "{" not in observation and "None" not in observation and "? Salt" in observation
    assert len(observation) < 6000 and "1. 7\nsalt" in observation


def test_without_any_search_engine_that_is_told(bench, no_keys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ddgs", None)
    with pytest.raises(ToolError, match="no search engine configured"):
        bench().use("GoogleSearchAction", query="everest")


def test_without_a_key_ddgs_is_asked(bench, no_keys, monkeypatch):
    pytest.importorskip("ddgs")
    asked = {}

    def text(self, query, **how):
        asked.update(how, query=query)
        return [{"title": "T", "href": "https://t.example/", "body": "B"}]

    monkeypatch.setattr("ddgs.ddgs.DDGS.text", text)
    assert "https://t.example/" in bench().use(
        "GoogleSearchAction", query="everest", gl="de", hl="de"
    )
    assert asked == {"query": "everest", "region": "de-de", "max_results": 5}


ARTICLE = (
    "<html><title>T</title><body><article><h1>Prices</h1>"
    + "<p>Salt costs four crowns a pound at the market.</p>" * 3
    + "</article></body></html>"
)


def open_page(bench, trick, endpoint, **fields):
    model = endpoint(lambda request: "four crowns" if "Salt" in last_text(request) else "?")
    with hostile.serving({"/": trick}) as server:
        tools = bench(endpoint=model, allow_hosts=(server.host,), **fields)
        asked = {"url": server.url + "/", "browse_query": "What does salt cost?"}
        return tools.use("ExtractUrlContentAction", **asked), model, tools, asked


def test_a_page_is_read_and_the_query_answered_from_it(bench, endpoint, no_keys):
    pytest.importorskip("trafilatura")
    observation, model, tools, asked = open_page(bench, hostile.page(ARTICLE), endpoint)
    assert "four crowns" in observation and "What does salt cost?" in last_text(model.requests[0])
    assert tools.use("ExtractUrlContentAction", "replay", **asked) == observation


def pdf(text, pages=1, password=""):
    pypdf = pytest.importorskip("pypdf")
    name, make = pypdf.generic.NameObject, pypdf.generic.DictionaryObject
    writer, stream, buffer = pypdf.PdfWriter(), pypdf.generic.DecodedStreamObject(), io.BytesIO()
    stream.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode())
    font = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    fonts = make({name("/F1"): make({name(k): name(v) for k, v in font.items()})})
    for _ in range(pages):
        page = writer.add_blank_page(300, 300)
        page[name("/Contents")] = writer._add_object(stream)
        page[name("/Resources")] = make({name("/Font"): fonts})
    if password:
        writer.encrypt(password)
    writer.write(buffer)
    return hostile.page(buffer.getvalue(), "application/pdf")


def test_a_pdf_is_read(bench, endpoint, no_keys):
    assert "four crowns" in open_page(bench, pdf("Salt costs four crowns"), endpoint)[0]


CHARSETS = [
    ("cp1251", "text/plain; charset=windows-1251"), ("shift_jis", 'text/plain;charset="Shift_JIS"'),
    ("utf-16", "text/plain"), ("utf-8", "text/plain; charset=none-such"),
]  # fmt: skip


@pytest.mark.parametrize(("charset", "kind"), CHARSETS)
def test_a_text_is_read_in_its_charset(charset, kind, no_keys):
    words = "パン" if charset == "shift_jis" else "Хлеб"
    with hostile.serving({"/": hostile.page(words.encode(charset), kind)}) as server:
        assert visit.page_text(server.url + "/", (server.host,)) == words


POLISH = "Zażółć gęślą jaźń. Cena biletu wynosi pięćdziesiąt złotych, dzieci płacą połowę."
JAPANESE = "これは京都の天気についてのページです。入場料は五百円です。"
HTML_CHARSETS = [
    ("iso-8859-2", POLISH, "text/html; charset=ISO-8859-2", "utf-8"),  # the header is right
    ("iso-2022-jp", JAPANESE, "text/html; charset=iso-2022-jp", ""),
    ("utf-8-sig", POLISH, "text/html; charset=iso-8859-1", ""),  # the byte order mark is right
    ("iso-8859-2", POLISH, "text/html", "iso-8859-2"),
    ("cp1252", "“Salt” costs four crowns – a pound", "text/html; charset=latin1", ""),
    ("utf-8", POLISH, "text/html; charset=unicode_escape", "utf-16"),  # neither is
    ("gb18030", "中文文本，这是一个很长的句子。鎔喆", "text/html", "gb2312"),  # means more
    ("cp949", "한국어 텍스트입니다. 똠방각하 펲시콜라.", "text/html", "ks_c_5601-1987"),
    ("cp932", JAPANESE + "①髙", "text/html", "Shift_JIS"),
    ("cp932", JAPANESE + "①髙", "text/html; charset=windows-31j", ""),
    ("cp1254", "ışğ “Salt” costs four crowns", "text/html", "iso-8859-9"),
    ("cp1252", "“Salt” costs four crowns – a pound", "text/html", "us-ascii"),
    ("utf-8", POLISH, "text/html; charset=iso-8859-1", "utf-8"),  # the header is a server's habit
    ("utf-8", POLISH, "text/html; charset=utf-7", ""),
]


@pytest.mark.parametrize(("charset", "words", "kind", "meta"), HTML_CHARSETS)
def test_a_page_is_read_in_the_charset_that_its_header_names(charset, words, kind, meta, no_keys):
    pytest.importorskip("trafilatura")
    html = f"<html><head><meta charset='{meta}'></head><body><p>{words}</p></body></html>"
    with hostile.serving({"/": hostile.page(html.encode(charset), kind)}) as server:
        assert visit.page_text(server.url + "/", (server.host,)).strip() == words


@pytest.mark.parametrize("hidden", [
    "<!-- {} -->", "<!--><script>x = '{}'</script>", "<STYLE>/* {} */</STYLE>", "<script>'<!--'</script><!-- {} --->",
])  # fmt: skip
def test_a_charset_in_a_comment_or_a_script_is_none(hidden, no_keys):
    pytest.importorskip("trafilatura")
    head = hidden.format('<meta charset="koi8-r">') + "<meta charset='iso-8859-2'>"
    html = f"<html><head>{head}</head><body><p>{POLISH}</p></body></html>".encode("iso-8859-2")
    with hostile.serving({"/": hostile.page(html, "text/html")}) as server:
        assert visit.page_text(server.url + "/", (server.host,)).strip() == POLISH


@pytest.mark.parametrize(
    "page", ["<div>" * 100_000 + "Salt is dear", "<p>" + "Salt is dear " * 800_000]
)
def test_a_page_too_deep_or_too_long_for_the_parser_is_read_too(page, no_keys):
    pytest.importorskip("trafilatura")
    with hostile.serving({"/": hostile.page(page)}) as server:
        assert visit.page_text(server.url + "/", (server.host,)).startswith("Salt is dear")


@pytest.mark.parametrize(
    ("pages", "password", "told"),
    [(301, "", "only its first parts were read"), (1, "x", "opens with a password")],
)
def test_what_of_a_pdf_is_not_read_is_told(pages, password, told, no_keys):
    with hostile.serving({"/": pdf("Salt", pages, password)}) as server:
        try:
            text = visit.page_text(server.url + "/", (server.host,))
        except ToolError as failure:
            text = str(failure)
        assert told in text


def test_a_long_page_is_read_in_parts_side_by_side(bench, endpoint, no_keys, monkeypatch):
    monkeypatch.setattr(reading, "PART_CHARS", 1000)
    trick = hostile.page("Salt is dear.\n" * 200, "text/plain")
    observation, model, tools, asked = open_page(bench, trick, endpoint)
    assert len(model.requests) == 3 and "Part 3 of 3" in observation
    assert tools.use("ExtractUrlContentAction", "replay", **asked) == observation


def test_a_very_long_page_is_cut_and_that_is_told(bench, endpoint, no_keys, monkeypatch):
    monkeypatch.setattr(reading, "PART_CHARS", 100)
    observation, model, *_ = open_page(
        bench, hostile.page("Salt is dear.\n" * 200, "text/plain"), endpoint
    )
    assert (
        len(model.requests) == reading.MAX_PARTS and "only its first parts were read" in observation
    )


def test_what_the_parts_cost_is_paid_from_the_purse(bench, endpoint, no_keys, monkeypatch):
    monkeypatch.setattr(reading, "PART_CHARS", 1000)
    purse = Purse()
    open_page(bench, hostile.page("Salt is dear.\n" * 200, "text/plain"), endpoint, purse=purse)
    assert purse.calls == 3 and purse.spent_usd == 0


def test_no_part_is_asked_that_the_purse_can_not_pay(
    bench, endpoint, no_keys, monkeypatch, tmp_path
):
    monkeypatch.setattr(reading, "PART_CHARS", 1000)
    model = endpoint(lambda _: "dear")
    with hostile.serving({"/": hostile.page("Salt is dear.\n" * 200, "text/plain")}) as server:
        purse = Purse(0.001)
        tools = bench(endpoint=model, allow_hosts=(server.host,), purse=purse)
        tools.pool = pool_at(model.url, price=Price(1, 10, 1))
        with pytest.raises(BudgetExceeded):
            tools.use("ExtractUrlContentAction", url=server.url + "/", browse_query="?")
    assert purse.spent_usd <= 0.001 and not model.requests


def test_jina_is_asked_where_its_key_is_set(bench, endpoint, monkeypatch):
    monkeypatch.setenv("JINA_API_KEY", "jina-key-1234567890")
    with hostile.serving({"/http://example.com/a": hostile.page("Salt", "text/plain")}) as jina:
        monkeypatch.setattr(visit, "JINA_URL", jina.url + "/")
        assert visit.page_text("http://example.com/a", (jina.host,)) == "Salt"
        assert jina.seen[0][1]["Authorization"] == "Bearer jina-key-1234567890"


@pytest.mark.parametrize(("trick", "words"), [
    (hostile.page(b"\x89PNG", "image/png"), "no page of text but image/png"),
    (hostile.page("", "text/plain"), "no text to read"),
    (lambda h: h.send_error(404), "HTTP status 404"),
])  # fmt: skip
def test_a_page_that_can_not_be_read_is_an_observation(trick, words, bench, endpoint, no_keys):
    with pytest.raises(ToolError, match=words):
        open_page(bench, trick, endpoint)


def test_json_is_read_as_text(bench, endpoint, no_keys):
    trick = hostile.page(json.dumps({"Salt": 4}), "application/json")
    assert "four crowns" in open_page(bench, trick, endpoint)[0]
