"""The pool file, the pool of the environment, and what a run needs of both before it starts."""

from __future__ import annotations

import pytest

from orchestra.pool import Engine, Pool, check, default_engines
from orchestra.pool_file import OURS, choose, from_environment, load
from orchestra.vocabulary import Backend, ConfigError, Price
from tests.conftest import ROOT

ONE = """\
[[backend]]
name = "a"
base_url = "http://127.0.0.1:8000/v1"
"""
TWO = ONE + ONE.replace('"a"', '"b"')
FULL = """\
main = "b"

[[backend]]
name = "a"
model = "org/a-7b"
base_url = "https://api.example.com/v1/"
api_key_env = "A_KEY"
skills = { txt = 1, img = 0.5 }
price_usd_per_mtok = { input = 1, output = 2.5, cached = 0.25 }
latency_s = 3
max_output_tokens = 512
options = { temperature = 0.0, extra_body = { top_k = 1 } }

[[backend]]
name = "b"
base_url = "http://localhost:8000/v1"
price_usd_per_mtok = { input = 1.0, output = 2.0 }

[engines.image]
engine = "local"

[engines.audio]
engine = "endpoint"
backend = "a"
transcription_model = "whisper-1"
usd_per_minute = 0.006
"""


@pytest.fixture
def pool_file(tmp_path):
    path = tmp_path / "pool.toml"

    def write(text: str | bytes):
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


# ---- what is in a file ---------------------------------------------------------------------------


def test_every_key_of_a_backend_is_read(pool_file):
    assert load(pool_file(FULL))["a"] == Backend(
        name="a",
        model="org/a-7b",
        base_url="https://api.example.com/v1",
        api_key_env="A_KEY",
        skills={"txt": 1.0, "img": 0.5},
        price=Price(1.0, 2.5, 0.25),
        latency_s=3.0,
        max_output_tokens=512,
        options={"temperature": 0.0, "extra_body": {"top_k": 1}},
    )


def test_a_name_and_an_address_are_enough(pool_file):
    assert load(pool_file(ONE))["a"] == Backend(
        "a", "a", "http://127.0.0.1:8000/v1", skills={"txt": 1.0, "code": 1.0}
    )


def test_an_empty_model_is_the_one_the_endpoint_serves(pool_file):
    assert load(pool_file(ONE + 'model = ""\n'))["a"].model == ""


def test_a_price_without_cached_takes_the_input_price_for_it(pool_file):
    assert load(pool_file(FULL))["b"].price == Price(1.0, 2.0, 1.0)


def test_the_main_backend_is_the_one_named(pool_file):
    assert load(pool_file(FULL)).main == "b"


def test_the_main_backend_is_the_first_where_none_is_named(pool_file):
    assert load(pool_file(TWO)).main == "a"


def test_the_pool_keeps_the_order_of_the_file(pool_file):
    assert load(pool_file(TWO)).names == ("a", "b")


def test_engines_are_read(pool_file):
    assert load(pool_file(FULL)).engines == {
        "image": Engine("local"),
        "audio": Engine("endpoint", "a", "whisper-1", 0.006),
    }


def test_an_engine_that_is_not_named_is_the_default_one(pool_file):
    pool = load(pool_file(FULL.replace('[engines.image]\nengine = "local"\n', "")))
    assert pool.engines["image"] == Engine("endpoint", "a")


@pytest.mark.parametrize(
    ("skills", "engines"),
    [
        ({"img": 0.5, "aud": 1.0}, [Engine("endpoint", "a"), Engine("endpoint", "a")]),
        ({"img": 0.5}, [Engine("endpoint", "a"), Engine("local")]),
        ({"img": 0.0, "txt": 1.0}, [Engine("local"), Engine("local")]),
    ],
)
def test_the_default_engine_is_a_backend_with_the_skill_or_the_local_library(skills, engines):
    found = default_engines(Pool((Backend("a", "a", "u", skills=skills),), "a", {}))
    assert [found["image"], found["audio"]] == engines


