"""The pool file, the pool of the environment, and what a run needs of both before it starts."""

from dataclasses import replace

import pytest

from orchestra.command.pool_file import RESERVED, SHIPPED, check, choose, from_environment, load
from orchestra.command.redact import Redact
from tests.conftest import Backend, ConfigError, Engine, Pool, Price

ONE = '[[backend]]\nname = "a"\nbase_url = "http://127.0.0.1:8000/v1"\n'
TWO = ONE + ONE.replace('"a"', '"b"')
PRICE = "price_usd_per_mtok = { input = 1.0, output = 2.0 }\n"
AUDIO = 'audio = { engine = "endpoint", backend = "a", transcription_model = "w"'
FULL = f"""main = "b"
{ONE}model = "org/a-7b"
api_key_env = "A_KEY"
skills = {{ txt = 1, img = 0.5 }}
price_usd_per_mtok = {{ input = 1, output = 2.5, cached = 0.25 }}
latency_s = 3
options = {{ temperature = 0.0, extra_body = {{ top_k = 1 }} }}
{TWO[len(ONE) :]}{PRICE}[engines]
image = {{ engine = "local" }}
{AUDIO}, usd_per_minute = 0.006 }}"""


@pytest.fixture
def pool_file(tmp_path):
    def write(text: str):
        (tmp_path / "pool.toml").write_text(text, "utf-8", "surrogateescape")
        return tmp_path / "pool.toml"

    return write


def test_every_key_of_a_pool_file_is_read(pool_file):
    url, options = "http://127.0.0.1:8000/v1", {"temperature": 0.0, "extra_body": {"top_k": 1}}
    price, skills = Price(1.0, 2.5, 0.25), {"txt": 1.0, "img": 0.5}
    a = Backend("a", "org/a-7b", url, "A_KEY", skills, price, 3.0, options=options)
    b = Backend("b", "b", url, price_usd_per_mtok=Price(1.0, 2.0))
    pool = load(pool_file(FULL))
    assert pool == Pool((a, b), "b", pool.engines)
    assert pool.engine_of("image") == Engine("local")
    assert pool.engine_of("audio") == Engine("endpoint", "a", "w", 0.006)


SKILLS = [("img = 0.5, aud = 1", "b", "b"), ("img = 0.1", "b", ""), ("txt = 1, img = 0", "", "")]


@pytest.mark.parametrize(("skills", "image", "audio"), SKILLS)
def test_the_default_engine_is_the_first_backend_with_the_skill(skills, image, audio, pool_file):
    pool = load(pool_file(f"{TWO}skills = {{ {skills} }}\n"))
    assert (pool.engine_of("image").backend, pool.engine_of("audio").backend) == (image, audio)


@pytest.mark.parametrize(("text", "line", "key"), [  # (text, line, key)
    ("name: a\n", "", "TOML"), (ONE + "skills = {", "", "TOML"), ('"\udcff"', "", "read"),
    ("", 1, "backend"), (ONE[1:].replace("]]", "]"), 1, "backend"), (TWO + "x = 1\n", 7, "x"),
    ('main = "c"\n' + TWO, 1, "main"), ("main_only = true\n" + ONE, 1, "main_only"), ("\n" + ONE.replace("name", "#"), 2, "name"),
    (ONE + ONE, 5, "name"), ('[[backend]]\nname = "z"\n' + ONE, 1, "base_url"),
    (ONE.replace("http://", "me:pw@"), 3, "base_url"), (ONE.replace("8000", "800O"), 3, "base_url"),
    (ONE.replace("127.0.0.1", "[::1"), 3, "base_url"), ("self = 1\n" + ONE, 1, "self"), ("x = " + "1" * 5000, "", "TOML"),
     (ONE.replace("v1", "?k=pw"), 3, "base_url"),
    (ONE + 'api_key_env = "sk-pw"\n', 4, "api_key_env"), (ONE + "skills = { img = 2 }", 4, "skills"),
    (ONE + "price_usd_per_mtok = { input = 1 }\n", 4, "output"),
    ('# main = "z"\n# latency_s = 1\n' + TWO + "latency_s = -1\n", 9, "latency_s"),
    (ONE + "[engines]\n" + AUDIO.replace('"a"', '"c"') + "}\n", 5, "backend"),
    *((ONE + f"options = {{ {field} = 1 }}\n", 4, "options") for field in sorted(RESERVED)),
])  # fmt: skip
def test_a_bad_pool_file_is_one_line_with_file_line_and_key(text, line, key, pool_file):
    path = pool_file(text)
    with pytest.raises(ConfigError) as error:
        load(path)
    place, _, problem = str(error.value).removeprefix(f"{path}:").partition(" ")
    assert place == (f"{line}:" if line else "") and key in problem and "\n" not in problem
    assert "pw" not in problem


