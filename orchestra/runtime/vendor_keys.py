"""Replaces text that has the format of a key: of a vendor in the table below, or a private key.

A key is found by its prefix, alphabet and length, and the whole word that holds it is replaced:

>>> without_keys("curl -H token=ghp_" + "0123456789abcdef" * 3 + " https://example.com")
'curl -H <SECRET> https://example.com'
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestra.runtime.escapes import Span, replaced

REDACTED = "<SECRET>"
SHORTEST = 20  # characters of the shortest key

# A word that is long enough to be or to contain a key; a longer one is data. ASCII: a key may
# follow letters of other scripts.
WORD_CHARS = r"[\w.~+/=-]"
LONG_WORD = re.compile(
    rf"(?<!{WORD_CHARS}){WORD_CHARS}{{{SHORTEST},4096}}+(?!{WORD_CHARS})", re.A
)
# What may be before a word in JSON, Python, URLs and terminals: \n, \u5bc6, \x0a, %0A, [31m. Its
# last characters look like the beginning of the word.
ESCAPE = re.compile(
    r"\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\[a-z]|%[0-9a-fA-F]{2}|[\[;]\d{0,3}m"
)
KEY_START = r"(?<![A-Za-z0-9])"
KEY_END = r"(?![A-Za-z0-9-])"
HEX_32 = r"[0-9a-f]{32}"
UUID = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"

# Each key has a prefix, an alphabet and a shortest length, from the vendors' documentation. No
# pattern looks further than a few hundred characters, so the time is linear in the text. KEY_END is
# there where ordinary text may begin alike.
VENDORS = {
    "Age": r"AGE-SECRET-KEY-1[0-9A-Z]{58}",
    "Airtable": r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}",
    "Anthropic": r"sk-ant-[\w-]{20}",
    "Atlassian": r"AT[AC]TT3[\w-]{50}",
    "AWS": rf"(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[A-Z0-9]{{16}}{KEY_END}",
    "Brevo": r"xkeysib-[0-9a-f]{64}",
    "Cerebras": r"csk-[a-z0-9]{40}",
    "Contentful": r"CFPAT-[\w-]{40}",
    "Databricks": rf"dapi{HEX_32}",
    "DigitalOcean": r"do[opr]_v1_[0-9a-f]{64}",
    "Discord webhook": r"discord(?:app)?\.com/api/webhooks/\d{17,20}/[\w-]{60}",
    "Docker Hub": r"dckr_[op]at_[\w-]{27}",
    "Doppler": r"dp\.[a-z]{2,5}\.(?:[\w-]{1,35}\.)?[A-Za-z0-9]{40}",
    "Dropbox": r"sl\.(?:u\.)?[\w-]{100}",
    "E2B": r"e2b_[0-9a-f]{40}",
    "Figma": r"fig[dr]_[\w-]{40}",
    "Firecrawl": rf"(?<!-)fc-{HEX_32}{KEY_END}",
    "Fireworks": r"fw_[A-Za-z0-9]{20}",
    "GitHub": r"gh[oprsu]_\w{36}|github_pat_\w{22}",
    "GitLab": r"gl(?:agent|cbt|dt|ffct|ft|imt|oas|pat|ptt|rt|soat)-[\w-]{20}|GR1348941[\w-]{20}",
    "Google": r"AIza[\w-]{35}|GOCSPX-[\w-]{28}|ya29\.[\w-]{20}|AQ\.Ab[\w-]{40}",
    "Grafana": r"glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}|glc_[A-Za-z0-9+/]{32}",
    "Groq": r"gsk_[A-Za-z0-9]{20}",
    "Heroku": r"HRKU-[\w-]{36}",
    "Hugging Face": r"hf_[A-Za-z0-9]{20}|api_org_[A-Za-z0-9]{34}",
    "Jina": r"jina_[\w-]{50}",
    "JSON Web Token": r"eyJ[\w-]{10,400}\.eyJ[\w-]{10}",
    "Langfuse": rf"[ps]k-lf-{UUID}",
    "LangSmith": rf"lsv2_[a-z]{{2}}_{HEX_32}|ls__{HEX_32}",
    "Linear": r"lin_(?:api|oauth)_[A-Za-z0-9]{40}",
    "Mailgun": rf"(?:(?<![_-])|(?<=\bkey_))key-{HEX_32}{KEY_END}",
    "New Relic": r"NRAK-[A-Z0-9]{27}",
    "Notion": r"ntn_[A-Za-z0-9]{40}|secret_[A-Za-z0-9]{43}",
    "npm": r"npm_[A-Za-z0-9]{36}",
    "NVIDIA": r"nvapi-[\w-]{60}",
    "OpenAI": r"sk-(?:proj|svcacct|admin|None)-[\w-]{40}|sk-[\w-]{0,180}T3BlbkFJ",
    "OpenRouter": r"sk-or-v\d-[0-9a-f]{64}",
    "Perplexity": r"pplx-[A-Za-z0-9]{40}",
    "Pinecone": r"pcsk_\w{50}",
    "PlanetScale": r"pscale_(?:oauth|pw|tkn)_[\w-]{32}",
    "Postman": r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}",
    "Pulumi": r"pul-[0-9a-f]{40}",
    "PyPI": r"pypi-AgE[\w-]{50}",
    "Replicate": r"r8_[A-Za-z0-9]{37}",
    "RubyGems": r"rubygems_[0-9a-f]{48}",
    "SendGrid": r"SG\.[\w-]{22}\.[\w-]{43}",
    "Sentry": r"sntrys_[\w+/=]{40}|sntryu_[0-9a-f]{64}",
    "Shopify": r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",
    "Slack": r"xox[a-z]-\d{1,20}-[\w-]{8}|xapp-\d-[\w-]{20}",
    "Slack webhook": r"hooks\.slack\.com/(?:services|triggers|workflows)/[\w/]{20}",
    "Square": r"sq0[a-z]{3}-[\w-]{22}",
    "Stripe": r"[rs]k_(?:live|test)_[A-Za-z0-9]{20}|whsec_[\w+/]{32}",
    "Supabase": r"sbp_[0-9a-f]{40}|sb_secret_[\w-]{20}",
    "Tavily": r"tvly-[\w-]{20}",
    "Telegram": r"(?<=\d{8}:)A[\w-]{34}" + KEY_END,
    "Together": r"tgp_v1_[\w-]{40}",
    "Twilio": rf"(?:AC|SK){HEX_32}{KEY_END}",
    "Vault": r"hv[bsr]\.[\w-]{24}",
    "Vercel": r"vc[aikpr]_[A-Za-z0-9]{24}",
    "xAI": r"xai-[A-Za-z0-9]{20}",
    # DeepSeek, Moonshot, Qwen, LiteLLM, ElevenLabs and many more. A name of words has neither a
    # long run with a digit nor capitals, small letters and digits: sk-learn-tutorial-2024.
    "sk-": r"sk[-_](?:[a-z0-9]{1,20}-){0,3}(?=[A-Za-z]{0,60}\d)[A-Za-z0-9]{20}"
    r"|sk-(?=[\w-]{0,60}\d)(?=[\w-]{0,60}[A-Z])(?=[\w-]{0,60}[a-z])[\w-]{20}",
}
MAY_HOLD_KEY = re.compile(r"\d|hf_|A[KS]IA")  # other keys without a digit are very rare
KEY = re.compile(f"{KEY_START}(?:{'|'.join(VENDORS.values())})", re.A)

PEM_LABEL = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
# Up to its end; without an end, for as long as lines of base64 follow.
PRIVATE_KEY = re.compile(
    rf"-----BEGIN {PEM_LABEL}"
    rf"(?:(?:[^-]|-(?!----))*+-----END {PEM_LABEL}|(?:(?:\s|\\[nr])+[\w+/=]{{16,}})*+)"
)


def without_keys(text: str) -> str:
    """A text with each key replaced."""
    if "PRIVATE KEY" in text:
        text = replaced(text, ((span, REDACTED) for span in _private_keys_in(text)))
    return replaced(text, ((span, REDACTED) for span in _words_with_keys(text)))


def keys_in(text: str) -> Iterator[Span]:
    """Where keys are in a text. Those of a private key and of words may overlap."""
    if "PRIVATE KEY" in text:
        yield from _private_keys_in(text)
    yield from _words_with_keys(text)


def _words_with_keys(text: str) -> Iterator[Span]:
    """The words with a key. An escape before a key looks like the beginning of its word."""
    for word in LONG_WORD.finditer(text):
        start, end = word.span()
        if not MAY_HOLD_KEY.search(text, start, end):
            continue
        escape = ESCAPE.match(text, start - 1) if start else None
        after_escape = escape.end() if escape else start
        if KEY.search(text, start, end) or KEY.search(text[after_escape:end]):
            yield after_escape, end


def _private_keys_in(text: str) -> Iterator[Span]:
    """A header without a key is a text about keys."""
    for found in PRIVATE_KEY.finditer(text):
        if re.search(r"[\w+/=]{40}", found[0]):
            yield found.span()