def test_the_first_backend_with_the_skill_is_the_default_engine(pool_file):
    pool = load(pool_file(TWO.replace('"b"', '"b"\nskills = { img = 0.1 }')))
    assert pool.engines["image"] == Engine("endpoint", "b")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"\xef\xbb\xbf" + ONE.encode(), id="byte order mark"),
        pytest.param(ONE.replace("\n", "\r\n"), id="lines of Windows"),
        pytest.param(ONE + "skills = { txt = 1.0, code = 1.0 }\n", id="the skills of the default"),
        pytest.param('backend = [{name = "a", base_url = "http://127.0.0.1:8000/v1"}]', id="line"),
        pytest.param(ONE.replace("/v1", "/v1//"), id="slashes at the end"),
    ],
)  # fmt: skip
def test_the_same_pool_is_read_from(text, pool_file):
    expected = Backend("a", "a", "http://127.0.0.1:8000/v1", skills={"txt": 1.0, "code": 1.0})
    assert load(pool_file(text)).backends == (expected,)


@pytest.mark.parametrize("path", ["backends.toml", "fixtures/pools/qwen-local.toml"])
def test_the_pool_files_of_this_repository_are_sound(path):
    assert load(ROOT / path).main in load(ROOT / path).names


# ---- what is wrong with a file: where, and what to write -----------------------------------------

ENGINES = '[engines]\naudio = { engine = "endpoint", backend = "a" }\n'
LONG_TASK = '# main = "nobody"\n# latency_s = 1\n' + ONE + "latency_s = -1\n"

