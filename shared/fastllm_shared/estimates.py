"""What routing estimates of a request, from its body alone. Pure: a proxy and the dry run must come to the
same figures.

`members` are the top-level members of a JSON body, each as the text of its value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from fastllm_shared.hashing import stable_hash
from fastllm_shared.snapshot import ProviderModelEntry

Body = bytes | bytearray
Members = Mapping[str, msgspec.Raw]

AFFINITY_BYTES: Final = 1024
EXPECTED_GENERATION: Final = 1024
"""Tokens that are expected of a request that does not say how many it wants generated."""
_SEARCHED_BYTES: Final = 256 * 1024
_DATA_URL: Final = b";base64,"
_DATA: Final = b'data"'
# Text that a tool or a person calls `data` counts: this much without a blank is a file.
_ENCODED_VALUE: Final = re.compile(rb'\s*:\s*"(?=(?:[A-Za-z0-9+/_-]|\\[/nr]){256})')
_USER: Final = b'"user"'
_ROLE: Final = b'"role"'

_decode_count = msgspec.json.Decoder(int).decode


def prompt_tokens(body: Body) -> int:
    """An estimate: four bytes a token, files that are embedded as base64 left out. Those are in data URLs, or
    the values of `data` and `file_data`, as in Anthropic's blocks and `input_audio`."""
    size = len(body)
    start = body.find(_DATA_URL)
    while start >= 0:
        end = body.find(b'"', start)
        if end < 0:
            break
        size -= end - start
        start = body.find(_DATA_URL, end)
    start = body.find(_DATA)
    while start >= 0:
        end = start + len(_DATA)
        if value := _ENCODED_VALUE.match(body, end):
            end = body.find(b'"', value.end())
            if end < 0:
                break
            size -= end - value.end()
        start = body.find(_DATA, end)
    return max(size, 0) // 4


def requested_tokens(members: Members) -> int | None:
    """How many tokens the client wants generated, all choices together; `None` if it does not say."""
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        if name in members and (count := _count(members[name])) is not None:
            choices = _count(members["n"]) if "n" in members else None
            return count * (choices or 1)
    return None


def _count(raw: msgspec.Raw) -> int | None:
    try:
        return max(_decode_count(raw), 0)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def expected_generation(requested: int | None, *, generates: bool) -> int:
    """Tokens that will be generated; `requested` is what the client says, `generates` whether its endpoint is
    answered in tokens at all."""
    if not generates:
        return 0
    return EXPECTED_GENERATION if requested is None else requested


def expected_cost(model: ProviderModelEntry, prompt: int, generated: int) -> float | None:
    """What so many tokens cost, in micro-units per million; `None` unless every price that counts is set."""
    total = 0
    for tokens, price in ((prompt, model.input_price_per_mtok), (generated, model.output_price_per_mtok)):
        if tokens:
            if price is None:
                return None
            total += tokens * price
    return total


def conversation_key(principal_id: str, start: bytes) -> int:
    """What the weighted split and `cache-affinity` go by: who asks, and how the conversation begins."""
    return stable_hash(principal_id.encode(), start)


def conversation_start(members: Members, body: Body, model_end: int) -> bytes:
    """1 KiB from the first user message; agents' system prompts before it are all alike. Without messages: of
    the input, else of the body after the model's name, which ends at `model_end`."""
    messages = members.get("messages")
    if messages is not None:
        text = bytes(memoryview(messages)[:_SEARCHED_BYTES])
        at = text.find(_USER)
        if at >= 0:
            return _message_around(text, at)
    elif (given := members.get("input")) is not None:
        return bytes(memoryview(given)[:AFFINITY_BYTES])
    return bytes(body[model_end : model_end + AFFINITY_BYTES])


def _message_around(text: bytes, at: int) -> bytes:
    """The beginning of the message whose role stands at `at`, and nothing of the next one: the first turn has
    none."""
    after = at + len(_USER)
    following = text[after : after + AFFINITY_BYTES]
    if following.lstrip()[:1] == b"}":  # the role is written last
        start = max(text.rfind(b'"content"', 0, at), 0)
        return text[start:at][:AFFINITY_BYTES]
    next_role = following.find(_ROLE)
    if next_role >= 0:
        following = following[:next_role]
    elif after + AFFINITY_BYTES < len(text):
        return following
    return following[: following.rfind(b"}") + 1]
