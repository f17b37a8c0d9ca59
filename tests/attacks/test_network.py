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
        guard.fetch(INTERNAL[form], timeout_s=5)


@pytest.mark.parametrize("form", MALFORMED)
def test_a_url_that_is_none_is_refused(form, planted):
    with pytest.raises(guard.Refused):
        guard.fetch(MALFORMED[form], timeout_s=5)


@pytest.mark.parametrize("address", ["10.0.0.5", "::1", "fd00::1", "169.254.169.254"])
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
    "target", ["file:///etc/passwd", "gopher://x/", "//169.254.169.254/x", "http://u:p@e.com/"]
)
def test_a_redirect_to_another_scheme_or_with_credentials_is_refused(target):
    with hostile.serving({"/": hostile.redirect(target)}) as server, pytest.raises(guard.Refused):
        guard.fetch(server.url + "/", allow=[server.host])


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


@pytest.mark.parametrize("trick", ["slow_body", "slow_headers", "silent"])
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
    trick = hostile.page("<div>" * 200_000 + "deep")
    with hostile.serving({"/": trick}) as server:
        with contextlib.suppress(ToolError):  # either is fine; a crash or a hang is not
            visit.page_text(server.url + "/", (server.host,))


def test_a_pdf_that_is_none_is_an_observation():
    with hostile.serving({"/": hostile.page(b"%PDF-1.7 not one", "application/pdf")}) as server:
        with pytest.raises(ToolError, match="can not be read as pdf"):
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
