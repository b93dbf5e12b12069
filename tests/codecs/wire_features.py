"""One request per feature of each served API: a plain one, and what each feature puts in its place."""

from __future__ import annotations

from typing import Any

PNG = "iVBORw0KGgo="
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
CACHE = {"type": "ephemeral", "ttl": "1h"}
NEW = {"depth": 3}
"""A field that no vendor has yet."""


def _chat_turn(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "Look"}, *parts]}]}


def _chat_tool(more: dict[str, Any] | None = None, **function: Any) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "find", "parameters": SCHEMA, **function}}
    return {"tools": [{**tool, **(more or {})}]}


def _chat_history(
    turn: dict[str, Any] | None = None, call: dict[str, Any] | None = None, result: dict[str, Any] | None = None
) -> dict[str, Any]:
    called = {"id": "call_9", "type": "function", "function": {"name": "find", "arguments": '{"q":"x"}'}}
    return {
        **_chat_tool(),
        "messages": [
            {"role": "user", "content": "Look"},
            {"role": "assistant", "content": None, "tool_calls": [{**called, **(call or {})}], **(turn or {})},
            {"role": "tool", "tool_call_id": "call_9", "content": "found", **(result or {})},
        ],
    }


_CHAT: dict[str, dict[str, Any]] = {
    "sampling": {"temperature": 0.5, "top_p": 0.9, "seed": 7, "presence_penalty": 0.25, "frequency_penalty": 0.75},
    "stop": {"stop": ["END", "HALT"]},
    "stop as text": {"stop": "END"},
    "limit": {"max_completion_tokens": 64},
    "older limit": {"max_tokens": 64},
    "both limits": {"max_completion_tokens": 64, "max_tokens": 65},
    "n and logprobs": {"n": 2, "logprobs": True, "top_logprobs": 3, "logit_bias": {"50": 1}},
    "effort": {"reasoning_effort": "low"},
    "no effort": {"reasoning_effort": "none"},
    "metadata": {"metadata": {"team": "blue"}},
    "storage and tier": {"store": True, "service_tier": "flex", "user": "u-1", "safety_identifier": "s-1"},
    "cache key": {"prompt_cache_key": "k-1", "prompt_cache_retention": "24h"},
    "verbosity": {"verbosity": "low"},
    "modalities": {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}},
    "prediction": {"prediction": {"type": "content", "content": "foreseen"}},
    "web search": {"web_search_options": {"search_context_size": "low"}},
    "new field": {"new_field": NEW},
    "stream": {"stream": True, "stream_options": {"include_usage": True}},
    "stream obfuscation": {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
    "obfuscation without stream": {"stream_options": {"include_obfuscation": False}},
    "developer": {"messages": [{"role": "developer", "content": "Be brief"}, {"role": "user", "content": "Hi"}]},
    "speaker": {"messages": [{"role": "user", "name": "ada", "content": "Hi"}]},
    "system speaker": {
        "messages": [{"role": "system", "name": "boss", "content": "x y"}, {"role": "user", "content": "Hi"}]
    },
    "system cache": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be brief", "cache_control": CACHE}]},
            {"role": "user", "content": "Hi"},
        ]
    },
    "message field": {"messages": [{"role": "user", "content": "Hi", "new_field": NEW}]},
    "system field": {
        "messages": [{"role": "system", "content": "x y", "new_field": NEW}, {"role": "user", "content": "Hi"}]
    },
    "text cache": _chat_turn({"type": "text", "text": "more", "cache_control": CACHE}),
    "image": _chat_turn({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}),
    "image by address": _chat_turn({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}),
    "image detail": _chat_turn(
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "high"}}
    ),
    "image cache": _chat_turn(
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}, "cache_control": CACHE}
    ),
    "audio": _chat_turn({"type": "input_audio", "input_audio": {"data": PNG, "format": "mp3"}}),
    "audio field": _chat_turn({"type": "input_audio", "input_audio": {"data": PNG, "format": "wav", "new": NEW}}),
    "file by id": _chat_turn({"type": "file", "file": {"file_id": "file-1"}}),
    "file by id with name": _chat_turn({"type": "file", "file": {"file_id": "file-1", "filename": "a.pdf"}}),
    "file": _chat_turn(
        {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PNG}", "filename": "a.pdf"}}
    ),
    "file cache": _chat_turn({"type": "file", "file": {"file_id": "file-1"}, "cache_control": CACHE}),
    "video": _chat_turn({"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}),
    "tool": _chat_tool(description="Find it"),
    "strict tool": _chat_tool(strict=True),
    "tool cache": _chat_tool({"cache_control": CACHE}),
    "function field": _chat_tool(new_field=NEW),
    "custom tool": {"tools": [{"type": "custom", "custom": {"name": "run", "format": {"type": "text"}}}]},
    "custom tool chosen": {
        "tools": [{"type": "custom", "custom": {"name": "run", "format": {"type": "text"}}}],
        "tool_choice": {"type": "custom", "custom": {"name": "run"}},
    },
    "any tool": {**_chat_tool(), "tool_choice": "required"},
    "no tool": {**_chat_tool(), "tool_choice": "none"},
    "one tool": {**_chat_tool(), "tool_choice": {"type": "function", "function": {"name": "find"}}},
    "choice field": {**_chat_tool(), "tool_choice": {"type": "function", "function": {"name": "find"}, "new_field": 1}},
    "one call": {**_chat_tool(), "parallel_tool_calls": False},
    "choice without tools": {"tool_choice": "required"},
    "one call without tools": {"parallel_tool_calls": False},
    "older functions": {"functions": [{"name": "find", "parameters": SCHEMA}], "function_call": "auto"},
    "schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    },
    "schema described": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": SCHEMA, "strict": True, "description": "Who"},
        }
    },
    "schema described twice": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": {**SCHEMA, "description": "It"}, "description": "Who"},
        }
    },
    "schema field": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": SCHEMA, "new_field": NEW},
        }
    },
    "JSON mode": {"response_format": {"type": "json_object"}},
    "JSON mode with a schema": {"response_format": {"type": "json_object", "schema": SCHEMA}},
    "text field": {"response_format": {"type": "text", "new_field": NEW}},
    "call": _chat_history(),
    "call field": _chat_history(call={"extra_content": {"google": {"thought_signature": "c2ln"}}}),
    "call index": _chat_history(call={"index": 0}),
    "call function field": _chat_history(
        call={"function": {"name": "find", "arguments": '{"q":"x"}', "new_field": NEW}}
    ),
    "custom call": _chat_history(call={"type": "custom", "custom": {"name": "run", "input": "x"}, "function": None}),
    "words with a call": _chat_history(turn={"content": "Wait"}),
    "reasoning": _chat_history(turn={"reasoning_content": "hm"}),
    "reasoning details": _chat_history(
        turn={"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "signature": "s"}]}
    ),
    "refusal and audio": _chat_history(turn={"refusal": "no", "audio": {"id": "audio_1"}}),
    "annotations": _chat_history(
        turn={"annotations": [{"type": "url_citation", "url_citation": {"url": "https://e.com"}}]}
    ),
    "assistant speaker": _chat_history(turn={"name": "bob"}),
    "refusal part": _chat_history(turn={"content": [{"type": "refusal", "refusal": "never"}]}),
    "thinking part": _chat_history(
        turn={
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                {"type": "text", "text": "Wait"},
            ]
        }
    ),
    "result parts": _chat_history(result={"content": [{"type": "text", "text": "found", "cache_control": CACHE}]}),
    "result of a new kind": _chat_history(result={"content": [{"type": "new_kind", "new_field": NEW}]}),
    "result image": _chat_history(
        result={"content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}]}
    ),
    "result name": _chat_history(result={"name": "find"}),
    "result cache": _chat_history(result={"cache_control": CACHE}),
}


