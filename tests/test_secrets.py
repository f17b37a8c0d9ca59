"""Secrets are redacted in every spelling; nothing else is changed."""

import base64
import doctest
import json
import random
import re
import time
from itertools import product
from urllib.parse import quote, unquote

import pytest

from orchestra.command import redact
from orchestra.command.redact import REDACTED, VENDORS, Redact
from tests import vendor_keys

VALUE = 'a1"B2/ü+c3 D4'
ESCAPED = json.dumps(VALUE)[1:-1]
SPELLINGS = VALUE, ESCAPED, json.dumps(ESCAPED)[1:-1], quote(VALUE, safe="")
VALUES = [(text, "<MY_TOKEN>") for text in SPELLINGS]
KEYS = [(key, REDACTED) for key in (
    "sk-abcdefghij0123456789", "sk_live_0123456789abcdefghijklmn", "hf_abcdefghij0123456789",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345", "AKIAIOSFODNN7EXAMPLE"[:18] + "42",
    "gsk_abcdefghij0123456789", "xai-abcdefghij0123456789", "token=sk-abcdefghij0123456789",
)]  # fmt: skip


@pytest.fixture
def secrets(monkeypatch):
    given = {"MY_TOKEN": VALUE, "MY_MODE": "anything", "MY_PIN": "short1", "EMPTY": ""}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return Redact([*given])


AROUND = "{}", "\u5bc6\u94a5\u662f{}", "see\n{} or", '{{"a": "{}"}}'
IN_A_WORD = "see:{}.", "x{}x" + "A" * 3000
URL = "GET https://me:{}@host:8000/v1 and mail me@host"


@pytest.mark.parametrize(("secret", "around"), [
    *product(VALUES + KEYS, AROUND), *product(VALUES, IN_A_WORD), (("pw", REDACTED), URL),
])  # fmt: skip
def test_a_secret_is_redacted(secret, around, secrets):
    text, redacted = secret
    assert secrets.text(around.format(text)) == around.format(redacted)


def test_keys_and_values_of_json_are_redacted_at_any_depth(secrets):
    row = {VALUE: [{"a": (VALUE, 1, None)}, "7\ud83d"]}
    assert secrets.value(row) == {"<MY_TOKEN>": [{"a": ["<MY_TOKEN>", 1, None]}, "7\ufffd"]}


@pytest.mark.parametrize("text", [
    "sk-" * 10_000, "http://" * 10_000 + "@", "0" * 64, "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "https://example.com/2024/12/a-long-path-of-words-0123456789.html", "desk-lamp-from-about-1990",
    "anything short1 goes",
], ids=lambda text: text[:20])  # fmt: skip
def test_other_text_is_unchanged(text, secrets):
    assert secrets.text(text) == text


# ---- the shapes of vendors' keys -----------------------------------------------------------------


def test_the_example_of_the_module_is_true():
    assert doctest.testmod(redact) == (0, 3)


def test_each_vendor_has_a_key_here():
    assert {vendor for vendor, _ in vendor_keys.KEYS} | {"Telegram", "sk- mixed"} == set(VENDORS)


PLACES = [
    "{}", "密钥是{}。", "see\n{}, or", '{{"a": "{}"}}', "a=1&key={}&b=2", "(`{}`)", "KEY='{}'", "x\\n{}\\n", "\\u662f{}",
    "is%3D{}%26", "Authorization: Bearer {}", "x\\x0a{}",
]  # fmt: skip


@pytest.mark.parametrize(("vendor", "key"), vendor_keys.KEYS, ids=lambda text: text[:20])
def test_a_key_of_a_vendor_is_redacted(vendor, key, secrets):
    for place in PLACES:
        word = place.replace("key={}", "{}").replace("is%3D{}", "{}")  # the whole word goes
        expected = word.format(REDACTED)
        assert secrets.text(place.format(key)) == expected


def in_json(key):
    """Every second character as an escape; a JSON reader decodes it."""
    return "".join(f"\\u{ord(c):04x}" if n % 2 else c for n, c in enumerate(key))


def in_percent(key):
    return "".join(f"%{ord(c):02x}" if n % 2 else c for n, c in enumerate(key))