BROKEN = {  # id: (text, line, key, words)
    "empty": ("", 1, "backend", "no [[backend]] table"),
    "no backend": ('main = "a"\n', 1, "backend", "no [[backend]] table"),
    "a backend in single brackets": (ONE[1:].replace("]]", "]"), 1, "backend", "no [[backend]]"),
    "backend is a text": ('main = "a"\nbackend = "a"\n', 2, "backend", "no [[backend]]"),
    "backend lists texts": ('backend = ["a"]\n', 1, "backend", "no [[backend]]"),
    "unknown key at the top": ("\n\nmodel = 1\n" + ONE, 3, "model", "known: main, [[backend]]"),
    "unknown key in a backend": (TWO + "price = 1\n", 7, "price", "known: api_key_env, base_url"),
    "unknown key in quotes": (ONE + '"my key" = 1\n', 4, "my key", "unknown key"),
    "main below a backend": (ONE + 'main = "a"\n', 4, "main", "unknown key"),
    "unknown main": ('main = "c"\n' + TWO, 1, "main", "'c' is no backend of this file; one of a"),
    "main is a number": (" main=1\n" + ONE, 1, "main", "1 is no backend of this file"),
    "no name": ("\n" + ONE.replace("name", "#"), 2, "name", "needs a text in quotes"),
    "empty name": (ONE.replace('"a"', '""'), 2, "name", "needs a text in quotes"),
    "name is a number": (TWO.replace('"b"', "7"), 5, "name", "needs a text in quotes"),
    "the same name twice": (ONE + ONE, 5, "name", "'a' is there twice"),
    "no address": ('[[backend]]\nname = "a"\n', 1, "base_url", "needs a text in quotes"),
    "no address before one with": (
        '[[backend]]\nname = "z"\n' + ONE, 1, "base_url", "needs a text in quotes",
    ),
    "address without http": (ONE.replace("http://", ""), 3, "base_url", "needs http(s)://host/v1"),
    "address of a file": (ONE.replace("http", "ftp"), 3, "base_url", "needs http(s)://host/v1"),
    "address without a host": (ONE.replace("127.0.0.1:8000", ""), 3, "base_url", "needs http(s)"),
    "address with half a bracket": (ONE.replace("127.0.0.1", "[::1"), 3, "base_url", "needs http"),
    "address with a word for a port": (ONE.replace("8000", "x"), 3, "base_url", "needs http(s)"),
    "address with port 99999": (ONE.replace("8000", "99999"), 3, "base_url", "needs http(s)"),
    "address with a password": (ONE.replace("127", "me:pw@127"), 3, "base_url", "user or password"),
    "address with a key in it": (
        ONE.replace("/v1", "/v1?key=hidden"), 3, "base_url", "no ?query"),
    "a count of picture tokens": (ONE + "image_tokens = 0\n", 4, "image_tokens", "at least 16"),
    "address with a user": (ONE.replace("127", "me@127"), 3, "base_url", "user or password"),
    "model is a number": (ONE + "model = 4\n", 4, "model", "needs a text in quotes"),
    "the key itself": (ONE + 'api_key_env = "sk-a1-b2"\n', 4, "api_key_env", "not the key itself"),
    "key name is a number": (ONE + "api_key_env = 1\n", 4, "api_key_env", "needs a text in quotes"),
    "skills is a text": (ONE + 'skills = "img"\n', 4, "skills", "needs a table with txt, img"),
    "unknown skill": (ONE + "skills = { image = 1 }\n", 4, "skills", "needs a table with txt, img"),
    "a skill above 1": (ONE + "skills = { img = 2 }\n", 4, "img", "from 0 to 1, not 2"),
    "a skill below 0": (ONE + "skills = { img = -0.1 }\n", 4, "img", "from 0 to 1, not -0.1"),
    "a skill is true": (ONE + "skills = { img = true }\n", 4, "img", "from 0 to 1, not True"),
    "a skill is nan": (ONE + "skills = { img = nan }\n", 4, "img", "from 0 to 1, not nan"),
    "a skill in a table": (ONE + "[backend.skills]\nimg = 9\n", 5, "img", "from 0 to 1, not 9"),
    "half a price": (ONE + "price_usd_per_mtok = { input = 1 }\n", 4, "price_usd_per_mtok", "both"),
    "price is a number": (ONE + "price_usd_per_mtok = 1\n", 4, "price_usd_per_mtok", "a table"),
    "unknown price": (ONE + "price_usd_per_mtok = { in = 1 }\n", 4, "price_usd_per_mtok", "input"),
    "a negative price": (
        ONE + "price_usd_per_mtok = { input = -1, output = 1 }\n", 4, "input", "at least 0, not -1",
    ),
    "a price without end": (
        ONE + "price_usd_per_mtok = { input = 1, output = inf }\n", 4, "output", "not inf",
    ),
    "a negative latency": (ONE + "latency_s = -1\n", 4, "latency_s", "at least 0, not -1"),
    "latency is a text": (TWO + 'latency_s = "3 s"\n', 7, "latency_s", "at least 0, not '3 s'"),
    "latency without end": (ONE + "latency_s = inf\n", 4, "latency_s", "not inf"),
    "the key in a comment above": (LONG_TASK, 6, "latency_s", "not -1"),
    "a blank line before a comment": (
        "\n\n# one\n\n \t# two\n" + ONE + "latency_s = -1\n", 9, "latency_s", "not -1",
    ),
    "the key in the backend before": (
        ONE + "latency_s = 1\n" + TWO[len(ONE):] + "latency_s = -1\n", 8, "latency_s", "not -1",
    ),
    "too short an answer": (ONE + "max_output_tokens = 8\n", 4, "max_output_tokens", "at least 16"),
    "half a token": (ONE + "max_output_tokens = 64.5\n", 4, "max_output_tokens", "whole number"),
    "tokens are true": (ONE + "max_output_tokens = true\n", 4, "max_output_tokens", "whole number"),
    "options is a list": (ONE + "options = [1]\n", 4, "options", "table with request fields"),
    "a date in the options": (ONE + "options = { a = 2026-01-01 }\n", 4, "options", "as JSON"),
    "nan in the options": (ONE + "options = { a = [nan] }\n", 4, "options", "as JSON"),
    "engines is a text": ('engines = "local"\n' + ONE, 1, "engines", "image and audio"),
    "unknown engine table": (ONE + "[engines.video]\n", 4, "engines", "image and audio"),
    "an engine is a text": (ONE + '[engines]\nimage = "local"\n', 5, "image", "needs a table with"),
    "unknown key in an engine": (
        ONE + '[engines]\nimage = { engine = "local", x = 1 }\n', 5, "image", "needs a table with",
    ),
    "an engine without engine": (ONE + "[engines.image]\n", 4, "image", '"endpoint" or "local"'),
    "unknown engine": (
        ONE + '[engines]\nimage = { engine = "gpu" }\n', 5, "image", 'needs "endpoint" or "local"',
    ),
    "engine without a backend": (
        TWO + '[engines]\naudio = { engine = "endpoint" }\n', 8, "audio", "needs one of a, b",
    ),
    "engine of an unknown backend": (
        ONE + ENGINES.replace('"a"', '"c"'), 5, "audio", "backend needs one of a",
    ),
    "transcription model is a number": (
        ONE + ENGINES.replace(" }", ",transcription_model=1}"), 5, "transcription_model", "text",
    ),
    "a minute is a text": (
        ONE + ENGINES.replace(" }", ', usd_per_minute = "x" }'), 5, "usd_per_minute", "not 'x'",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line", "key", "words"), BROKEN.values(), ids=BROKEN)
def test_an_error_names_file_line_key_and_what_to_write(text, line, key, words, pool_file):
    path = pool_file(text)
    with pytest.raises(ConfigError) as error:
        load(path)
    said = str(error.value)
    assert said.startswith(f"{path}:{line}: {key}: ")
    assert words in said
    assert "\n" not in said


@pytest.mark.parametrize("field", sorted(OURS))
def test_an_option_can_not_take_over_what_the_program_sets(field, pool_file):
    with pytest.raises(ConfigError, match=f":4: options: can not hold {field}, "):
        load(pool_file(ONE + f"options = {{ {field} = 1 }}\n"))


@pytest.mark.parametrize("secret", ["sk-a1-b2", "me:pw@127"])
def test_an_error_never_repeats_a_secret(secret, pool_file):
    text = ONE.replace("127", secret) if "@" in secret else ONE + f'api_key_env = "{secret}"\n'
    with pytest.raises(ConfigError) as error:
        load(pool_file(text))
    assert secret.partition("@")[0] not in str(error.value)


NO_TOML = {
    "no TOML": ("name: a\n", "line 1"),
    "an open text": (ONE + 'model = "x\n', "line 4"),
    "a key twice": (ONE + 'name = "b"\n', "line 4"),
    "an open bracket": (ONE + "skills = {", "end of document"),
    "nested without end": ("a = " + "[" * 5000, "not TOML"),
    "no UTF-8": (b'name = "\xff"', "can not be read"),
    "zeros": (b"\0\0\0", "line 1"),
}


@pytest.mark.parametrize(("text", "words"), NO_TOML.values(), ids=NO_TOML)
def test_a_file_that_is_no_toml_is_an_error_of_one_line(text, words, pool_file):
    path = pool_file(text)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}: ") and words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", ["none.toml", "."])
