"""What is taken out of a text, what is left, and that doing it twice changes nothing."""

from __future__ import annotations

import time

import pytest

from repdyn.utils.redaction import redacted

TOKEN = "hf_" + "aB3" * 11 + "x"
WANDB = "0123456789abcdef0123456789abcdef01234567"
COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
ENVIRONMENT = {
    "WANDB_API_KEY": WANDB,
    "HF_TOKEN": "opaque-of-a-proxy",
    "SHORT_TOKEN": "no",
    "PATH": "/usr/bin:/bin",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setattr("os.environ", ENVIRONMENT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://me:pa%40ss@hub.example/a", "https://hub.example/a"),
        ("'ftp://me:p@ss@host:21/a' failed", "'ftp://host:21/a' failed"),
        ("GET https://cdn/x?X-Amz-Signature=0a1&Expires=9 (404)", "GET https://cdn/x (404)"),
        ("https://token@github.com/a.git", "https://github.com/a.git"),
        ("api_key: abc", "api_key: REDACTED"),
        ("WANDB_API_KEY=abc", "WANDB_API_KEY=REDACTED"),
        (f"user {TOKEN} unknown", "user REDACTED unknown"),
        (f"ghp_{'a' * 36}", "REDACTED"),
        (f"key {WANDB} refused", "key REDACTED refused"),
        ("opaque-of-a-proxy", "REDACTED"),
    ],
)
def test_secrets_are_taken_out(text, expected):
    assert redacted(text) == expected
    assert redacted(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        f"lab/model@{COMMIT}: the hub answered 500",
        "expected max_vectors=192, got tokens=5",
        "pad_token='[PAD]', bos_token=<s>, special_tokens: 3",
        "Unexpected token: '}' at line 3",
        "no connection to http://127.0.0.1:8080/api/models",
        (
            "Expected parameter loc (Tensor of shape (4,)) of distribution Normal to satisfy the "
            "constraint"
        ),
    ],
)
def test_what_is_no_secret_stays(text):
    assert redacted(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "://" * 30_000,
        "a" * 100_000,
        "A_" * 50_000,
        "token=" * 20_000,
        "x-amz-" * 20_000,
        "=" * 100_000,
    ],
)
def test_the_time_grows_with_the_length_alone(text):
    start = time.process_time()
    redacted(text)
    assert time.process_time() - start < 2