SPELLED = {
    "JSON escapes": lambda key: f'{{"a": "{in_json(key)}"}}',
    "JSON in JSON": lambda key: json.dumps(f'{{"a": "{in_json(key)}"}}'),
    "escaped slashes": lambda key: json.dumps({"a": key}).replace("/", "\\/"),
    "percent": lambda key: f"https://host/?q={in_percent(key)}&b=2",
    "percent twice": lambda key: in_percent(key).replace("%", "%25"),
    "after Bearer%20": lambda key: f"Authorization%3A%20Bearer%20{key}",
    "glued to key_": lambda key: f"key_{key}",
    "before _x": lambda key: f"{key}_x",
    "coloured": lambda key: f"\x1b[1;31m{key}\x1b[0m",
    "coloured in part": lambda key: f"{key[:5]}\x1b[31m{key[5:9]}\x1b[0m{key[9:]}",
    "colours spelled out": lambda key: f"\\x1b[31m{key[:9]}\\u001b[0m{key[9:]}\\x1b[m",
}  # fmt: skip


def plain(text):
    """A text as those who read it would decode it."""
    for _ in range(2):
        text = re.sub(
            r"\\+u(....)", lambda found: chr(int(found[1], 16)), unquote(text).replace("\\/", "/")
        )
    return re.sub(r"(\x1b|\\x1b)\[[\d;]*m", "", text)


@pytest.mark.parametrize(
    ("vendor", "key"), [*vendor_keys.KEYS, ("MY_TOKEN", VALUE)], ids=lambda text: text[:20]
)
def test_a_key_is_redacted_however_it_is_spelled(vendor, key, secrets):
    found = {name: secrets.text(spell(key)) for name, spell in SPELLED.items()}
    assert not [name for name, text in found.items() if key in plain(text)]
    assert all("<SECRET>" in text or "<MY_TOKEN>" in text for text in found.values())


def test_of_an_escaped_text_only_the_key_is_redacted(secrets):
    key = in_json(vendor_keys.KEYS[0][1])
    text = '{{"a": "caf\\u00e9\\n \\"{}\\"", "b": "\\/x%20y"}}'
    assert secrets.text(text.format(key)) == text.format(REDACTED)
    assert secrets.text(text) == text


def test_the_token_of_a_telegram_bot_is_redacted_behind_its_number(secrets):
    url = "https://api.telegram.org/bot{}:{}/getMe"
    assert secrets.text(url.format(123456789, vendor_keys.TELEGRAM)) == url.format(123456789, REDACTED).removesuffix("/getMe")  # fmt: skip


LINES = "\n".join([vendor_keys.of(vendor_keys.BASE64, 64)] * 3 + ["Ab+/cd=="])
NAMES = "", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "


def pem(name, lines=LINES, end="-----END {}PRIVATE KEY-----"):
    return f"-----BEGIN {name}PRIVATE KEY-----\n{lines}\n{end.format(name)}"


@pytest.mark.parametrize("key", [
    *map(pem, NAMES), pem("PGP ").replace("KEY-", "KEY BLOCK-"), json.dumps(pem(""))[1:-1], pem("").replace("\n", "\r\n"),
    pem("RSA ", f"Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00AA\n\n{LINES}"),
])  # fmt: skip
def test_a_private_key_is_redacted(key, secrets):
    assert secrets.text(f"It is {key} and so on.") == f"It is {REDACTED} and so on."


def test_a_private_key_without_its_end_is_redacted_as_far_as_it_goes(secrets):
    cut = pem("", end="").replace("Ab+/cd==\n", "")
    assert secrets.text(f"{cut}This is all of it.") == f"{REDACTED}\nThis is all of it."


RANDOM = random.Random(0)
BYTES = RANDOM.randbytes(60_000)
ENCODED = base64.b64encode(BYTES).decode()