def test_a_file_that_is_not_there_is_an_error_that_names_it(path, tmp_path):
    with pytest.raises(ConfigError, match="can not be read.*name a pool file like backends.toml"):
        load(tmp_path / path)


# ---- the environment -----------------------------------------------------------------------------

URL = {"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1/"}
KEY = {"OPENAI_API_KEY": "sk-x"}


def test_an_address_alone_is_a_local_server_without_a_key():
    (b,) = from_environment(None, URL).backends
    assert (b.model, b.base_url, b.api_key_env) == ("", "http://127.0.0.1:8000/v1", "")


def test_an_address_and_a_key_go_together():
    (b,) = from_environment("m", {**URL, **KEY}).backends
    assert (b.name, b.model, b.api_key_env) == ("m", "m", "OPENAI_API_KEY")


def test_a_key_alone_brings_the_pool_file_of_this_repository():
    assert from_environment(None, KEY) == load(ROOT / "backends.toml")


def test_a_key_and_a_model_of_that_file_make_it_the_main_one():
    pool = from_environment("gpt-5-mini", KEY)
    assert (pool.main, pool.names) == ("gpt-5-mini", load(ROOT / "backends.toml").names)


def test_a_key_and_another_model_are_one_backend_of_unknown_price():
    pool = from_environment("gpt-x", KEY)
    assert (pool.main, pool.names, pool["gpt-x"].price) == ("gpt-x", ("gpt-x",), None)
    assert pool["gpt-x"].base_url == "https://api.openai.com/v1"


def test_the_one_endpoint_sees_and_hears():
    pool = from_environment("m", URL)
    assert pool.engines == {k: Engine("endpoint", "m") for k in ("image", "audio")}


@pytest.mark.parametrize("environment", [{}, {"OPENAI_BASE_URL": "", "OPENAI_API_KEY": ""}])
def test_without_an_endpoint_the_error_says_how_to_do_without(environment):
    with pytest.raises(ConfigError, match=r"OPENAI_API_KEY.*--backends.*make demo.*--replay"):
        from_environment("m", environment)


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://h/v1", "http://", "http://[::1", "http://h:x"]
)
def test_an_address_of_the_environment_that_is_none_is_named(url):
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL: needs http"):
        from_environment(None, {"OPENAI_BASE_URL": url})