def test_all_mistakes_of_a_pool_file_are_said_at_once(pool_file):
    text = ONE.replace("base_url", "baseurl") + "latency = 1\nskills = { img = 2 }\n"
    path = pool_file(f'{text}price_usd_per_mtok = {{ input = "x", output = 1 }}\n')
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value) == (
        f"{path}:3: baseurl is not a known key; did you mean base_url?; line 4: latency is not a known key; "
        "did you mean latency_s?; line 5: skills.img should be less than or equal to 1; line 6: price_usd_per_mtok.input should be a valid number"
    )


# ---- the environment and the command line --------------------------------------------------------

LOCAL, OPENAI, KEY_NAME = "http://127.0.0.1:8000/v1", "https://api.openai.com/v1", "OPENAI_API_KEY"


@pytest.mark.parametrize(("url", "key", "model", "found"), [
    (LOCAL + "/", "", None, ("main", "", LOCAL, "")), (LOCAL, "k", "m", ("m", "m", LOCAL, KEY_NAME)),
    ("", "k", "gpt-x", ("gpt-x", "gpt-x", OPENAI, KEY_NAME)),
])  # fmt: skip
def test_an_endpoint_of_the_environment_is_a_pool_of_one(url, key, model, found, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv(KEY_NAME, key)
    (b,) = from_environment(model).backends
    assert (b.name, b.model, b.base_url, b.api_key_env) == found
    assert b.price_usd_per_mtok is None and b.skills["img"] == b.skills["aud"] == 1.0


@pytest.mark.parametrize(("model", "main"), [(None, "gpt-5"), ("gpt-5-mini", "gpt-5-mini")])
def test_a_key_alone_brings_the_shipped_pool(model, main, monkeypatch):
    monkeypatch.setenv(KEY_NAME, "sk-x")
    assert from_environment(model) == replace(load(SHIPPED), main=main)


@pytest.mark.parametrize("url", ["", "localhost", "http://x/v1?key=hidden"])
def test_an_environment_without_a_usable_endpoint_is_an_error_without_secrets(url, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(ConfigError, match="^(?!.*hidden).*OPENAI_BASE_URL"):
        from_environment()


def test_a_model_of_the_command_line_is_one_of_the_file(pool_file):
    assert choose(pool_file(TWO), "b").main == "b"
    with pytest.raises(ConfigError, match=r"--model c: .*one of a, b"):
        choose(pool_file(TWO), "c")


NEEDED = {PRICE: "backend b", ", usd_per_minute = 0.006": "usd_per_minute"}


@pytest.mark.parametrize("without", NEEDED)
def test_a_price_that_a_budget_needs_is_named(without, pool_file, monkeypatch):
    monkeypatch.setenv("A_KEY", "k")
    with pytest.raises(ConfigError, match=NEEDED[without]):
        check(load(pool_file(FULL.replace(without, ""))), 0.0, Redact())


def test_a_key_in_a_pool_is_refused(pool_file):
    key = "sk-abcdefghij0123456789"
    pool = load(pool_file(f'{ONE}options = {{ extra = "{key}" }}\n'))
    with pytest.raises(ConfigError, match="^(?!.*abcdef).*contains a key") as refused:
        check(pool, None, Redact())
    assert "api_key_env" in str(refused.value)


@pytest.mark.parametrize("bundle", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_certificates_that_do_not_exist_are_named(bundle, pool_file, monkeypatch):
    monkeypatch.setenv(bundle, "/nowhere.pem")
    check(load(pool_file(ONE)), None, Redact())  # it needs none
    pool = load(pool_file(ONE.replace("http:", "https:")))
    with pytest.raises(ConfigError, match=f"{bundle}: /nowhere.pem"):
        check(pool, None, Redact())
