"""What crosses a process boundary in FastLLM, and what must be the same on both sides of it.

Both planes import this package; it imports neither of them. It holds frozen structs with their codecs
(`snapshot`, `usage`, `health`), the digest under which keys are known (`keys`), ids (`ids`), the rules for
addresses that may be dialled (`addresses`), the pure routing engine that proxy and dry run share
(`routing`), settings from flags and environment (`settings`), the `fastllm` command (`command`), and what
logs do with text that is not ours (`log_lines`).
"""

__version__ = "0.1.0"
