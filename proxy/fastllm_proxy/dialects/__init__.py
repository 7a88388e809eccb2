"""What differs between the OpenAI and the Anthropic dialect once a request is on its way: how an engine
counts tokens, and what an error event in a stream looks like."""
