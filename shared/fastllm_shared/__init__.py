"""What crosses a process boundary in FastLLM, and nothing else.

Both planes import this package; it imports neither of them. It holds frozen structs with their codecs
(`snapshot`, `usage`, `health`), the digest under which keys are known (`keys`), ids (`ids`), the rules for
addresses that may be dialled (`addresses`), the pure routing engine that proxy and dry run share
(`routing`), settings from flags and environment (`settings`) and the `fastllm` command (`command`).
"""

__version__ = "0.1.0"
