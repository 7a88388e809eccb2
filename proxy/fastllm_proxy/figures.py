"""Finds the numbers in an answer without being a parser of answers: reads what `mirror` kept, never
raises."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import ModuleType
from typing import Annotated, Any, Final

import msgspec

from fastllm_proxy.dialects import anthropic, openai
from fastllm_proxy.dialects.numbers import MAX_COUNT
from fastllm_proxy.exchange import TokenUsage
from fastllm_proxy.mirror import Mirror
from fastllm_shared.targets import Dialect

_NAME: Final = b'"usage"'
# An object whose members are plain or objects of plain ones: what a usage object is.
_OBJECT: Final = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*(\{[^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+\})")
_MAX_CANDIDATES: Final = 64

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]


class _PromptDetails(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: _Count | None = None


class _CompletionDetails(msgspec.Struct, frozen=True, gc=False):
    reasoning_tokens: _Count | None = None


class _UsualUsage(msgspec.Struct, frozen=True):
    """What most engines send. Whatever does not fit in here is read with more patience."""

    prompt_tokens: _Count
    completion_tokens: _Count
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    prompt_cache_hit_tokens: None = None
    cost: None = None


class _UsualAnswer(msgspec.Struct, frozen=True):
    usage: _UsualUsage


class _Answer(msgspec.Struct, frozen=True):
    usage: dict[str, Any] | None = None
    meta: Any = None


_decode_usual_answer = msgspec.json.Decoder(_UsualAnswer).decode
_decode_usual_usage = msgspec.json.Decoder(_UsualUsage).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode


def read_usage(mirror: Mirror, dialect: Dialect) -> TokenUsage | None:
    """What the engine reported; `None` is unknown."""
    module = _module(dialect)
    if not mirror.readable:
        return None
    tail = mirror.tail()
    if mirror.whole and not mirror.event_stream:
        if dialect == "openai" and (usual := _usual(tail)) is not None:
            return usual
        figures = _top_level(tail)
        if figures is not None:
            return _interpret(module, figures)
    elif dialect == "openai" and (usual := _usual_event(tail)) is not None:
        return usual
    last = next(_candidates(tail, module), None)
    if dialect == "anthropic" and mirror.event_stream:
        # The prompt is counted when the message starts, the rest as it goes on.
        first = _first(tail if mirror.whole else mirror.head)
        if first is not None:
            return _interpret(module, {**first, **{k: v for k, v in (last or {}).items() if v is not None}})
    if last is None and not mirror.whole:
        last = next(_candidates(mirror.head, module), None)
    return None if last is None else _interpret(module, last)


def _module(dialect: Dialect) -> ModuleType:
    return anthropic if dialect == "anthropic" else openai


def _interpret(module: ModuleType, figures: dict[str, Any]) -> TokenUsage | None:
    usage: TokenUsage | None = module.usage(figures)
    return usage


def _usual(text: bytes) -> TokenUsage | None:
    try:
        return _as_usual(_decode_usual_answer(text).usage)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _usual_event(text: bytes) -> TokenUsage | None:
    """The same from the last usage object of an event stream."""
    found = _object_text(text, text.rfind(_NAME))
    if found is None:
        return None
    try:
        return _as_usual(_decode_usual_usage(found))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _as_usual(found: _UsualUsage) -> TokenUsage:
    prompt, completion = found.prompt_tokens_details, found.completion_tokens_details
    return TokenUsage(
        found.prompt_tokens,
        found.completion_tokens,
        None if prompt is None else prompt.cached_tokens,
        None if completion is None else completion.reasoning_tokens,
    )


def _top_level(text: bytes) -> dict[str, Any] | None:
    try:
        answer = _decode_answer(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return answer.usage if answer.usage is not None else openai.figures_in_meta(answer.meta)


def _candidates(text: bytes, module: ModuleType) -> Iterator[dict[str, Any]]:
    """Usage objects that count something, the last one first."""
    end = len(text)
    for _ in range(_MAX_CANDIDATES):
        at = text.rfind(_NAME, 0, end)
        if at < 0:
            return
        end = at
        figures = _object_at(text, at)
        if figures is not None and _interpret(module, figures) is not None:
            yield figures


def _first(text: bytes) -> dict[str, Any] | None:
    return _object_at(text, text.find(_NAME))


def _object_text(text: bytes, at: int) -> bytes | None:
    """The object behind the name at that place, if there is one."""
    # A quote behind a backslash belongs to content.
    if at < 0 or text[at - 1 : at] == b"\\":
        return None
    found = _OBJECT.match(text, at + len(_NAME))
    return None if found is None else found[1]


def _object_at(text: bytes, at: int) -> dict[str, Any] | None:
    found = _object_text(text, at)
    try:
        return None if found is None else _decode_object(found)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
