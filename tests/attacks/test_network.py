"""What a URL, a name server or a web server tries. Nothing internal is reached; every refusal is an observation."""

from __future__ import annotations

import contextlib
import io
import resource
import socket
import time
import zipfile

import pytest

from tests.attacks import hostile
from tests.attacks.conftest import KEY
from tools import ToolError, guard, visit

INTERNAL = {
    "loopback": "http://127.0.0.1/", "another_loopback": "http://127.8.9.1/", "localhost": "http://localhost/",
    "localhost_with_a_dot": "http://localhost./", "decimal": "http://2130706433/", "hexadecimal": "http://0x7f000001/",
    "octal": "http://0177.0.0.1/", "mixed_forms": "http://0x7f.0.1/", "short": "http://127.1/", "zero": "http://0/",
    "unspecified": "http://0.0.0.0/", "private_10": "http://10.0.0.1/", "private_172": "http://172.16.5.4/",
    "private_192": "http://192.168.1.1/", "carrier": "http://100.64.0.1/", "link_local": "http://169.254.1.1/",
    "metadata": "http://169.254.169.254/latest/meta-data/", "metadata_decimal": "http://2852039166/",
    "metadata_alibaba": "http://100.100.100.200/", "metadata_azure": "http://168.63.129.16/",
    "metadata_oracle": "http://192.0.0.192/", "multicast": "http://224.0.0.1/", "broadcast": "http://255.255.255.255/",
    "reserved": "http://240.0.0.1/", "documentation": "http://192.0.2.1/", "benchmarking": "http://198.18.0.1/",
    "ipv6_loopback": "http://[::1]/", "ipv6_unspecified": "http://[::]/", "ipv6_mapped": "http://[::ffff:127.0.0.1]/",
    "ipv6_mapped_hex": "http://[::ffff:7f00:1]/", "ipv6_mapped_metadata": "http://[::ffff:169.254.169.254]/",
    "ipv6_compatible": "http://[::127.0.0.1]/", "ipv6_link_local": "http://[fe80::1]/",
    "ipv6_unique_local": "http://[fd00:ec2::254]/", "ipv6_site_local": "http://[fec0::1]/",
    "ipv6_multicast": "http://[ff02::1]/", "ipv6_6to4": "http://[2002:7f00:1::]/", "ipv6_teredo": "http://[2001::7f00:1]/",
    "ipv6_nat64": "http://[64:ff9b::7f00:1]/", "ipv6_nat64_local": "http://[64:ff9b:1::a00:1]/",
    "ipv6_with_a_zone": "http://[fe80::1%25lo]/", "another_port": "http://127.0.0.1:22/",
    "metadata_octal": "http://0251.0376.0251.0376/", "metadata_hexadecimal_parts": "http://0xa9.0xfe.0xa9.0xfe/",
    "two_parts": "http://10.1/", "leading_zeros": "http://127.000.000.001/", "a_dot_at_the_end": "http://127.0.0.1./",
    "percent_encoded": "http://%31%32%37.0.0.1/", "a_null_in_the_host": "http://127.0.0.1%00.example.com/",
    "ipv6_in_full": "http://[0:0:0:0:0:0:0:1]/", "ipv6_translated": "http://[::ffff:0:127.0.0.1]/",
    "ipv6_zone_of_loopback": "http://[::1%25lo]/", "ipv6_mapped_with_a_zone": "http://[::ffff:127.0.0.1%25lo]/",
    "ipv6_6to4_of_metadata": "http://[2002:a9fe:a9fe::1]/", "ipv6_discard": "http://[100::1]/",
    "ipv6_documentation": "http://[2001:db8::1]/", "ipv6_benchmarking": "http://[2001:2::1]/",
    "capital_letters": "HTTP://LOCALHOST/", "bold_letters": "http://𝐥𝐨𝐜𝐚𝐥𝐡𝐨𝐬𝐭/", "halfwidth_dots": "http://127｡0｡0｡1/",
    "credentials_that_hide_the_host": "http://example.com:80#@127.0.0.1/", "this_machine_s_name": "http://{here}/",
    "circled_digits": "http://①②⑦.⓪.⓪.①/", "fullwidth_dots": "http://127。0。0。1/",
}  # fmt: skip

