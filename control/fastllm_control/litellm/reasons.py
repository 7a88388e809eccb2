"""Why fields that LiteLLM has are not carried, by their names, wherever in the file they stand."""

from __future__ import annotations

import re
from collections.abc import Mapping

UNKNOWN = "nothing here corresponds to it"
_CACHE = "answers are not cached here"
_CALLBACK = "there are no callbacks: usage is in /admin/usage, figures on /metrics"
_BODY = "bodies reach the engine as they were sent: the client must send this itself"
_REDIS = "replicas agree over the control plane: no Redis is needed"
_RETRY = "tries are bounded by a budget for the whole proxy, not by a count"
_EJECT = "when a backend is ejected and comes back is decided per backend: unhealthy_after, the probes"
_SIGNED = "requests are not signed here: only a key in a header can be sent"
_HEADROOM = "backends are limited by concurrency (admission_max_concurrent), not by rates"
_PEOPLE = "people log in with a password; there is no single sign-on yet"
_ALERT = "alerts go to --webhook-url"
_COST = "only prices per input, cached input and output token are known here"
_INFO = "descriptions of models are not kept"
_GUARD = "contents are not inspected here"
_DATABASE = "FASTLLM_DATABASE_URL is this gateway's own; keys come from FASTLLM_LITELLM_DATABASE_URL"
_KEYS = "it governs keys that LiteLLM makes: keys are made over /admin/keys"
_LOG = "what the log says is set by --log-level and --log-format"
_JOBS = "job and file interfaces are not served here"
_TAGS = "rules choose by principals, roles, headers and sizes: write one for it"
_PROMPT = "prompts are not changed here"

