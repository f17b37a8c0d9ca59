"""Secrets are redacted in every spelling; nothing else is changed."""

import json
from urllib.parse import quote

import pytest

from runtime.secrets import REDACTED, Secrets

VALUE = 'a1"B2/ü+c3 D4'
ESCAPED = json.dumps(VALUE)[1:-1]
SPELLINGS = [VALUE, ESCAPED, json.dumps(ESCAPED)[1:-1], quote(VALUE, safe="")]


@pytest.fixture
def secrets(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", VALUE)
    return Secrets(["MY_TOKEN"])


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("around", ["{}", "see:{}.", '{{"a": "{}"}}', "x{}x" + "A" * 3000])
def test_the_value_of_a_variable_is_redacted(around, spelling, secrets):
    assert secrets.text(around.format(spelling)) == around.format("<MY_TOKEN>")


def test_keys_and_values_of_json_are_redacted_at_any_depth(secrets):
    row = {VALUE: [{"a": (VALUE, 1, None)}, "7\ud83d"]}
    assert secrets.redacted(row) == {"<MY_TOKEN>": [{"a": ["<MY_TOKEN>", 1, None]}, "7\ufffd"]}


@pytest.mark.parametrize("value", ["short1", "anything", "OPENAI_API_KEY", ""])
def test_a_word_or_a_short_value_is_not_a_secret(value, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", value)
    text = f"You can do {value} here."
    assert Secrets(["MY_TOKEN"]).text(text) == text


KEYS = [
    "sk-abcdefghij0123456789", "sk_live_0123456789abcdefghijklmn", "hf_abcdefghij0123456789",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345", "AKIAIOSFODNN7EXAMPLE"[:18] + "42",
    "gsk_abcdefghij0123456789", "xai-abcdefghij0123456789", "token=sk-abcdefghij0123456789",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("around", ["{}", "see\n{} or", '{{"key": "{}"}}'])
def test_a_word_in_the_shape_of_a_vendors_key_is_redacted(around, key):
    assert Secrets().text(around.format(key)) == around.format(REDACTED)


def test_a_password_in_an_address_is_redacted():
    url = "GET https://me:{}@host:8000/v1 and mail me@host"
    assert Secrets().text(url.format("pw")) == url.format(REDACTED)


OTHER = [
    "sk-" * 10_000, "http://" * 10_000 + "@", "0" * 64, "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "https://example.com/2024/12/a-long-path-of-words-0123456789.html", "desk-lamp-from-about-1990",
]  # fmt: skip


@pytest.mark.parametrize("text", OTHER, ids=lambda text: text[:20])
def test_other_text_is_left_as_it_is(text):
    assert Secrets().text(text) == text