MALFORMED = {
    "file": "file:///etc/passwd", "gopher": "gopher://127.0.0.1:6379/_INFO", "ftp": "ftp://127.0.0.1/x",
    "data": "data:text/html,hello", "javascript": "javascript:alert(1)", "dict": "dict://127.0.0.1:11211/",
    "no_scheme": "127.0.0.1/x", "only_slashes": "//127.0.0.1/x", "user_and_password": "http://user:pass@example.com/",
    "user_that_looks_like_a_host": "http://example.com@127.0.0.1/", "empty_user": "http://@127.0.0.1/",
    "backslash_host": "http://example.com\\@127.0.0.1/", "tab_in_the_host": "http://exa\tmple.com/",
    "line_break_and_header": "http://example.com/\r\nX-Evil: 1", "space": "http://example.com/ HTTP/1.1",
    "no_host": "http:///x", "port_too_large": "http://example.com:99999/", "nothing": "", "very_long": "http://e.com/" + "a" * 9000,
    "a_key_in_the_query": f"http://example.com/?k={KEY}",
}  # fmt: skip


@pytest.fixture(scope="module")
def bomb() -> hostile.Trick:
    return hostile.gzip_bomb()


@pytest.mark.parametrize("form", INTERNAL)
def test_an_internal_address_is_refused(form):
    with pytest.raises(ToolError):
        guard.fetch(INTERNAL[form].replace("{here}", socket.gethostname()), timeout_s=5)


@pytest.mark.parametrize("form", MALFORMED)
def test_a_url_that_is_none_is_refused(form, planted):
    with pytest.raises(guard.Refused):
        guard.fetch(MALFORMED[form], timeout_s=5)


@pytest.mark.parametrize(
    "address", ["10.0.0.5", "::1", "fd00::1", "169.254.169.254", "::ffff:10.0.0.5", "fe80::1%1"]
)
def test_a_name_that_means_an_internal_address_is_refused(address, monkeypatch):
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: answer)
    with pytest.raises(guard.Refused):
        guard.fetch("http://innocent.example/")


def test_a_name_with_one_internal_address_among_public_ones_is_refused(monkeypatch):
    rows = [(2, 1, 6, "", (a, 80)) for a in ("93.184.215.14", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: rows)
    with pytest.raises(guard.Refused):
        guard.fetch("http://innocent.example/")


def test_a_name_that_changes_after_the_check_gains_nothing(monkeypatch):
    answers, connected = iter(["93.184.215.14", "127.0.0.1", "127.0.0.1"]), []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: [(2, 1, 6, "", (next(answers), 80))])

    def connect(place, *_):
        connected.append(place)
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(ToolError):
        guard.fetch("http://rebinding.example/")
    assert connected == [("93.184.215.14", 80)]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_an_internal_address_is_refused(status):
    with hostile.serving({"/secret": hostile.page("GOT")}) as inner:
        with hostile.serving({"/": hostile.redirect(inner.url + "/secret", status)}) as outer:
            with pytest.raises(guard.Refused):
                guard.fetch(outer.url + "/", allow=[outer.host])
        assert not inner.seen


@pytest.mark.parametrize(
    "target",
    [
        *("file:///etc/passwd", "gopher://x/", "//169.254.169.254/x", "http://u:p@e.com/"),
        *("http://[::1", "http://127.1/", "data:text/html,x", "http://e.com/" + "a" * 5000),
    ],
)
def test_a_redirect_to_what_may_not_be_fetched_is_not_followed(target):
    with hostile.serving({"/": hostile.redirect(target)}) as server:
        with pytest.raises(ToolError):
            guard.fetch(server.url + "/", allow=[server.host])
        assert len(server.seen) == 1