_REASONS: Mapping[str, str] = {
    **dict.fromkeys(
        ("cache", "cache_params", "enable_caching_on_provider_specific_optional_params", "cache_responses",
         "caching_groups", "cache_kwargs", "enable_json_schema_validation", "client_ttl"), _CACHE),
    **dict.fromkeys(
        ("callbacks", "success_callback", "failure_callback", "service_callback", "audit_log_callbacks",
         "callback_settings", "post_call_rules", "pre_call_rules", "turn_off_message_logging",
         "redact_user_api_key_info", "langfuse_default_tags", "default_team_settings", "s3_callback_params",
         "datadog_params", "store_prompts_in_spend_logs", "disable_spend_logs", "spend_report_frequency"),
        _CALLBACK),
    **dict.fromkeys(
        ("drop_params", "modify_params", "additional_drop_params", "temperature", "top_p", "max_tokens",
         "max_completion_tokens", "seed", "stop", "frequency_penalty", "presence_penalty", "n",
         "response_format", "extra_body", "reasoning_effort", "thinking", "tools", "tool_choice", "user",
         "merge_reasoning_content_in_choices", "allowed_openai_params", "default_litellm_params",
         "input_type", "dimensions", "add_function_to_prompt", "stream", "safety_settings",
         "supports_system_message", "request_timeout_params"), _BODY),
    **dict.fromkeys(
        ("redis_host", "redis_port", "redis_password", "redis_url", "redis_db", "coordination_redis",
         "use_redis_transaction_buffer", "proxy_batch_write_at"), _REDIS),
    **dict.fromkeys(
        ("num_retries", "max_retries", "retry_after", "retry_policy", "model_group_retry_policy",
         "max_fallbacks", "num_retries_per_request"), _RETRY),
    **dict.fromkeys(
        ("allowed_fails", "cooldown_time", "disable_cooldowns", "allowed_fails_policy",
         "health_check_interval", "background_health_checks", "health_check_details", "health_check_model",
         "health_check_timeout", "enable_health_check_routing"), _EJECT),
    **dict.fromkeys(
        ("vertex_project", "vertex_location", "vertex_credentials", "aws_access_key_id", "tenant_id",
         "aws_secret_access_key", "aws_session_token", "aws_region_name", "aws_session_name",
         "aws_profile_name", "aws_role_name", "aws_bedrock_runtime_endpoint", "client_id", "client_secret",
         "aws_web_identity_token", "region_name", "azure_ad_token", "watsonx_region_name",
         "enable_azure_ad_token_refresh"), _SIGNED),
    **dict.fromkeys(
        ("rpm", "tpm", "itpm", "otpm", "rpd", "tpd", "default_api_key_rpm_limit", "routing_strategy_args",
         "default_api_key_tpm_limit", "enforce_model_rate_limits"), _HEADROOM),
    **dict.fromkeys(
        ("enable_jwt_auth", "litellm_jwtauth", "ui_access_mode", "custom_auth", "custom_sso", "proxy_admin",
         "enable_oauth2_auth", "allowed_ips", "user_header_name", "proxy_admin_email",
         "custom_ui_sso_sign_in_handler", "allow_user_auth", "default_internal_user_params",
         "internal_user_budget_duration", "max_internal_user_budget", "litellm_key_header_name"), _PEOPLE),
    **dict.fromkeys(
        ("alerting", "alerting_threshold", "alert_types", "alerting_args", "alert_to_webhook_url",
         "slack_webhook_url", "budget_alert_ttl"), _ALERT),
    **dict.fromkeys(
        ("database_url", "database_connection_pool_limit", "database_connection_timeout", "database_type",
         "allow_requests_on_db_unavailable", "store_model_in_db", "supported_db_objects", "key_management",
         "use_shared_health_check", "disable_prisma_schema_update"), _DATABASE),
    **dict.fromkeys(
        ("key_generation_settings", "upperbound_key_generate_params", "default_key_generate_params",
         "custom_key_generate", "max_budget", "budget_duration", "max_end_user_budget", "salt_key",
         "disable_adding_master_key_hash_to_db", "max_parallel_requests", "provider_budget_config",
         "global_max_parallel_requests", "maximum_spend_logs_retention_period"), _KEYS),
    **dict.fromkeys(("set_verbose", "json_logs", "debug_level", "telemetry", "suppress_debug_info"), _LOG),
    **dict.fromkeys(("guardrails", "default_guardrails", "policies", "policy_attachments"), _GUARD),
    **dict.fromkeys(("files_settings", "finetune_settings", "assistant_settings", "vector_store_registry",
                     "batch_settings", "search_tools"), _JOBS),
    **dict.fromkeys(("tags", "enable_tag_filtering", "tag_budget_config", "tag_routing_prefix",
                     "access_windows"), _TAGS),
    **dict.fromkeys(("prompts", "prompt_id", "prompt_variables"), _PROMPT),
    "mcp_servers": "tools are not served here",
    "mcp_tools": "tools are not served here",
    "agent_list": "agents are not served here",
    "pass_through_endpoints": "only the endpoints in docs/reference are served",
    "content_policy_fallbacks": "what an engine refuses for its contents is passed on, not sent elsewhere",
    "forward_client_headers_to_llm_api": "which headers are forwarded is fixed",
    "mock_response": "answers are not invented here",
    "enable_pre_call_checks": "requests always prefer targets whose context holds them",
    "optional_pre_call_checks": "requests always prefer targets whose context holds them",
    "access_groups": "grants name frontend models; used for keys out of LiteLLM's database",
    "api_version": "the OpenAI-shaped address of this provider takes none",
    "base_model": "prices are those of the file, or of `sync-prices`",
    "mode": "endpoints are open to every model: the engine says what it serves",
    "id": "ids are made here",
    "hidden": "models are shown to whoever may use them",
    "use_in_pass_through": "only the endpoints in docs/reference are served",
    "master_key": "only general_settings.master_key is one",
}  # fmt: skip
_BY_SHAPE = (
    (re.compile(r".*_cost_per_.*|.*_cost(_.*)?|cost_per_.*"), _COST),
    (re.compile(r"supports_.*|supported_.*|litellm_provider|metadata|description|.*_output_tokens"), _INFO),
    (re.compile(r"redis_.*"), _REDIS),
    (re.compile(r"aws_.*|vertex_.*|s3_.*|gcs_.*|azure_.*"), _SIGNED),
    (re.compile(r"langfuse_.*|.*_callback(s)?"), _CALLBACK),
)


def reason_for(name: str) -> str:
    """One clause on why the field of that name is not carried."""
    known = _REASONS.get(name)
    if known is not None:
        return known
    return next((reason for shape, reason in _BY_SHAPE if shape.fullmatch(name)), UNKNOWN)
