"""A key of each shape that vendors document. They are put together here from a prefix (| is left
out) and an alphabet, so that no scanner of repositories takes this file for a leak.
"""

from itertools import cycle, islice

DIGITS, HEX = "1234567890", "0123456789abcdef"
LOWER, UPPER = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ALNUM = "0a1B2c3D4e5F6g7H8i9JkLmNoPqRsTuVwXyZ"
URL_SAFE, BASE64 = ALNUM + "_-", ALNUM + "+/"


def of(alphabet: str, length: int) -> str:
    return "".join(islice(cycle(alphabet), length))


def uuid() -> str:
    return "-".join(of(HEX, n) for n in (8, 4, 4, 4, 12))


ROWS = [  # vendor, prefix, the rest of the key
    ("Age", "AGE-SEC|RET-KEY-1", of(UPPER + DIGITS, 58)),
    ("Airtable", "p|at", f"{of(ALNUM, 14)}.{of(HEX, 64)}"),
    *[("Anthropic", f"sk|-ant-{kind}-", of(URL_SAFE, 95)) for kind in ("api03", "oat01", "admin01")],
    ("Atlassian", "ATA|TT3xFfGF0", f"{of(URL_SAFE, 180)}={of(HEX, 8)}"),
    ("Atlassian", "ATC|TT3xFfGN0", of(URL_SAFE, 180)),
    *[("AWS", f"A|{kind}", of("7QRST" + UPPER, 16)) for kind in ("KIA", "SIA", "BIA", "CCA", "3TX")],
    *[("AWS", f"A|{kind}", of(UPPER, 16)) for kind in ("KIA", "SIA")],  # a few have no digits
    ("Brevo", "xkey|sib-", f"{of(HEX, 64)}-{of(ALNUM, 16)}"),
    ("Cerebras", "cs|k-", of(LOWER + DIGITS, 48)),
    ("Contentful", "CF|PAT-", of(URL_SAFE, 43)),
    *[("Databricks", "da|pi", f"{of(HEX, 32)}{end}") for end in ("", "-2")],
    *[("DigitalOcean", f"do|{kind}_v1_", of(HEX, 64)) for kind in "opr"],
    ("Discord webhook", "//dis|cord.com/api/webhooks/", f"{of(DIGITS, 18)}/{of(URL_SAFE, 68)}"),
    ("Docker Hub", "dckr|_pat_", of(URL_SAFE, 27)),
    *[("Doppler", f"d|p.{kind}.", of(ALNUM, 43)) for kind in ("pt", "ct", "sa", "scim", "audit", "st", "st.dev")],
    ("Dropbox", "s|l.", of(URL_SAFE, 140)),
    ("Dropbox", "s|l.u.", of(URL_SAFE, 1300)),
    ("E2B", "e2|b_", of(HEX, 40)),
    ("Figma", "fi|gd_", of(URL_SAFE, 40)),
    ("Firecrawl", "f|c-", of(HEX, 32)),
    ("Fireworks", "f|w_", of(ALNUM, 24)),
    *[("GitHub", f"gh|{kind}_", of(ALNUM, 36)) for kind in "opusr"],
    ("GitHub", "github|_pat_", f"{of(ALNUM, 22)}_{of(ALNUM, 59)}"),
    *[("GitLab", f"gl|{kind}-", of(URL_SAFE, 20)) for kind in ("pat", "dt", "ft", "rt", "soat", "cbt")],
    *[("GitLab", f"gl|{kind}-", of(URL_SAFE, 64)) for kind in ("ptt", "agent", "oas", "imt")],
    ("GitLab", "GR|1348941", of(URL_SAFE, 20)),
    ("Google", "AI|za", of(URL_SAFE, 35)),
    ("Google", "GOC|SPX-", of(URL_SAFE, 28)),
    ("Google", "ya|29.", of(URL_SAFE, 180)),
    ("Google", "A|Q.Ab8R", of(URL_SAFE, 46)),
    ("Grafana", "gl|sa_", f"{of(ALNUM, 32)}_{of(HEX, 8)}"),
    ("Grafana", "gl|c_ey", f"{of(BASE64, 120)}=="),
    ("Groq", "gs|k_", of(ALNUM, 52)),
    ("Heroku", "HR|KU-AA", of(URL_SAFE, 58)),
    ("Heroku", "HR|KU-", uuid()),
    ("Hugging Face", "h|f_", of(ALNUM, 34)),
    ("Hugging Face", "h|f_", of(LOWER + UPPER, 34)),  # most have no digits
    ("Hugging Face", "ap|i_org_", of(ALNUM, 34)),
    ("Jina", "ji|na_", of(HEX, 32) + of(URL_SAFE, 28)),
    ("JSON Web Token", "ey|J", f"{of(ALNUM, 33)}.ey{'J'}{of(URL_SAFE, 400)}.{of(URL_SAFE, 86)}"),
    ("Langfuse", "pk|-lf-", uuid()),
    ("Langfuse", "sk|-lf-", uuid()),
    *[("LangSmith", f"ls|v2_{kind}_", f"{of(HEX, 32)}_{of(HEX, 10)}") for kind in ("pt", "sk")],
    ("LangSmith", "l|s__", of(HEX, 32)),
    ("Linear", "li|n_api_", of(ALNUM, 40)),
    ("Mailgun", "ke|y-", of(HEX, 32)),
    ("New Relic", "NR|AK-", of(UPPER + DIGITS, 27)),
    ("Notion", "nt|n_", of(DIGITS, 11) + of(ALNUM, 35)),
    ("Notion", "sec|ret_", of(ALNUM, 43)),
    ("npm", "np|m_", of(ALNUM, 36)),
    ("NVIDIA", "nva|pi-", of(URL_SAFE, 64)),
    ("OpenAI", "s|k-", of(ALNUM, 48)),
    *[("OpenAI", f"s|k-{name}", f"{of(ALNUM, 20)}T3Blb{'kFJ'}{of(ALNUM, 20)}") for name in ("", "my_Team-")],
    *[("OpenAI", f"sk|-{kind}-", of(URL_SAFE, 156)) for kind in ("proj", "svcacct", "admin")],
    ("OpenRouter", "sk|-or-v1-", of(HEX, 64)),
    ("Perplexity", "pp|lx-", of(ALNUM, 48)),
    ("Pinecone", "pc|sk_", f"{of(ALNUM, 6)}_{of(ALNUM, 63)}"),
    *[("PlanetScale", f"psca|le_{kind}_", of(URL_SAFE, 43)) for kind in ("tkn", "pw", "oauth")],
    ("Postman", "PM|AK-", f"{of(HEX, 24)}-{of(HEX, 34)}"),
    ("Pulumi", "pu|l-", of(HEX, 40)),
    *[("PyPI", f"py|pi-AgE{site}", of(URL_SAFE, 150)) for site in ("IcHlwaS5vcmc", "NdGVzdC5weXBpLm9yZw")],
    ("Replicate", "r|8_", of(ALNUM, 37)),
    ("RubyGems", "ruby|gems_", of(HEX, 48)),
    ("SendGrid", "S|G.", f"{of(URL_SAFE, 22)}.{of(URL_SAFE, 43)}"),
    ("Sentry", "sn|trys_ey", f"{of(BASE64, 150)}=_{of(BASE64, 43)}"),
    ("Sentry", "sn|tryu_", of(HEX, 64)),
    *[("Shopify", f"sh|p{kind}_", of(HEX, 32)) for kind in ("at", "ca", "pa", "ss")],
    *[("Slack", f"xo|x{kind}-", f"{of(DIGITS, 12)}-{of(DIGITS, 13)}-{of(ALNUM, 24)}") for kind in "abopsr"],
    ("Slack", "xa|pp-1-A", f"{of(UPPER, 10)}-{of(DIGITS, 13)}-{of(HEX, 64)}"),
    ("Slack webhook", "//hooks.sla|ck.com/services/", f"T{of(UPPER, 9)}/B{of(UPPER, 9)}/{of(ALNUM, 24)}"),
    ("Square", "sq|0atp-", of(URL_SAFE, 22)),
    ("Square", "sq|0csp-", of(URL_SAFE, 43)),
    *[("Stripe", f"{kind}", of(ALNUM, 99)) for kind in ("sk|_live_", "rk|_live_", "sk|_test_")],
    ("Stripe", "sk|_live_", of(ALNUM, 24)),
    ("Stripe", "wh|sec_", of(ALNUM, 32)),
    ("Supabase", "sb|p_", of(HEX, 40)),
    ("Supabase", "sb|_secret_", of(URL_SAFE, 31)),
    ("Tavily", "tv|ly-", of(ALNUM, 32)),
    ("Tavily", "tv|ly-dev-", of(ALNUM, 32)),
    ("Together", "tg|p_v1_", of(URL_SAFE, 43)),
    ("Twilio", "S|K", of(HEX, 32)),
    ("Twilio", "A|C", of(HEX, 32)),
    ("Vault", "hv|s.", of(URL_SAFE, 90)),
    ("Vault", "hv|b.", of(URL_SAFE, 150)),
    *[("Vercel", f"vc|{kind}_", of(ALNUM, 56)) for kind in "pk"],
    ("xAI", "xa|i-", of(ALNUM, 80)),
    ("sk-", "s|k-", of(HEX, 32)),  # DeepSeek, Qwen
    ("sk-", "s|k-", of(URL_SAFE, 22)),  # LiteLLM
    ("sk-", "s|k-kimi-", of(ALNUM, 48)),
    ("sk-", "s|k_", of(HEX, 48)),  # ElevenLabs
]  # fmt: skip
KEYS = [(vendor, prefix.replace("|", "") + rest) for vendor, prefix, rest in ROWS]
TELEGRAM = "A" + of(URL_SAFE, 34)  # after the number of the bot and a colon
