#!/usr/bin/env python3
"""FastLLM's node agent: registers this host's model endpoints with the control plane, on a lease.

Not built yet. It will be this one file, on Python's standard library alone, for Python 3.8 and newer.
"""

import sys

if __name__ == "__main__":
    sys.exit("fastllm-node-agent: not available yet; add hosts with `POST /admin/providers`")
