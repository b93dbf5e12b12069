"""Map LiteLLM's names: its providers to entries of the catalogue, its unsupported settings to a reason.

A setting of LiteLLM is taken (by `litellm_config.py`), needs nothing (`FINE`), or is left out with a sentence.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class KnownProvider(NamedTuple):
    """What a prefix of LiteLLM's model names stands for."""

    kind: str
    """An entry of the catalogue."""
    base_url: str | None = None
    """The address, for those that the catalogue does not know."""
    key_env: str | None = None
    """Where LiteLLM looks for the key, if that is not where the catalogue does."""


_COMPATIBLE = "openai-compatible"
_SAME = (
    "openai", "anthropic", "gemini", "groq", "mistral", "deepseek", "xai", "openrouter", "cerebras", "cohere", "azure",
    "bedrock", "ollama", "moonshot", "zai", "sglang", "vllm", "llamacpp", "huggingface",
)  # fmt: skip
PROVIDERS: Final[dict[str, KnownProvider]] = {
    **{name: KnownProvider(name) for name in _SAME},
    "huggingface": KnownProvider("huggingface", key_env="HUGGINGFACE_API_KEY"),
    "together_ai": KnownProvider("together", key_env="TOGETHERAI_API_KEY"),
    "fireworks_ai": KnownProvider("fireworks", key_env="FIREWORKS_AI_API_KEY"),
    "ollama_chat": KnownProvider("ollama"),
    "hosted_vllm": KnownProvider("vllm", key_env="HOSTED_VLLM_API_KEY"),
    "lm_studio": KnownProvider("lmstudio", key_env="LM_STUDIO_API_KEY"),
    "llamafile": KnownProvider("llamacpp"),
    "vertex_ai": KnownProvider("vertex"),
    "vertex_ai_beta": KnownProvider("vertex"),
    "cohere_chat": KnownProvider("cohere"),
    "text-completion-openai": KnownProvider("openai"),
    "azure_text": KnownProvider("azure"),
    "bedrock_converse": KnownProvider("bedrock"),
    "zhipu": KnownProvider("zai", key_env="ZHIPU_API_KEY"),
    "zhipuai": KnownProvider("zai", key_env="ZHIPUAI_API_KEY"),
    "kimi": KnownProvider("moonshot"),
    # Servers with an address of their own.
    **{
        name: KnownProvider(_COMPATIBLE)
        for name in (
            "custom",
            "custom_openai",
            "openai_like",
            "litellm_proxy",
            "xinference",
            "infinity",
            "heroku",
            "databricks",
            "azure_ai",
            "predibase",
            "triton",
            "oobabooga",
            "aiohttp_openai",
            "gigachat",
        )
    },
    # Addresses as these vendors document them for OpenAI's clients.
    "github": KnownProvider(_COMPATIBLE, "https://models.github.ai/inference", "GITHUB_API_KEY"),
    "nvidia_nim": KnownProvider(_COMPATIBLE, "https://integrate.api.nvidia.com/v1", "NVIDIA_NIM_API_KEY"),
    "dashscope": KnownProvider(
        _COMPATIBLE, "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"
    ),
    "perplexity": KnownProvider(_COMPATIBLE, "https://api.perplexity.ai", "PERPLEXITYAI_API_KEY"),
    "cloudflare": KnownProvider(
        _COMPATIBLE,
        "https://api.cloudflare.com/client/v4/accounts/${CLOUDFLARE_ACCOUNT_ID:-unset}/ai/v1",
        "CLOUDFLARE_API_KEY",
    ),
    "deepinfra": KnownProvider(_COMPATIBLE, "https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY"),
    "sambanova": KnownProvider(_COMPATIBLE, "https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
    "hyperbolic": KnownProvider(_COMPATIBLE, "https://api.hyperbolic.xyz/v1", "HYPERBOLIC_API_KEY"),
    "novita": KnownProvider(_COMPATIBLE, "https://api.novita.ai/v3/openai", "NOVITA_API_KEY"),
    "nebius": KnownProvider(_COMPATIBLE, "https://api.studio.nebius.ai/v1", "NEBIUS_API_KEY"),
    "friendliai": KnownProvider(_COMPATIBLE, "https://api.friendli.ai/serverless/v1", "FRIENDLI_TOKEN"),
    "ai21": KnownProvider(_COMPATIBLE, "https://api.ai21.com/studio/v1", "AI21_API_KEY"),
    "ai21_chat": KnownProvider(_COMPATIBLE, "https://api.ai21.com/studio/v1", "AI21_API_KEY"),
    "codestral": KnownProvider(_COMPATIBLE, "https://codestral.mistral.ai/v1", "CODESTRAL_API_KEY"),
    "volcengine": KnownProvider(_COMPATIBLE, "https://ark.cn-beijing.volces.com/api/v3", "VOLCENGINE_API_KEY"),
    "meta_llama": KnownProvider(_COMPATIBLE, "https://api.llama.com/compat/v1", "LLAMA_API_KEY"),
    "featherless_ai": KnownProvider(_COMPATIBLE, "https://api.featherless.ai/v1", "FEATHERLESS_AI_API_KEY"),
    "lambda_ai": KnownProvider(_COMPATIBLE, "https://api.lambda.ai/v1", "LAMBDA_API_KEY"),
    "inception": KnownProvider(_COMPATIBLE, "https://api.inceptionlabs.ai/v1", "INCEPTION_API_KEY"),
    "minimax": KnownProvider(_COMPATIBLE, "https://api.minimax.io/v1", "MINIMAX_API_KEY"),
    "baseten": KnownProvider(_COMPATIBLE, "https://inference.baseten.co/v1", "BASETEN_API_KEY"),
    "vercel_ai_gateway": KnownProvider(_COMPATIBLE, "https://ai-gateway.vercel.sh/v1", "VERCEL_AI_GATEWAY_API_KEY"),
    "nscale": KnownProvider(_COMPATIBLE, "https://inference.api.nscale.com/v1", "NSCALE_API_KEY"),
    "wandb": KnownProvider(_COMPATIBLE, "https://api.inference.wandb.ai/v1", "WANDB_API_KEY"),
    "v0": KnownProvider(_COMPATIBLE, "https://api.v0.dev/v1", "V0_API_KEY"),
    "morph": KnownProvider(_COMPATIBLE, "https://api.morphllm.com/v1", "MORPH_API_KEY"),
    "jina_ai": KnownProvider(_COMPATIBLE, "https://api.jina.ai/v1", "JINA_AI_API_KEY"),
    "voyage": KnownProvider(_COMPATIBLE, "https://api.voyageai.com/v1", "VOYAGE_API_KEY"),
    "docker_model_runner": KnownProvider(_COMPATIBLE, "http://localhost:12434/engines/llama.cpp/v1"),
}
UNSUPPORTED: Final = frozenset({
    "watsonx", "watsonx_text", "sagemaker", "sagemaker_chat", "sagemaker_nova", "replicate", "petals", "nlp_cloud",
    "aleph_alpha", "palm", "maritalk", "oci", "snowflake", "auto_router", "bytez", "dify", "langgraph", "topaz",
    "elevenlabs", "deepgram", "assemblyai", "recraft", "runwayml", "stability", "black_forest_labs", "fal_ai", "a2a",
    "bedrock_mantle", "cursor", "chatgpt", "github_copilot", "gdm", "ragflow", "pydantic_ai_agents", "vertex_ai_agents",
})  # fmt: skip
"""Providers of LiteLLM's whose APIs slipform does not speak."""
ROUTES: Final = {
    "azure": ("o_series/", "gpt5_series/", "responses/"),
    "bedrock": ("converse/", "converse_like/", "invoke/"),
    "vertex_ai": ("gemini/",),
    "openai": ("chat/completions/", "chat/"),
}
"""Words between a provider and a model by which LiteLLM chooses one of the provider's APIs."""
DEFAULTS: Final = frozenset({
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "stop", "seed",
    "frequency_penalty", "presence_penalty", "repetition_penalty", "reasoning_effort", "thinking", "verbosity",
    "parallel_tool_calls", "logit_bias", "logprobs", "top_logprobs", "service_tier", "user", "modalities", "store",
    "prompt_cache_key", "safety_settings", "chat_template_kwargs", "enable_thinking", "web_search_options",
})  # fmt: skip
"""Parameters that become defaults of an alias."""
OLLAMA_OPTIONS: Final = frozenset({
    "num_ctx", "num_predict", "num_gpu", "main_gpu", "num_thread", "num_batch", "num_keep", "repeat_penalty",
    "repeat_last_n", "tfs_z", "mirostat", "mirostat_eta", "mirostat_tau", "low_vram", "use_mmap", "use_mlock",
    "tensor_split", "vocab_only", "f16_kv", "numa", "typical_p",
})  # fmt: skip
"""Parameters that Ollama takes among its `options`."""

_TIMEOUT = "one timeout holds for whole and streamed answers: `providers.NAME.timeout_seconds`"
_RETRIES = "transport retries are built in; `enforcement.max_attempts` is for answers that do not fit"
_COOLDOWN = "a model that fails is tried again with the next call, without a pause"
_DATABASE = "models and keys made in LiteLLM's UI are in its database: export them first (`/model/info`, `/key/list`)"
_BUDGET = "budgets are per key: `slipform keys add NAME --budget 20 --per month`"
_LOGGING = "calls are logged without prompts and answers; spans go where OTEL_EXPORTER_OTLP_ENDPOINT says"
_UI = "there is no UI for administration; `slipform keys` and slipform.yaml do it"
_TELLS = "it only informs LiteLLM; what models can do is in slipform's catalogue"
_HEALTH = "providers are not asked in the background; `slipform doctor` asks them"
_AUTH = "callers sign in with keys of `slipform keys` only"
_ROUTING = "deployments of one name are shared out at random, by weight"
_HEADERS = "callers' headers are not passed on to vendors, except beta and version headers"
LEFT_OUT: Final[dict[str, str]] = {
    # litellm_params
    "stream_timeout": _TIMEOUT,
    "max_retries": _RETRIES,
    "num_retries": _RETRIES,
    "retry_after": _RETRIES,
    "retry_policy": _RETRIES,
    "model_group_retry_policy": _RETRIES,
    "cooldown_time": _COOLDOWN,
    "allowed_fails": _COOLDOWN,
    "allowed_fails_policy": _COOLDOWN,
    "disable_cooldowns": _COOLDOWN,
    "tags": "slipform does not route by tags; give each group of callers an alias",
    "enable_tag_filtering": "slipform does not route by tags; give each group of callers an alias",
    "tag_filtering_match_any": "slipform does not route by tags; give each group of callers an alias",
    "max_budget": _BUDGET,
    "soft_budget": _BUDGET,
    "budget_duration": _BUDGET,
    "max_end_user_budget": _BUDGET,
    "max_internal_user_budget": _BUDGET,
    "max_user_budget": _BUDGET,
    "internal_user_budget_duration": _BUDGET,
    "default_internal_user_params": _BUDGET,
    "default_end_user_params": _BUDGET,
    "default_team_params": _BUDGET,
    "default_team_settings": _BUDGET,
    "default_key_generate_params": "limits are given with each key: `slipform keys add NAME --expires 30d --budget 20`",
    "upperbound_key_generate_params": "limits are given with each key: `slipform keys add NAME --expires 30d`",
    "key_generation_settings": _UI,
    "provider_budget_config": _BUDGET,
    "ssl_verify": "certificates are always checked; `providers.NAME.ca_file` names your own authority",
    "mock_response": "answers are never made up; `slipform.testing` has scripted models",
    "response_format": "a schema is bound to an alias by name: `model_aliases.NAME.schema`",
    "tools": "tools are the request's own",
    "stream": "whether to stream is the request's own",
    "n": "how many answers there are is the request's own",
    "cache_control_injection_points": "prompts are sent as they come",
    "configurable_clientside_auth_params": "callers cannot choose a vendor's address or key",
    "allow_client_side_credentials": "callers cannot choose a vendor's address or key",
    "use_in_pass_through": "every vendor is under its own path already",
    "access_groups": "keys have patterns of models: `slipform keys add NAME --model 'openai/*'`",
    "aws_web_identity_token": "set AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, which `slipform[aws]` reads",
    "aws_bedrock_runtime_endpoint": "set `providers.NAME.base_url`",
    "vertex_credentials": "write the credentials to a file and name it in `providers.NAME.settings.credentials_file`",
    "tenant_id": "slipform has no Entra ID sign-in; use the resource's key",
    "client_id": "slipform has no Entra ID sign-in; use the resource's key",
    "client_secret": "slipform has no Entra ID sign-in; use the resource's key",
    "azure_ad_token": "slipform has no Entra ID sign-in; use the resource's key",
    "guardrails": "slipform has no guardrails",
    **dict.fromkeys(
        (
            "region_name",
            "allowed_model_region",
            "mock_timeout",
            "mock_tool_calls",
            "mock_delay",
            "caching",
            "no-log",
            "use_litellm_proxy",
            "use_chat_completions_api",
            "hf_model_name",
            "preset_cache_key",
            "max_file_size_mb",
            "default_api_key_tpm_limit",
            "default_api_key_rpm_limit",
            "model_config",
            "supports_system_message",
            "auto_router_config",
            "auto_router_config_path",
            "auto_router_default_model",
            "auto_router_embedding_model",
            "litellm_trace_id",
            "health_check_timeout",
            "health_check_model",
            "health_check_voice",
            "disable_background_health_check",
            "milvus_text_field",
            "vector_store_id",
            "s3_bucket_name",
            "gcs_bucket_name",
            "complexity_router_config",
        ),
        "only LiteLLM's own router knows it",
    ),
    # litellm_settings and general_settings
    "context_window": _TELLS,
    "additional_drop_params": "fields are passed on, or named in a warning; none is dropped on demand",
    "allowed_openai_params": "fields are passed on, or named in a warning; none is refused",
    "modify_params": "requests are not changed to suit a vendor, except where a warning says so",
    "merge_reasoning_content_in_choices": "reasoning stays in its own field",
    "database_url": _DATABASE,
    "store_model_in_db": _DATABASE,
    "supported_db_objects": _DATABASE,
    "custom_auth": _AUTH,
    "custom_sso": _AUTH,
    "enable_jwt_auth": _AUTH,
    "litellm_jwtauth": _AUTH,
    "enable_oauth": _AUTH,
    "enable_oauth2_auth": _AUTH,
    "enable_oauth2_proxy_auth": _AUTH,
    "allow_user_auth": _AUTH,
    "allowed_ips": "restrict addresses in front of slipform",
    "allowed_routes": "every key may use every path that is served",
    "public_routes": "`server.open_pages` opens pages; calls need a key where there are keys",
    "pass_through_endpoints": "only vendors' own paths are forwarded",
    "alerting": "slipform sends no alerts; set them up on /metrics",
    "alerting_args": "slipform sends no alerts; set them up on /metrics",
    "alerting_threshold": "slipform sends no alerts; set them up on /metrics",
    "alert_types": "slipform sends no alerts; set them up on /metrics",
    "alert_to_webhook_url": "slipform sends no alerts; set them up on /metrics",
    "spend_report_frequency": "`slipform spend` prints what was spent; run it by cron",
    "health_check_interval": _HEALTH,
    "background_health_checks": _HEALTH,
    "health_check_details": _HEALTH,
    "store_prompts_in_spend_logs": _LOGGING,
    "enable_pre_call_checks": "a model whose context is too small fails, and the next of its list is asked",
    "user_header_name": "spending is counted by key, not by a header",
    "user_header_mappings": "spending is counted by key, not by a header",
    "extra_spend_tag_headers": "spending is counted by key, not by a header",
    "custom_headers": _HEADERS,
    "forward_client_headers_to_llm_api": _HEADERS,
    "forward_openai_org_id": _HEADERS,
    "litellm_key_header_name": "keys come as `Authorization: Bearer`, `x-api-key`, `api-key` or `x-goog-api-key`",
    "enforce_user_param": "the `user` field is optional",
    "enforced_params": "no field is required beyond the API's own",
    "max_response_size_mb": "set `providers.NAME.max_answer_bytes`",
    "proxy_base_url": "no page needs slipform's own address",
    "middleware": "Python of LiteLLM's cannot run here",
    "post_call_rules": "Python of LiteLLM's cannot run here",
    "pre_call_rules": "Python of LiteLLM's cannot run here",
    "default_vertex_config": "set `providers.NAME.settings`",
    "timezone": "periods of budgets are in UTC",
    # top level
    "mcp_servers": "there is no MCP gateway",
    "mcp_tools": "there is no MCP gateway",
    "mcp_aliases": "there is no MCP gateway",
    "prompts": "prompts are the request's own",
    "search_tools": "tools are the request's own",
    "vector_store_registry": "slipform has no vector stores",
    "files_settings": "files go to the provider they are sent to",
    "finetune_settings": "fine-tuning is not served",
    "assistant_settings": "assistants are not served; use Responses",
    "callback_settings": _LOGGING,
    "langfuse_default_tags": _LOGGING,
    "service_callback": _LOGGING,
    "service_callbacks": _LOGGING,
    "key_management_system": "keys come from the environment; let your secret manager put them there",
    "key_management_settings": "keys come from the environment; let your secret manager put them there",
    "litellm_license": "slipform needs no licence",
}
"""Settings that have no place here, and what to do instead."""
FINE: Final[dict[str, str]] = {
    "drop_params": "fields that a vendor does not know are passed on or named in a warning; nothing to set",
    "set_verbose": "the log says one line a call; `server.debug_traces` logs everything",
    "debug_level": "the log says one line a call; `server.debug_traces` logs everything",
    "telemetry": "slipform sends none",
    "turn_off_message_logging": "prompts and answers are not logged",
    "redact_messages_in_exceptions": "prompts and answers are not logged",
    "redact_user_api_key_info": "no line of the log holds a key",
    "proxy_logging": "calls are logged without prompts and answers",
    "disable_error_logs": "calls are logged without prompts and answers",
    "enable_json_schema_validation": "every answer with a schema is validated",
    "disable_end_user_cost_tracking": "spending is counted by key",
    "disable_spend_logs": "the ledger is a file of its own",
    "proxy_batch_write_at": "the ledger is written as calls end",
    "use_redis_transaction_buffer": "the ledger is written as calls end",
    "enable_redis_auth_cache": "keys are in memory",
    "user_api_key_cache_ttl": "keys are in memory",
    "database_connection_pool_limit": "slipform needs no database",
    "database_connection_timeout": "slipform needs no database",
    "allow_requests_on_db_unavailable": "slipform needs no database",
    "disable_prisma_schema_update": "slipform needs no database",
    "disable_db": "slipform needs no database",
    "use_local_db": "slipform needs no database",
    "enable_admin_ui": _UI,
    "ui_access_mode": _UI,
    "master_key_in_db": _DATABASE,
    "disable_master_key_return": "keys are hashed and never shown again",
    "disable_adding_master_key_hash_to_db": "keys are hashed and never shown again",
    "disable_reset_budget": "periods end by the calendar",
    "proxy_budget_rescheduler_min_time": "periods end by the calendar",
    "proxy_budget_rescheduler_max_time": "periods end by the calendar",
    "infer_model_from_keys": "vendors whose key is in the environment need no entry",
    "enable_loadbalancing": _ROUTING,
    "use_chat_completions_url_for_anthropic_messages": "every API reaches every vendor",
    "pass_through_params": "fields that a vendor may know are passed on",
    "enable_preview_features": "there are none to switch on",
    "max_fallbacks": "`enforcement.max_calls` bounds the calls of one request",
    "cache_responses": "`cache.enabled` says whether answers are cached",
    "enable_batching": "nothing to set",
    "force_ipv4": "IPv4 and IPv6 are tried side by side",
    "client_ttl": "nothing to set",
    "prometheus_initialize_budget_metrics": "/metrics is always on",
    "disable_end_user_cost_tracking_prometheus_only": "/metrics has no labels of end users",
    "disable_copilot_system_to_assistant": "system messages stay what they are",
    "disable_hf_tokenizer_download": "nothing is downloaded for counting",
    "mode": "every path that the vendor has is forwarded",
}
"""Settings that need nothing here."""
INFORMS: Final = frozenset({
    "id", "description", "max_tokens", "max_input_tokens", "max_output_tokens", "litellm_provider", "base_model",
    "created_at", "updated_at", "db_model", "metadata", "version", "key", "display_name", "team_id",
    "output_vector_size",
})  # fmt: skip
"""Fields of `model_info` that only inform; so do all that begin with `supports_`."""
PLACEHOLDERS: Final = frozenset({
    "", "none", "null", "na", "n/a", "no", "dummy", "dummy-key", "fake", "fake-key", "test", "empty", "ollama",
    "anything", "unused", "not-needed", "not-used", "no-key", "no-key-required", "not-required", "notneeded", "sk-none",
    "sk-no-key-required", "sk-not-needed", "placeholder", "lm-studio", "lmstudio", "redacted", "sk-dummy", "sk-fake",
    "xxx", "sk-xxx", "local", "vllm", "your-api-key", "sk-placeholder", "sk-not-required", "key", "-",
})  # fmt: skip
"""What people write where a server wants no key."""
SPANS: Final = ("prometheus",)
OTEL: Final = (
    "otel", "opentelemetry", "langfuse_otel", "arize", "arize_phoenix", "logfire", "traceloop", "langtrace",
    "weave_otel", "levo", "agentops", "signoz",
)  # fmt: skip
"""Callbacks that are exporters of OpenTelemetry."""
