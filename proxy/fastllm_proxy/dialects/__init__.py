"""What differs between the OpenAI and the Anthropic dialect once a request is on its way: how an engine
counts tokens, what an error event in a stream looks like, and which answers mean that a model is missing."""
