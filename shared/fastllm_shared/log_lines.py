"""Text in the logs of both planes that is not ours: what clients, providers and libraries wrote."""

from __future__ import annotations

import logging
import re

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: str) -> str:
    """`text` with whatever could start a line or speak to the reader's terminal escaped."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def message_of(record: logging.LogRecord) -> str:
    """What a library's record says. Arguments that do not fit it are no reason to fail where it stands."""
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        return str(record.msg)