def test_a_password_in_the_address_of_the_environment_is_refused_and_not_repeated():
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL: holds a user or password") as error:
        from_environment(None, {"OPENAI_BASE_URL": "http://me:geheim@h/v1"})
    assert "geheim" not in str(error.value)


# ---- the flags -----------------------------------------------------------------------------------


def test_a_file_wins_over_the_environment(pool_file, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere/v1")
    assert choose(pool_file(TWO), None, None).names == ("a", "b")


def test_without_a_file_the_environment_counts(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://here/v1")
    assert choose(None, "m", None)["m"].base_url == "http://here/v1"


def test_a_model_of_the_file_becomes_the_main_one(pool_file):
    assert choose(pool_file(TWO), "b", None).main == "b"


def test_a_model_that_is_not_in_the_file_is_an_error_with_those_there_are(pool_file):
    with pytest.raises(ConfigError, match=r"--model c: is no backend of .*pool\.toml; one of a, b"):
        choose(pool_file(TWO), "c", None)


def test_perception_local_takes_the_libraries_whatever_the_file_says(pool_file):
    pool = choose(pool_file(FULL), None, "local")
    assert pool.engines == {"image": Engine("local"), "audio": Engine("local")}


def test_perception_endpoint_takes_backends_whatever_the_file_says(pool_file):
    text = FULL.replace("img = 0.5", "img = 0.5, aud = 0.5")
    pool = choose(pool_file(text), None, "endpoint")
    assert pool.engines == {k: Engine("endpoint", "a") for k in ("image", "audio")}


def test_perception_endpoint_needs_backends_that_see_and_hear(pool_file):
    with pytest.raises(ConfigError, match="--perception endpoint: no backend .* img and aud"):
        choose(pool_file(FULL), None, "endpoint")


# ---- before the first call -----------------------------------------------------------------------


@pytest.mark.parametrize("environment", [{}, {"A_KEY": ""}])
def test_a_key_that_is_not_set_is_named_with_its_backend(environment, pool_file):
    with pytest.raises(ConfigError, match="backend a: the environment variable A_KEY is not set"):
        check(load(pool_file(FULL)), None, environment)


@pytest.mark.parametrize("key", ["abc\ndef", "schlüssel", "a\x00b"])
def test_a_key_that_no_header_takes_is_refused_before_the_first_call(key, pool_file):
    with pytest.raises(ConfigError, match="variable A_KEY holds a line break or") as error:
        check(load(pool_file(FULL)), None, {"A_KEY": key})
    assert key not in str(error.value)


def test_the_keys_are_looked_up_in_the_environment_of_now(pool_file, monkeypatch):
    monkeypatch.setenv("A_KEY", "k")
    assert check(load(pool_file(FULL)), None) is None


def test_a_budget_needs_the_price_of_every_backend(pool_file):
    text = FULL.replace("price_usd_per_mtok = { input = 1.0, output = 2.0 }\n", "")
    with pytest.raises(ConfigError, match="--budget needs prices, and backend b has none"):
        check(load(pool_file(text)), 1.0, {"A_KEY": "k"})


def test_a_budget_of_zero_is_a_budget_too(pool_file):
    with pytest.raises(ConfigError, match="--budget needs prices"):
        check(load(pool_file(ONE)), 0.0, {})


def test_without_a_budget_no_price_is_needed(pool_file):
    assert check(load(pool_file(ONE)), None, {}) is None


def test_a_budget_needs_the_price_of_a_minute_of_transcription(pool_file):
    pool = load(pool_file(FULL.replace("usd_per_minute = 0.006\n", "")))
    with pytest.raises(ConfigError, match=r"--budget needs prices.*audio.*usd_per_minute"):
        check(pool, 1.0, {"A_KEY": "k"})


def test_a_budget_with_every_price_is_fine(pool_file):
    assert check(load(pool_file(FULL)), 1.0, {"A_KEY": "k"}) is None


def test_a_key_in_the_query_of_an_address_is_not_repeated():
    with pytest.raises(ConfigError) as error:
        from_environment(None, {"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1?key=hidden"})
    assert "hidden" not in str(error.value)
