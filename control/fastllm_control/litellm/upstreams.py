"""What a provider prefix of LiteLLM stands for: an address that takes OpenAI's shapes, and how the credential
is sent there; or why there is none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from fastllm_shared.snapshot import Protocol


class Upstream(Struct, frozen=True):
    """`base` absent: the file must have an `api_base`. `variable` holds the credential when the file names
    none. `suffix` is what an `api_base` in LiteLLM's manner still lacks, `note` what to know about it."""

    base: str | None = None
    variable: str | None = None
    protocol: Protocol = "openai"
    auth_header: str = "authorization"
    auth_scheme: str | None = None
    suffix: str = ""
    note: str | None = None


class Unfit(Struct, frozen=True):
    """Nothing to send requests to, and why."""

    reason: str


_SERVER = Upstream()
_AZURE = Upstream(
    variable="AZURE_API_KEY", auth_header="api-key", auth_scheme="", suffix="/openai/v1",
    note="Azure's v1 interface is used: it takes the deployment's name as the model, and no api_version",
)  # fmt: skip
_ANTHROPIC = Upstream(
    "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", "both", "x-api-key", "", "/v1",
    note="nothing is translated: /v1/messages and chat completions go to Anthropic's own endpoints for them",
)  # fmt: skip
_OLLAMA = Upstream("http://localhost:11434/v1", suffix="/v1")
_SIGNED = Unfit(
    "its requests are signed by the cloud's own scheme, and only a key in a header can be sent here"
)
_GOOGLE = Unfit("its access tokens last an hour and are minted by Google's libraries; `gemini/` takes a key")
_SHAPE = Unfit("it does not take requests in OpenAI's shape, and nothing is translated here")
_IN_PROCESS = Unfit("it runs inside LiteLLM's process")

UPSTREAMS: Mapping[str, Upstream | Unfit] = {
    "openai": Upstream("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "text-completion-openai": Upstream("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "azure": _AZURE,
    "azure_ai": _AZURE,
    "azure_text": _AZURE,
    "anthropic": _ANTHROPIC,
    "gemini": Upstream("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    "groq": Upstream("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "together_ai": Upstream("https://api.together.xyz/v1", "TOGETHERAI_API_KEY"),
    "mistral": Upstream("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "codestral": Upstream("https://codestral.mistral.ai/v1", "CODESTRAL_API_KEY"),
    "deepseek": Upstream("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "openrouter": Upstream("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "fireworks_ai": Upstream("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "xai": Upstream("https://api.x.ai/v1", "XAI_API_KEY"),
    "perplexity": Upstream("https://api.perplexity.ai", "PERPLEXITYAI_API_KEY"),
    "deepinfra": Upstream("https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY"),
    "cerebras": Upstream("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "nvidia_nim": Upstream("https://integrate.api.nvidia.com/v1", "NVIDIA_NIM_API_KEY"),
    "sambanova": Upstream("https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
    "moonshot": Upstream("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
    "dashscope": Upstream("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
    "nebius": Upstream("https://api.studio.nebius.ai/v1", "NEBIUS_API_KEY"),
    "novita": Upstream("https://api.novita.ai/v3/openai", "NOVITA_API_KEY"),
    "friendliai": Upstream("https://api.friendli.ai/serverless/v1", "FRIENDLIAI_API_KEY"),
    "baseten": Upstream("https://inference.baseten.co/v1", "BASETEN_API_KEY"),
    "cohere": Upstream("https://api.cohere.ai/compatibility/v1", "COHERE_API_KEY"),
    "cohere_chat": Upstream("https://api.cohere.ai/compatibility/v1", "COHERE_API_KEY"),
    "voyage": Upstream("https://api.voyageai.com/v1", "VOYAGE_API_KEY"),
    "jina_ai": Upstream("https://api.jina.ai/v1", "JINA_AI_API_KEY"),
    "volcengine": Upstream("https://ark.cn-beijing.volces.com/api/v3", "ARK_API_KEY"),
    "ollama": _OLLAMA,
    "ollama_chat": _OLLAMA,
    **dict.fromkeys(
        (
            *("hosted_vllm", "openai_like", "custom_openai", "litellm_proxy", "lm_studio", "llamafile"),
            *("xinference", "infinity", "docker_model_runner", "lemonade"),
        ),
        _SERVER,
    ),
    **dict.fromkeys(("bedrock", "bedrock_converse", "sagemaker", "sagemaker_chat", "oci"), _SIGNED),
    **dict.fromkeys(("vertex_ai", "vertex_ai_beta"), _GOOGLE),
    **dict.fromkeys(("watsonx", "databricks", "snowflake", "github_copilot", "gigachat"), Unfit(
        "its access tokens are minted by its own scheme, and only a fixed key can be sent here")),
    **dict.fromkeys(
        ("replicate", "predibase", "petals", "nlp_cloud", "aleph_alpha", "cloudflare", "triton", "ai21",
         "huggingface", "palm", "maritalk", "clarifai", "deepgram", "elevenlabs", "assemblyai", "topaz"),
        _SHAPE),
    "vllm": _IN_PROCESS,
    "custom": _IN_PROCESS,
}  # fmt: skip
_OPENAI_NAMES = re.compile(
    r"(gpt-|chatgpt-|o[134]\b|o[134]-|text-embedding-|dall-e|whisper|tts-|davinci|babbage).*"
)


def split(model: str, provider: str | None) -> tuple[str, str]:
    """The prefix and the upstream's name of a model; the prefix is empty where there is none to be seen."""
    if provider:
        return provider, model.removeprefix(f"{provider}/")
    prefix, slash, rest = model.partition("/")
    if slash and prefix in UPSTREAMS:
        return prefix, rest
    if _OPENAI_NAMES.fullmatch(model):
        return "openai", model
    return ("anthropic", model) if model.startswith("claude") else ("", model)


def upstream(prefix: str, api_base: str | None) -> Upstream | Unfit:
    """What stands behind a prefix, with the `api_base` of the file or its own."""
    found = UPSTREAMS.get(prefix)
    if found is None:
        return Unfit(
            "nothing is known here of its provider prefix: name its server as openai/… with an api_base"
        )
    if prefix == "vllm" and api_base:
        return _SERVER
    if isinstance(found, Upstream) and not (api_base or found.base):
        return Unfit("it has no api_base, and its provider prefix stands for no known one")
    return found


def address(found: Upstream, api_base: str | None) -> str:
    """The `api_base` as FastLLM wants it: what `/chat/completions` is put behind."""
    if not api_base:
        return found.base or ""
    base = api_base.rstrip("/")
    for ending in ("/chat/completions", "/messages", "/embeddings"):
        base = base.removesuffix(ending)
    if not found.suffix or base.endswith(found.suffix):
        return base
    if found.suffix == _AZURE.suffix:
        parts = urlsplit(base)
        return base if base.endswith("/v1") else f"{parts.scheme}://{parts.netloc}{found.suffix}"
    return base + found.suffix