def _responses_turn(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Look"}, *parts], **more}]}


def _responses_tool(**more: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "name": "find", "parameters": SCHEMA, "strict": False, **more}]}


def _responses_history(
    said: dict[str, Any] | None = None, call: dict[str, Any] | None = None, result: dict[str, Any] | None = None
) -> dict[str, Any]:
    items: list[dict[str, Any]] = [{"role": "user", "content": "Look"}]
    if said is not None:
        items.append(said)
    called = {"type": "function_call", "call_id": "call_9", "name": "find", "arguments": '{"q":"x"}', **(call or {})}
    given = {"type": "function_call_output", "call_id": "call_9", "output": "found", **(result or {})}
    return {**_responses_tool(), "input": [*items, called, given]}


def _output_message(part: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [part], **more}


_SAID = {"type": "output_text", "text": "Wait"}
_RESPONSES: dict[str, dict[str, Any]] = {
    "sampling": {"temperature": 0.5, "top_p": 0.9, "top_logprobs": 3},
    "limit": {"max_output_tokens": 64},
    "instructions": {"instructions": "Be brief"},
    "reasoning": {"reasoning": {"effort": "low", "summary": "detailed"}},
    "reasoning mode": {"reasoning": {"effort": "low", "mode": "pro", "context": "auto"}},
    "verbosity": {"text": {"verbosity": "low"}},
    "metadata": {"metadata": {"team": "blue"}},
    "storage": {"store": False, "include": ["reasoning.encrypted_content"], "previous_response_id": "resp_1"},
    "truncation": {"truncation": "auto", "background": False, "max_tool_calls": 3, "service_tier": "flex"},
    "prompt": {"prompt": {"id": "pmpt_1", "version": "2"}, "conversation": "conv_1", "prompt_cache_key": "k-1"},
    "stream obfuscation": {"stream": True, "stream_options": {"include_obfuscation": False}},
    "new field": {"new_field": NEW},
    "developer": {"input": [{"role": "developer", "content": "Be brief"}, {"role": "user", "content": "Hi"}]},
    "message id": _responses_turn(id="msg_1", status="completed"),
    "message field": _responses_turn(new_field=NEW),
    "cache breakpoint": _responses_turn(
        {"type": "input_text", "text": "more", "prompt_cache_breakpoint": {"mode": "auto"}}
    ),
    "image": _responses_turn({"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}),
    "image detail": _responses_turn(
        {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "high"}
    ),
    "image by id": _responses_turn({"type": "input_image", "file_id": "file-1", "detail": "low"}),
    "image field": _responses_turn({"type": "input_image", "image_url": "https://example.com/a.png", "new_field": NEW}),
    "audio": _responses_turn({"type": "input_audio", "input_audio": {"data": PNG, "format": "mp3"}}),
    "file": _responses_turn(
        {"type": "input_file", "file_data": f"data:application/pdf;base64,{PNG}", "filename": "a.pdf"}
    ),
    "file by id": _responses_turn({"type": "input_file", "file_id": "file-1", "filename": "a.pdf"}),
    "file by address": _responses_turn(
        {"type": "input_file", "file_url": "https://example.com/a.pdf", "filename": "a.pdf"}
    ),
    "file detail": _responses_turn({"type": "input_file", "file_url": "https://example.com/a.pdf", "detail": "high"}),
    "part of a new kind": _responses_turn({"type": "input_new", "new_field": NEW}),
    "tool": _responses_tool(description="Find it"),
    "strict tool": _responses_tool(strict=True),
    "deferred tool": _responses_tool(defer_loading=True, allowed_callers=["programmatic"], output_schema=SCHEMA),
    "hosted tool": {"tools": [{"type": "web_search", "search_context_size": "low"}]},
    "hosted tool chosen": {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
    "custom tool chosen": {
        "tools": [{"type": "custom", "name": "run"}],
        "tool_choice": {"type": "custom", "name": "run"},
    },
    "MCP tool chosen": {
        "tools": [{"type": "mcp", "server_label": "deep"}],
        "tool_choice": {"type": "mcp", "server_label": "deep", "name": "ask"},
    },
    "any tool": {**_responses_tool(), "tool_choice": "required"},
    "one tool": {**_responses_tool(), "tool_choice": {"type": "function", "name": "find"}},
    "one call": {**_responses_tool(), "parallel_tool_calls": False},
    "schema": {"text": {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}}},
    "schema described": {
        "text": {
            "format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True, "description": "Who"}
        }
    },
    "schema field": {"text": {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "new_field": NEW}}},
    "JSON mode": {"text": {"format": {"type": "json_object"}}},
    "call": _responses_history(),
    "call field": _responses_history(call={"id": "fc_1", "status": "completed", "namespace": "crm", "async": True}),
    "result field": _responses_history(result={"id": "fco_1", "status": "completed", "new_field": NEW}),
    "result parts": _responses_history(result={"output": [{"type": "input_text", "text": "found"}]}),
    "result image": _responses_history(
        result={"output": [{"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}]}
    ),
    "result of a new kind": _responses_history(result={"output": [{"type": "input_new", "new_field": NEW}]}),
    "reasoning item": _responses_history(
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": "gAAA",
        }
    ),
    "phase": _responses_history(_output_message(_SAID, phase="commentary")),
    "said with id": _responses_history(_output_message(_SAID, id="msg_1", status="completed")),
    "annotations": _responses_history(
        _output_message({**_SAID, "annotations": [{"type": "url_citation", "url": "https://e.com", "start_index": 1}]})
    ),
    "logprobs": _responses_history(_output_message({**_SAID, "logprobs": [{"token": "Wait", "logprob": -0.5}]})),
    "refusal": _responses_history(_output_message({"type": "refusal", "refusal": "never"})),
    "search call": _responses_history(
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "x"}}
    ),
    "compaction": _responses_history({"type": "compaction", "encrypted_content": "gAAA"}),
    "reference": _responses_history({"type": "item_reference", "id": "msg_1"}),
    "custom call": _responses_history({"type": "custom_tool_call", "call_id": "c_1", "name": "run", "input": "x"}),
}


def _claude_turn(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "Look"}, *blocks], **more}]}


