"""What this process must have from the machine before it serves: compiled extensions, and files to open."""

from __future__ import annotations

import importlib
import resource

REASONABLE_FILES = 1_048_576
"""Asked for where the hard limit is unlimited: the kernel's own default ceiling (`fs.nr_open`)."""

_EXTENSIONS = (
    "aiohttp._http_parser",
    "aiohttp._http_writer",
    "httptools.parser.parser",
    "httptools.parser.url_parser",
    "msgspec._core",
    "multidict._multidict",
    "uvloop.loop",
)


def missing_extensions() -> list[str]:
    """Extensions that this installation lacks. It would serve all the same, and far more slowly: httptools,
    msgspec and uvloop are in every request, those of aiohttp in every call to the control plane."""
    missing = []
    for name in _EXTENSIONS:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    if not missing:
        parser = importlib.import_module("aiohttp.http_parser")
        if parser.HttpRequestParser.__module__ != "aiohttp._http_parser":
            missing.append("aiohttp._http_parser (switched off by AIOHTTP_NO_EXTENSIONS)")
    return missing


def raise_file_limit() -> int:
    """Raises the soft limit of open files to the hard one; returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = REASONABLE_FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # a sandbox may forbid it: the present limit is then what there is
            return soft
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft
