"""HTTP as real local endpoints speak it: vcrpy cassettes of one test each, `make cassettes` records them again.

tests/cassettes/NAME.yaml. A request that differs from the recorded one in method, path or body
fails the test. Pages are not here: tools/guard.py connects its own sockets, which vcrpy does not
intercept; tests/tools/test_web.py and tests/attacks/test_network.py test it on loopback.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import vcr
from vcr.request import Request
from vcr.stubs import VCRHTTPResponse

from runtime.openai_api import transcribe, with_model
from tests.conftest import Chat, Price, Purse, Tape, pool_at
from tests.program import SPEECH
from tests.scripted import Raw
from tools import search

CASSETTES = Path(__file__).with_name("cassettes")
KEY = "sk-a-key-of-these-tests-1234567890"
MODEL = "models/qwen-coder-1.5b.gguf"
OPTIONS = {"max_output_tokens": 16, "options": {"temperature": 0}, "api_key_env": "MODEL_KEY"}
QUESTION = [{"role": "user", "content": "The capital of Czechia, as JSON?"}]
CITY = {"city": {"type": "string", "maxLength": 12}}
SCHEMA = "city", {"type": "object", "properties": CITY, "required": ["city"]}


def stored(request: Request) -> Request:
    """A request without what differs each time: the port and the boundary; of a sound its hash."""
    request.uri = re.sub(r"//[^/]+", "//cassette.test", request.uri)
    if boundary := re.search("boundary=(.+)", request.headers.get("content-type", "")):
        request.headers["content-type"] = "multipart/form-data; boundary=boundary"
        body = request.body.replace(boundary[1].encode(), b"boundary")
        sound = re.compile(rb"RIFF.*?(?=\r\n--boundary)", re.DOTALL)
        request.body = sub_hash(sound, body)
    return request


def sub_hash(pattern: re.Pattern[bytes], body: bytes) -> bytes:
    return pattern.sub(lambda found: hashlib.sha256(found[0]).hexdigest().encode(), body)
