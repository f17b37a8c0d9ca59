"""Secrets are redacted in every spelling; nothing else is changed."""

import json
from itertools import product
from urllib.parse import quote

import pytest

from orchestra.runtime.secrets import REDACTED, Secrets

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
    return Secrets([*given])


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
    assert secrets.redacted(row) == {"<MY_TOKEN>": [{"a": ["<MY_TOKEN>", 1, None]}, "7\ufffd"]}


@pytest.mark.parametrize("text", [
    "sk-" * 10_000, "http://" * 10_000 + "@", "0" * 64, "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "https://example.com/2024/12/a-long-path-of-words-0123456789.html", "desk-lamp-from-about-1990",
    "anything short1 goes",
], ids=lambda text: text[:20])  # fmt: skip
def test_other_text_is_unchanged(text, secrets):
    assert secrets.text(text) == text