@pytest.mark.parametrize("text", [
    "task-force-2024.png", "sk-learn", "import sklearn  # scikit-learn 1.5, or sk-learn-contrib-2024", "risk-0123456789abcdef0123456789abcdef",
    '<div class="sk-cube-grid sk-fading-circle-12 sk-toggleable__label-arrow-2">', "task-0123456789abcdef0123456789abcdef", "lib.sk_X509_EXTENSION_new_null",
    "123e4567-e89b-12d3-a456-426614174000", "commit 87f0c63b1a2c3d4e5f60718293a4b5c6d7e8f901", f"sha256:{BYTES[:32].hex()}", "md5-" + BYTES[:16].hex(),
    f"![](data:image/png;base64,{ENCODED[:4000]})", ENCODED, "\n".join(ENCODED[i : i + 76] for i in range(0, 60_000, 76)),
    base64.urlsafe_b64encode(BYTES[:2000]).decode(), f'"integrity": "sha512-{ENCODED[:86]}=="', f"cache-key-{BYTES[:16].hex()}", f"cache_key-{BYTES[:16].hex()}",
    "https://hooks.slack.com/ and https://discord.com/api/webhooks are documented", "hf_hub_download(repo_id='openai/whisper-tiny', revision='v1.0')",
    "jina_embeddings_v2_base_en", "npm_config_user_agent_0123456789", "the secret_santa_list_of_december_2024_final_version.xlsx", "key-value-store-2024-version-3",
    "2026-11-24T10:49:00.123456+00:00", "pat_the_postman_delivers_0123456789.parcel", "fw_version_1234567890_update.bin", "AC/DC1973 and SK2024", "ASIAPACIFIC2024HEADQUARTERS",
    "-----BEGIN CERTIFICATE-----\n" + LINES, "It starts with -----BEGIN PRIVATE KEY----- and ends with -----END PRIVATE KEY-----.",
    "eyJhbGciOiJIUzI1NiJ9 is the header of a token", "Llama-3.1-Nemotron-70B-Instruct-HF", "gpt-4o-mini-2024-07-18", "sk-estimator-doc-link 2", r"C:\sk-files\report-2024-12-31.docx",
    "1234567890:not-a-token-but-a-title-of-35-letters", "x" * 5000, "sl.example.com/a/page/about/things-2024",
], ids=lambda text: text[:25])  # fmt: skip
def test_ordinary_text_is_unchanged(text, secrets):
    assert secrets.text(text) == text
    assert secrets.text(f"see\\n{text}\n") == f"see\\n{text}\n"


HOSTILE = [
    "sk-", "sk-a-", "eyJ", "-eyJa", ".eyJ0", "dp.st.", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n0123456789abcdef", "-", "1:A", "12345678:", "http://", "a:b@", "\\n", "\\u0", "%3D", "_", "0_",
    "\\u0073k\\u002d", "%41", "%25", "\\\\n", '\\"', "\x1b[0", "\\x1b[31mA", "xoxb-1-", "=hf_", "/hooks.slack.com/services/", "s0 ", "0" * 4000 + " ", ("0=" * 2000) + " ", "sk-0-" * 800 + " ", "eyJ.0-" * 680 + " ", "_eyJ0a" * 680 + " ",
]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE, ids=lambda text: text[:25])
def test_a_megabyte_of_odd_text_takes_no_time(piece, secrets):
    text = piece * (10**6 // len(piece))
    start = time.process_time()
    secrets.text(text)
    assert time.process_time() - start < 6  # mostly 0.02 s, at most 1.4


HEADERS = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00AA\n\n"


@pytest.mark.parametrize("head", [HEADERS, "Version: GnuPG v2\n\n", "Comment: of mine\n"])
@pytest.mark.parametrize("written", [str, lambda key: json.dumps(key)[1:-1], lambda key: key.replace("\n", "\n> "), lambda key: key.replace("\n", "<br>")])  # fmt: skip
def test_a_private_key_with_headers_is_redacted_without_its_end_too(head, written, secrets):
    cut = pem("RSA ", f"{head}{LINES}", end="").replace("Ab+/cd==\n", "").rstrip()
    assert secrets.text(f"It is {written(cut)}!") == f"It is {REDACTED}!"


def test_json_stays_json(secrets):
    begin, end = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
    row = {
        "a": begin,
        "b": [LINES, f'say "{VALUE}"'],
        "c": end,
        KEYS[0][0]: 1,
        "d": f"{begin}\n{LINES}\n{end}",
    }
    clean = {"a": begin, "b": [LINES, 'say "<MY_TOKEN>"'], "c": end, REDACTED: 1, "d": REDACTED}
    assert json.loads(secrets(json.dumps(row))) == clean
    assert json.loads(secrets(json.dumps(row, ensure_ascii=False))) == clean


def test_ordinary_text_takes_no_time(secrets):
    text = json.dumps({"content": 'It is 14:32 in "clock.png"; see speech.wav.\n' * 140})
    start = time.process_time()
    for _ in range(1000):
        assert secrets(text) is text
    assert time.process_time() - start < 0.2  # 6 KB take 0.03 ms