def test_a_chain_of_redirects_ends():
    with hostile.serving({"/": hostile.redirect("/?again")}) as server:
        with pytest.raises(guard.Refused, match="redirects more than"):
            guard.fetch(server.url + "/", allow=[server.host])
        assert len(server.seen) == guard.MAX_REDIRECTS + 1


def test_a_key_does_not_go_with_a_redirect_to_another_host():
    with (
        hostile.serving({"/": hostile.page("x")}) as other,
        hostile.serving({"/": hostile.redirect(other.url + "/")}) as server,
    ):
        guard.fetch(server.url + "/", [server.host, other.host], {"Authorization": "Bearer x"})
        assert "Authorization" in server.seen[0][1] and "Authorization" not in other.seen[0][1]


@pytest.mark.parametrize("allowed", ["[::1]:9", "[::1]", "::1"])
def test_an_ipv6_address_is_allowed_as_a_url_writes_it(allowed):
    assert guard.addresses(guard.checked("http://[::1]:9/"), [allowed]) == ["::1"]
    with pytest.raises(guard.Refused):
        guard.addresses(guard.checked("http://[::1]:9/"), ["[::2]:9", "[::1]:8"])


def test_allowing_one_port_allows_no_other():
    with (
        hostile.serving({"/": hostile.page("x")}) as one,
        hostile.serving({"/": hostile.page("x")}) as other,
    ):
        assert guard.fetch(one.url + "/", [one.host]).body == b"x"
        with pytest.raises(guard.Refused):
            guard.fetch(other.url + "/", [one.host])


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("layers", [1, 2])
def test_a_gzip_bomb_is_stopped_before_it_fills_the_memory(layers):
    with hostile.serving({"/": hostile.gzip_bomb(layers)}) as server:
        before = peak_mib()
        with pytest.raises(ToolError, match="MiB"):
            guard.fetch(server.url + "/", [server.host])
    assert peak_mib() - before < 100


def test_a_deflate_bomb_is_stopped_too():
    with hostile.serving({"/": hostile.deflate_bomb}) as server:
        with pytest.raises(ToolError, match="MiB"):
            guard.fetch(server.url + "/", [server.host])


ANSWERS = {
    "no_answer": b"", "no_http": b"220 mail.example ESMTP\r\n", "a_negative_length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nx",
    "two_lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 99\r\n\r\nx",
    "a_chunk_of_no_size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx", "a_huge_chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
    "broken_gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nxxxx", "a_long_first_line": b"HTTP/1.1 200 " + b"x" * 70_000,
    "a_status_that_is_none": b"HTTP/1.1 9999 OK\r\n\r\n", "a_redirect_in_no_language": b"HTTP/1.1 302 x\r\nLocation: \xff\xfe\x00://\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_that_makes_no_sense_is_an_observation(answer):
    with hostile.serving({"/": hostile.raw(ANSWERS[answer])}) as server:
        with contextlib.suppress(ToolError):  # or what there is of a page; no other exception
            assert len(guard.fetch(server.url + "/", [server.host], timeout_s=5).body) <= 1


def test_a_pile_of_encodings_is_refused():
    trick = hostile.page(b"x", Content_Encoding=", ".join(["gzip"] * 50))
    with hostile.serving({"/": trick}) as server, pytest.raises(ToolError):
        guard.fetch(server.url + "/", [server.host])


def test_a_zip_bomb_is_not_opened():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a", bytes(50 << 20))
    trick = hostile.page(buffer.getvalue(), "application/zip")
    with hostile.serving({"/": trick}) as server, pytest.raises(ToolError, match="no page of text"):
        visit.page_text(server.url + "/", (server.host,))


def test_an_endless_body_is_stopped():
    with hostile.serving({"/": hostile.endless}) as server, pytest.raises(ToolError, match="MiB"):
        guard.fetch(server.url + "/", [server.host], max_bytes=1 << 20)


@pytest.mark.parametrize(
    "trick",
    ["slow_body", "slow_headers", "silent", "chunks_without_end", "continues_without_end"],
)
def test_a_slow_server_is_left_when_the_time_is_over(trick):
    with hostile.serving({"/": getattr(hostile, trick)}) as server:
        started = time.monotonic()
        with pytest.raises(ToolError, match="too slow"):
            guard.fetch(server.url + "/", [server.host], timeout_s=1)
    assert time.monotonic() - started < 6


def test_endless_headers_are_stopped():
    with hostile.serving({"/": hostile.endless_headers}) as server, pytest.raises(ToolError):
        guard.fetch(server.url + "/", [server.host], timeout_s=5)


def test_a_body_that_breaks_off_is_told():
    with (
        hostile.serving({"/": hostile.cut_off}) as server,
        pytest.raises(ToolError, match="can not be fetched"),
    ):
        guard.fetch(server.url + "/", [server.host])


def test_the_words_of_a_broken_answer_do_not_reach_the_model():
    with (
        hostile.serving({"/": hostile.injected_status}) as server,
        pytest.raises(ToolError) as failure,
    ):
        guard.fetch(server.url + "/", [server.host])
    assert "IGNORE" not in str(failure.value)


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch):
    with hostile.serving({}) as proxy, hostile.serving({"/": hostile.page("x")}) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        guard.fetch(server.url + "/", [server.host])
        assert not proxy.seen