def _claude_tool(**more: Any) -> dict[str, Any]:
    return {"tools": [{"name": "find", "input_schema": SCHEMA, **more}]}


def _claude_history(
    *before: dict[str, Any], call: dict[str, Any] | None = None, result: dict[str, Any] | None = None
) -> dict[str, Any]:
    called = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"q": "x"}, **(call or {})}
    given = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "found", **(result or {})}
    return {
        **_claude_tool(),
        "messages": [
            {"role": "user", "content": "Look"},
            {"role": "assistant", "content": [*before, called]},
            {"role": "user", "content": [given]},
        ],
    }


_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
_CLAUDE: dict[str, dict[str, Any]] = {
    "sampling": {"temperature": 0.5, "top_p": 0.9, "top_k": 5},
    "stop": {"stop_sequences": ["END"]},
    "system": {"system": "Be brief"},
    "system cache": {"system": [{"type": "text", "text": "Be brief", "cache_control": CACHE}]},
    "user id": {"metadata": {"user_id": "u-1"}},
    "tier": {"service_tier": "standard_only", "container": "c_1", "inference_geo": "us", "speed": "fast"},
    "context": {
        "context_management": {"edits": [{"type": "clear_tool_uses"}]},
        "mcp_servers": [{"name": "m", "url": "https://m"}],
    },
    "request cache": {"cache_control": CACHE},
    "new field": {"new_field": NEW},
    "adaptive": {"thinking": {"type": "adaptive"}},
    "display": {"thinking": {"type": "adaptive", "display": "summarized"}},
    "display omitted": {"thinking": {"type": "adaptive", "display": "omitted"}},
    "budget": {"max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 2000}},
    "no thinking": {"thinking": {"type": "disabled"}},
    "between tools": {"thinking": {"type": "between_tools"}},
    "thinking field": {"thinking": {"type": "adaptive", "new_field": NEW}},
    "effort": {"output_config": {"effort": "low"}},
    "effort max": {"output_config": {"effort": "max"}},
    "task budget": {"output_config": {"task_budget": {"type": "tokens", "total": 20000}}},
    "schema": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "schema field": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA, "new_field": NEW}}},
    "older schema": {"output_format": {"type": "json_schema", "schema": SCHEMA}},
    "message field": _claude_turn(new_field=NEW),
    "text cache": _claude_turn({"type": "text", "text": "more", "cache_control": CACHE}),
    "image": _claude_turn(_IMAGE),
    "image cache": _claude_turn({**_IMAGE, "cache_control": CACHE}),
    "image by address": _claude_turn({"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}),
    "image by id": _claude_turn({"type": "image", "source": {"type": "file", "file_id": "file_1"}}),
    "source field": _claude_turn(
        {"type": "image", "source": {"type": "url", "url": "https://e.com/a.png", "new": NEW}}
    ),
    "document": _claude_turn(
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PNG}, "title": "A"}
    ),
    "document context": _claude_turn(
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "words"},
            "title": "A",
            "context": "ctx",
            "citations": {"enabled": True},
        }
    ),
    "document blocks": _claude_turn(
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "in"}]}}
    ),
    "search result": _claude_turn(
        {"type": "search_result", "source": "https://e.com", "title": "T", "content": [{"type": "text", "text": "in"}]}
    ),
    "upload": _claude_turn({"type": "container_upload", "file_id": "file_1"}),
    "tool": _claude_tool(description="Find it"),
    "typed tool": _claude_tool(type="custom"),
    "strict tool": _claude_tool(strict=True),
    "tool fields": _claude_tool(
        cache_control=CACHE,
        eager_input_streaming=True,
        input_examples=[{"name": "Ada"}],
        defer_loading=True,
        allowed_callers=["direct"],
    ),
    "server tool": {"tools": [{"type": "web_search_20260209", "name": "web_search", "max_uses": 2}]},
    "server tool chosen": {
        "tools": [{"type": "web_search_20260209", "name": "web_search", "max_uses": 2}],
        "tool_choice": {"type": "tool", "name": "web_search"},
    },
    "any tool": {**_claude_tool(), "tool_choice": {"type": "any"}},
    "one tool": {**_claude_tool(), "tool_choice": {"type": "tool", "name": "find"}},
    "no tool": {**_claude_tool(), "tool_choice": {"type": "none"}},
    "one call": {**_claude_tool(), "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    "choice field": {**_claude_tool(), "tool_choice": {"type": "auto", "new_field": NEW}},
    "call": _claude_history(),
    "call fields": _claude_history(call={"cache_control": CACHE, "caller": {"type": "direct"}, "toolset_name": "crm"}),
    "call new field": _claude_history(call={"new_field": NEW}),
    "thinking block": _claude_history({"type": "thinking", "thinking": "hm", "signature": "c2ln"}),
    "redacted": _claude_history({"type": "redacted_thinking", "data": "gAAA"}),
    "cited text": _claude_history(
        {
            "type": "text",
            "text": "Wait",
            "citations": [{"type": "char_location", "cited_text": "in", "document_index": 0}],
        }
    ),
    "server call": _claude_history(
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [{"type": "web_search_result", "url": "https://e.com", "encrypted_content": "gAAA"}],
        },
    ),
    "failed": _claude_history(result={"is_error": True}),
    "result parts": _claude_history(result={"content": [{"type": "text", "text": "found"}, _IMAGE]}),
    "result cache": _claude_history(result={"cache_control": CACHE}),
    "failed parts": _claude_history(result={"is_error": True, "content": [{"type": "text", "text": "found"}, _IMAGE]}),
    "result part cache": _claude_history(
        result={"content": [{"type": "text", "text": "found", "cache_control": CACHE}]}
    ),
    "result search": _claude_history(
        result={
            "content": [
                {
                    "type": "search_result",
                    "source": "https://e.com",
                    "title": "T",
                    "content": [{"type": "text", "text": "in"}],
                }
            ]
        }
    ),
    "result reference": _claude_history(result={"content": [{"type": "tool_reference", "tool_name": "find"}]}),
    "result and words": {
        **_claude_history(),
        "messages": [
            *_claude_history()["messages"][:2],
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "found"},
                    {"type": "text", "text": "Go on"},
                ],
            },
        ],
    },
}


