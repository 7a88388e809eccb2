"""What crosses a process boundary in FastLLM, and what must be the same on both sides of it.

Both planes import this package; it imports neither of them. It holds frozen structs with their codecs
(`snapshot`, `usage`, `health`), the digest under which keys are known (`keys`), ids (`ids`), the rules for
addresses that may be dialled (`addresses`), settings from flags and environment (`settings`), the `fastllm`
command (`command`), and what logs do with text that is not ours (`log_lines`).

And the routing engine, which is pure and runs in proxies and in the dry run alike:

`conditions`  whether a request fulfils what a rule asks
`routing`     the rule that decides, jumps followed
`targets`     names resolved to the backends that serve them
`policies`    which target and which backend of several; with `hashing` and `turns`
`chain`       all of these: from a frontend model to the targets to be tried, the fallback last
`estimates`   tokens, cost and the key of the conversation, from a body; with `members`
`given`       a request that is only spoken of
"""

__version__ = "0.1.0"
