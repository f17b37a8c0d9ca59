r"""Takes secrets out of what is written and shown: no tape, trajectory, log or answer holds a key.

Three things are redacted: the values of the environment variables that a run uses, passwords in
URLs, and text in the format of a vendor's key. Each is found in plain text and spelled with escapes
(\u0073k- in JSON, %73k- in a URL, colour codes between its letters), so that no later decoding
makes a key of what was recorded. A replay needs no variables: its recording is already redacted.

    >>> redact = Redact(["MY_KEY"])                    # the hook of Parts: JSON text -> JSON text
    >>> redact('{"a": ["curl -H token=ghp_%s"]}' % ("0123456789abcdef" * 3))
    '{"a": ["curl -H <SECRET>"]}'
    >>> redact.text(r"the key is \u0073k\u002dabcdef0123456789abcd, he said")
    'the key is <SECRET>, he said'
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

REDACTED = "<SECRET>"
ALWAYS = ("SERPER_API_KEY", "JINA_API_KEY")
SHORTEST = 8  # characters of a value; a shorter one may be part of ordinary words
# A placeholder such as "not-needed", not a key.
PLACEHOLDER = re.compile(r"[a-z_-]{,19}|[A-Z_-]{,19}")
URL_PASSWORD = re.compile(r"(?<=://)[^\s/:@]{0,100}:([^\s/@]{1,200})(?=@)")

# A word that is long enough to be or to contain a key; a longer one is data. ASCII: a key may
# follow letters of other scripts.
WORD_CHARS = r"[\w.~+/=-]"
LONG_WORD = re.compile(
    rf"(?<!{WORD_CHARS}){WORD_CHARS}{{20,4096}}+(?!{WORD_CHARS})", re.A
)
# Each byte of such a word becomes an x, any other a space: a search for 20 x is fast
IS_WORD = re.compile(WORD_CHARS, re.A)
AS_WORD = bytes(120 if n < 128 and IS_WORD.match(chr(n)) else 32 for n in range(256))
MAY_BE_LONG = b"x" * 20
MAY_HOLD_KEY = re.compile(r"\d|hf_|A[KS]IA")  # other keys without a digit are very rare

# The prefix, alphabet and shortest length of each key, from the vendors' documentation. No pattern
# looks further than a few hundred characters, so the time is linear in the text. (?![A-Za-z0-9-])
# is there where ordinary text may begin alike. The last row is for DeepSeek, Moonshot, Qwen,
# LiteLLM, ElevenLabs and more: a name of words has neither a long run with a digit nor capitals,
# small letters and digits (sk-learn-tutorial-2024).
VENDORS_TABLE = r"""
Age              AGE-SECRET-KEY-1[0-9A-Z]{58}
Airtable         pat[A-Za-z0-9]{14}\.[0-9a-f]{64}
Anthropic        sk-ant-[\w-]{20}
Atlassian        AT[AC]TT3[\w-]{50}
AWS              (?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9-])
Brevo            xkeysib-[0-9a-f]{64}
Cerebras         csk-[a-z0-9]{40}
Contentful       CFPAT-[\w-]{40}
Databricks       dapi[0-9a-f]{32}(?![A-Za-z0-9])
DigitalOcean     do[opr]_v1_[0-9a-f]{64}
Discord webhook  discord(?:app)?\.com/api/webhooks/\d{17,20}/[\w-]{60}
Docker Hub       dckr_[op]at_[\w-]{27}
Doppler          dp\.[a-z]{2,5}\.(?:[\w-]{1,35}\.)?[A-Za-z0-9]{40}
Dropbox          sl\.(?:u\.)?[\w-]{100}
E2B              e2b_[0-9a-f]{40}
Figma            fig[dr]_[\w-]{40}
Firecrawl        (?<!-)fc-[0-9a-f]{32}(?![A-Za-z0-9-])
Fireworks        fw_[A-Za-z0-9]{20}
GitHub           gh[oprsu]_\w{36}|github_pat_\w{22}
GitLab           gl(?:agent|cbt|dt|ffct|ft|imt|oas|pat|ptt|rt|soat)-[\w-]{20}|GR1348941[\w-]{20}
Google           AIza[\w-]{35}|GOCSPX-[\w-]{28}|ya29\.[\w-]{20}|AQ\.Ab[\w-]{40}
Grafana          glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}|glc_[A-Za-z0-9+/]{32}
Groq             gsk_[A-Za-z0-9]{20}
Heroku           HRKU-[\w-]{36}
Hugging Face     hf_[A-Za-z0-9]{20}|api_org_[A-Za-z0-9]{34}
Jina             jina_[\w-]{50}
JSON Web Token   eyJ[\w-]{10,400}\.eyJ[\w-]{10}
Langfuse         [ps]k-lf-[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}
LangSmith        lsv2_[a-z]{2}_[0-9a-f]{32}|ls__[0-9a-f]{32}
Linear           lin_(?:api|oauth)_[A-Za-z0-9]{40}
Mailgun          (?:(?<![_-])|(?<=\bkey_))key-[0-9a-f]{32}(?![A-Za-z0-9-])
New Relic        NRAK-[A-Z0-9]{27}
Notion           ntn_[A-Za-z0-9]{40}|secret_[A-Za-z0-9]{43}
npm              npm_[A-Za-z0-9]{36}
NVIDIA           nvapi-[\w-]{60}
OpenAI           sk-(?:proj|svcacct|admin|None)-[\w-]{40}|sk-[\w-]{0,180}T3BlbkFJ
OpenRouter       sk-or-v\d-[0-9a-f]{64}
Perplexity       pplx-[A-Za-z0-9]{40}
Pinecone         pcsk_\w{50}
PlanetScale      pscale_(?:oauth|pw|tkn)_[\w-]{32}
Postman          PMAK-[0-9a-f]{24}-[0-9a-f]{34}
Pulumi           pul-[0-9a-f]{40}
PyPI             pypi-AgE[\w-]{50}
Replicate        r8_[A-Za-z0-9]{37}
RubyGems         rubygems_[0-9a-f]{48}
SendGrid         SG\.[\w-]{22}\.[\w-]{43}
Sentry           sntrys_[\w+/=]{40}|sntryu_[0-9a-f]{64}
Shopify          shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}
Slack            xox[a-z]-\d{1,20}-[\w-]{8}|xapp-\d-[\w-]{20}
Slack webhook    hooks\.slack\.com/(?:services|triggers|workflows)/[\w/]{20}
Square           sq0[a-z]{3}-[\w-]{22}
Stripe           [rs]k_(?:live|test)_[A-Za-z0-9]{20}|whsec_[\w+/]{32}
Supabase         sbp_[0-9a-f]{40}|sb_secret_[\w-]{20}
Tavily           tvly-[\w-]{20}
Telegram         (?<=\d{8}:)A[\w-]{34}(?![A-Za-z0-9-])
Together         tgp_v1_[\w-]{40}
Twilio           (?:AC|SK)[0-9a-f]{32}(?![A-Za-z0-9-])
Vault            hv[bsr]\.[\w-]{24}
Vercel           vc[aikpr]_[A-Za-z0-9]{24}
xAI              xai-[A-Za-z0-9]{20}
sk-              sk[-_](?:[a-z0-9]{1,20}-){0,3}(?=[A-Za-z]{0,60}\d)[A-Za-z0-9]{20}
sk- mixed        sk-(?=[\w-]{0,60}\d)(?=[\w-]{0,60}[A-Z])(?=[\w-]{0,60}[a-z])[\w-]{20}
"""
VENDORS = dict(row.split("  ", 1) for row in VENDORS_TABLE.strip().splitlines())
PATTERNS = "|".join(pattern.strip() for pattern in VENDORS.values())
KEY = re.compile(rf"(?<![A-Za-z0-9])(?:{PATTERNS})", re.A)

PEM_LABEL = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
# Up to its end; without an end, for as long as lines of base64 follow, after headers such as
# "Proc-Type: 4,ENCRYPTED". A header without a key is a text about keys.
PEM_BREAK = r"(?:\s|\\[nr]|<br>|>)+"
PEM_HEADERS = rf"(?:{PEM_BREAK}[A-Z][\w-]{{2,20}}: [^\n\\<]{{1,80}})*"
PRIVATE_KEY = re.compile(
    rf"-----BEGIN {PEM_LABEL}"
    rf"(?:[^-]*(?:-(?!----)[^-]*)*-----END {PEM_LABEL}"
    rf"|{PEM_HEADERS}(?:{PEM_BREAK}[\w+/=]{{16,}})*)"
)
BASE64_LINE = re.compile(r"[\w+/=]{40}")

# Backslashes may be doubled, and % be %25, as in JSON in JSON. Each alternative takes the whole run
# of backslashes, so the time is linear.
ESCAPE = re.compile(
    r"(?P<colour>(?:\x1b|\\++(?:u001[bB]|x1[bB]|033|e))\[[0-?]{0,40}[ -/]{0,8}[@-~])"
    r"|\\++(?:(?:u(?P<u>[0-9a-fA-F]{4})|x(?P<x>[0-9a-fA-F]{2}))"
    r"|(?P<space>[bfnrt])|(?P<same>[\"'/]))?"
    r"|%(?:25)*+(?P<percent>[0-9a-fA-F]{2})"
)
PERCENT = re.compile(r"%[0-9a-fA-F]{2}")
Found = tuple[int, int, str]  # start, end, and what to write instead


class Redact:
    """Redacts the values of `names` among the environment's variables, and all other secrets."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        found: dict[str, str] = {}
        for name in sorted({*names, *ALWAYS}):
            value = os.environ.get(name, "").strip()
            if len(value) >= SHORTEST and not PLACEHOLDER.fullmatch(value):
                for spelling in _spellings(value):
                    found.setdefault(spelling, f"<{name}>")
        self._known = sorted(found.items(), key=lambda pair: -len(pair[0]))

    def __call__(self, text: str) -> str:
        """A JSON text without secrets."""
        if not self._is_suspect(text, escapes=("\\\\", "\\u")):
            return text
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return self.text(text)
        redacted = self.value(value)
        return text if redacted == value else json.dumps(redacted, ensure_ascii=False)

    def value(self, value: Any) -> Any:
        """A JSON value without secrets."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.value(key): self.value(item) for key, item in value.items()}
        return value

    def text(self, text: str) -> str:
        """A text without secrets and without halves of surrogate pairs, which cannot be written."""
        if not text.isascii():
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if not self._is_suspect(text, escapes=("\\", "\x1b")):
            return text
        found = list(self._values_in(text))
        shown, starts = decode(text)
        for start, end, name in (*self._values_in(shown), *formats_in(shown)):
            found.append((starts[start], starts[end], name))
        return replace_all(text, found)

    def finds(self, text: str) -> bool:
        return self.text(text) != text

    def _is_suspect(self, text: str, escapes: Iterable[str]) -> bool:
        """Whether a closer look is needed. It takes microseconds."""
        return (
            MAY_BE_LONG in text.encode("utf-8", "replace").translate(AS_WORD)
            or any(escape in text for escape in escapes)
            or any(secret in text for secret, _ in self._known)
            or ("%" in text and PERCENT.search(text) is not None)
            or ("://" in text and "@" in text)
            or "PRIVATE KEY" in text
        )

    def _values_in(self, text: str) -> Iterator[Found]:
        for secret, name in self._known:
            start = text.find(secret)
            while start >= 0:
                yield start, start + len(secret), name
                start = text.find(secret, start + len(secret))


def formats_in(text: str) -> Iterator[Found]:
    """Where a text has the format of a secret."""
    if "://" in text and "@" in text:
        for password in URL_PASSWORD.finditer(text):
            yield *password.span(1), REDACTED
    if "PRIVATE KEY" in text:
        for key in PRIVATE_KEY.finditer(text):
            if BASE64_LINE.search(key[0]):
                yield *key.span(), REDACTED
    for word in LONG_WORD.finditer(text):
        if MAY_HOLD_KEY.search(word[0]) and KEY.search(text, *word.span()):
            yield *word.span(), REDACTED


def _spellings(value: str) -> list[str]:
    """How a value may be written: plain, JSON-escaped once or twice, percent-encoded."""
    escaped = json.dumps(value)[1:-1]
    escaped_twice = json.dumps(escaped)[1:-1]
    percent = quote(value, safe="")
    lower_percent = PERCENT.sub(lambda code: code[0].lower(), percent)
    return [value, escaped, escaped_twice, percent, lower_percent, quote(value)]


def decode(text: str) -> tuple[str, list[int]]:
    """A text as it looks after its escapes are decoded, and where each character of that, and its
    end, is in the text.
    """
    shown = []
    starts: list[int] = []
    position = 0
    for escape in ESCAPE.finditer(text):
        start, end = escape.span()
        character = _character(escape)
        shown += [text[position:start], character]
        starts += range(position, start)
        starts += [start] * len(character)
        position = end
    shown.append(text[position:])
    starts += range(position, len(text) + 1)
    return "".join(shown), starts


def _character(escape: re.Match[str]) -> str:
    """What an escape stands for; an unknown one stays as it is."""
    match escape.lastgroup:
        case None:
            return escape[0]
        case "colour":
            return ""
        case "space":
            return "\n"
        case "same":
            return escape[0][-1]
        case group:
            return chr(int(escape[group], 16))


def replace_all(text: str, found: Iterable[Found]) -> str:
    """A text with others in place of parts of it. Of parts that overlap, the first one counts."""
    kept = []
    position = 0
    for start, end, other in sorted(found):
        if start >= position:
            kept += [text[position:start], other]
        position = max(position, end)
    return "".join([*kept, text[position:]])