def _gemini_turn(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": "Look"}, *parts], **more}]}


def _gemini_config(**config: Any) -> dict[str, Any]:
    return {"generationConfig": config}


def _gemini_tool(**more: Any) -> dict[str, Any]:
    return {"tools": [{"functionDeclarations": [{"name": "find", "parametersJsonSchema": SCHEMA, **more}]}]}


def _gemini_calling(**calling: Any) -> dict[str, Any]:
    return {**_gemini_tool(), "toolConfig": {"functionCallingConfig": calling}}


def _gemini_history(
    *before: dict[str, Any],
    call: dict[str, Any] | None = None,
    signed: dict[str, Any] | None = None,
    result: dict[str, Any] | None = None,
    role: str = "user",
) -> dict[str, Any]:
    given = {"name": "find", "response": {"output": "found"}, **(result or {})}
    called = {"functionCall": {"name": "find", "args": {"q": "x"}, **(call or {})}, **(signed or {})}
    return {
        **_gemini_tool(),
        "contents": [
            {"role": "user", "parts": [{"text": "Look"}]},
            {"role": "model", "parts": [*before, called]},
            {"role": role, "parts": [{"functionResponse": given}]},
        ],
    }


_INLINE = {"inlineData": {"mimeType": "image/png", "data": PNG}}
_GEMINI: dict[str, dict[str, Any]] = {
    "sampling": _gemini_config(
        temperature=0.5, topP=0.9, topK=5, seed=7, presencePenalty=0.25, frequencyPenalty=0.75, stopSequences=["END"]
    ),
    "limit": _gemini_config(maxOutputTokens=64),
    "candidates": _gemini_config(candidateCount=2, responseLogprobs=True, logprobs=3),
    "modalities": _gemini_config(
        responseModalities=["TEXT"], speechConfig={"languageCode": "de"}, mediaResolution="LOW"
    ),
    "new setting": _gemini_config(newField=NEW),
    "snake case": {"generation_config": {"max_output_tokens": 64, "new_field": NEW}},
    "budget": _gemini_config(thinkingConfig={"thinkingBudget": 2000, "includeThoughts": True}),
    "any budget": _gemini_config(thinkingConfig={"thinkingBudget": -1}),
    "no budget": _gemini_config(thinkingConfig={"thinkingBudget": 0}),
    "level": _gemini_config(thinkingConfig={"thinkingLevel": "LOW", "includeThoughts": False}),
    "level and budget": _gemini_config(thinkingConfig={"thinkingLevel": "LOW", "thinkingBudget": 2000}),
    "thinking field": _gemini_config(thinkingConfig={"thinkingLevel": "LOW", "newField": NEW}),
    "schema": _gemini_config(responseMimeType="application/json", responseJsonSchema=SCHEMA),
    "OpenAPI schema": _gemini_config(
        responseMimeType="application/json",
        responseSchema={"type": "OBJECT", "properties": {"name": {"type": "STRING"}}},
    ),
    "JSON mode": _gemini_config(responseMimeType="application/json"),
    "plain mode": _gemini_config(responseMimeType="text/plain"),
    "enum mode": _gemini_config(responseMimeType="text/x.enum", responseSchema={"type": "STRING", "enum": ["a", "b"]}),
    "system": {"systemInstruction": {"parts": [{"text": "Be brief"}]}},
    "system role": {"systemInstruction": {"role": "system", "parts": [{"text": "Be brief"}]}},
    "safety": {"safetySettings": [{"category": "HARM", "threshold": "OFF"}], "cachedContent": "cachedContents/1"},
    "labels": {"labels": {"team": "blue"}, "serviceTier": "flex"},
    "new field": {"newField": NEW},
    "content field": _gemini_turn(newField=NEW),
    "text field": _gemini_turn({"text": "more", "newField": NEW}),
    "inline": _gemini_turn(_INLINE),
    "inline name": _gemini_turn({"inlineData": {"mimeType": "application/pdf", "data": PNG, "displayName": "a.pdf"}}),
    "media resolution": _gemini_turn({**_INLINE, "mediaResolution": {"level": "MEDIA_RESOLUTION_HIGH"}}),
    "media signature": _gemini_turn({**_INLINE, "thoughtSignature": "c2ln"}),
    "file": _gemini_turn({"fileData": {"mimeType": "application/pdf", "fileUri": "https://example.com/a.pdf"}}),
    "video": _gemini_turn(
        {
            "fileData": {"mimeType": "video/mp4", "fileUri": "https://example.com/a.mp4"},
            "videoMetadata": {"startOffset": "1s", "fps": 2},
        }
    ),
    "file field": _gemini_turn(
        {"fileData": {"mimeType": "image/png", "fileUri": "gs://a/b.png", "displayName": "b.png"}}
    ),
    "tool": _gemini_tool(description="Find it"),
    "tool fields": _gemini_tool(behavior="BLOCKING", responseJsonSchema=SCHEMA),
    "tool in OpenAPI": {"tools": [{"functionDeclarations": [{"name": "find", "parameters": {"type": "OBJECT"}}]}]},
    "hosted tool": {"tools": [{"googleSearch": {"timeRangeFilter": {"startTime": "2026"}}}]},
    "hosted beside functions": {
        "tools": [
            {
                "functionDeclarations": [{"name": "find", "parametersJsonSchema": SCHEMA}],
                "codeExecution": {"newField": 1},
            }
        ]
    },
    "any tool": _gemini_calling(mode="ANY"),
    "one tool": _gemini_calling(mode="ANY", allowedFunctionNames=["find"]),
    "no tool": _gemini_calling(mode="NONE"),
    "validated": _gemini_calling(mode="VALIDATED"),
    "calling field": _gemini_calling(mode="AUTO", streamFunctionCallArguments=True),
    "names without mode": _gemini_calling(allowedFunctionNames=["find"]),
    "retrieval": {**_gemini_tool(), "toolConfig": {"retrievalConfig": {"languageCode": "de"}}},
    "server side calls": {**_gemini_tool(), "toolConfig": {"includeServerSideToolInvocations": True}},
    "retrieval without tools": {"toolConfig": {"retrievalConfig": {"languageCode": "de"}}},
    "call": _gemini_history(),
    "call id": _gemini_history(call={"id": "fc-1"}, result={"id": "fc-1"}),
    "call id of OpenAI": _gemini_history(call={"id": "call_abc"}, result={"id": "call_abc"}),
    "call field": _gemini_history(call={"newField": NEW}),
    "call signature": _gemini_history(signed={"thoughtSignature": "c2ln"}),
    "thought": _gemini_history({"text": "hm", "thought": True, "thoughtSignature": "c2ln"}),
    "signed words": _gemini_history({"text": "Wait", "thoughtSignature": "c2ln"}),
    "signature alone": _gemini_history({"text": "", "thoughtSignature": "c2ln"}),
    "code": _gemini_history({"executableCode": {"language": "PYTHON", "code": "1"}}),
    "server call": _gemini_history({"toolCall": {"toolType": "GOOGLE_SEARCH", "args": {"q": "x"}, "id": "t1"}}),
    "result object": _gemini_history(result={"response": {"name": "Ada", "age": 36}}),
    "result of the SDK": _gemini_history(result={"response": {"result": "found"}}),
    "failed": _gemini_history(result={"response": {"error": "broken"}}),
    "failed with an object": _gemini_history(result={"response": {"error": {"code": 7}}}),
    "result fields": _gemini_history(result={"scheduling": "SILENT", "willContinue": False}),
    "result parts": _gemini_history(result={"parts": [_INLINE]}),
    "role of a result": _gemini_history(role="function"),
}

_HELLO = [{"role": "user", "content": "Hi"}]
PLAIN: dict[str, dict[str, Any]] = {
    "openai-chat": {"model": "m", "messages": _HELLO},
    "openai-responses": {"model": "m", "input": "Hi"},
    "anthropic": {"model": "m", "max_tokens": 99, "messages": _HELLO},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
}
"""The plainest request of each API."""
_FEATURES = {"openai-chat": _CHAT, "openai-responses": _RESPONSES, "anthropic": _CLAUDE, "gemini": _GEMINI}
FEATURES = {api: {name: {**PLAIN[api], **more} for name, more in found.items()} for api, found in _FEATURES.items()}
"""A request per feature, by API and by what the feature is called."""
