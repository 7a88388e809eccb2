"""Readings of an engine's own `/metrics`: families of vLLM, SGLang, llama.cpp and TGI.

Empty so far. What comes here is found and scraped every `--engine-scrape-interval` by a loop of its own and
feeds `least-loaded`, the flow control of `gate` and the verdict that an engine is frozen.
"""