def test_a_page_that_nests_without_end_is_an_observation():
    trick = hostile.page("<div>" * 1_000_000 + "deep")
    with hostile.serving({"/": trick}) as server:
        with contextlib.suppress(ToolError):  # either is fine; a crash or a hang is not
            visit.page_text(server.url + "/", (server.host,))


def test_a_pdf_that_is_none_is_an_observation():
    with hostile.serving({"/": hostile.page(b"%PDF-1.7 not one", "application/pdf")}) as server:
        with pytest.raises(ToolError, match="can not be read as pdf"):
            visit.page_text(server.url + "/", (server.host,))


LOOPS = {
    "pages_that_hold_themselves": b"1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[2 0 R 2 0 R]/Count 9>>endobj",
    "a_billion_pages": b"1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[]/Count 1000000000>>endobj",
    "a_form_that_draws_itself": b"1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj 3 0 obj<</Type/Page/Parent 2 0 R/Contents 4 0 R/Resources<</XObject<</F 4 0 R>>>>/MediaBox[0 0 9 9]>>endobj 4 0 obj<</Subtype/Form/Resources<</XObject<</F 4 0 R>>>>/Length 6>>stream\n/F Do \nendstream endobj",
    "nested_arrays": b"1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj" + b"[" * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_a_pdf_that_loops_is_an_observation(name):
    trick = hostile.page(
        b"%PDF-1.4\n" + LOOPS[name] + b"\ntrailer<</Root 1 0 R>>", "application/pdf"
    )
    with hostile.serving({"/": trick}) as server, pytest.raises(ToolError):
        visit.page_text(server.url + "/", (server.host,))


def test_a_pdf_bomb_is_stopped():
    import zlib

    data = zlib.compress(zlib.compress(bytes(800 << 20), 9), 9)
    head = b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    head += b"3 0 obj<</Type/Page/Parent 2 0 R/Contents 4 0 R/MediaBox[0 0 9 9]>>endobj\n"
    stream = b"4 0 obj<</Filter[/FlateDecode/FlateDecode]/Length %d>>stream\n" % len(data)
    trick = hostile.page(
        head + stream + data + b"\nendstream endobj\ntrailer<</Root 1 0 R>>", "application/pdf"
    )
    with hostile.serving({"/": trick}) as server, pytest.raises(ToolError):
        visit.page_text(server.url + "/", (server.host,))
