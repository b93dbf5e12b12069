"""Read the models that a request names, and check them against its key before anything stores the names.

This precedes everything else: no name is looked up, cached, counted or logged before it is checked.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from slipform.addons.server.admission.refusals import NotAllowed
from slipform.codecs.gemini.serve_decode import named_in_path
from slipform.codecs.model_name import check_name, excerpt_of
from slipform.errors import RequestError

_MOST = 8
_KEY = b'"model"'
_ESCAPED = b"\\u006"
"""The beginning of an escaped letter of `model` (`\\u006d` is m); no encoder escapes letters."""

_CHOOSES_A_MODEL: Final[Mapping[str, str]] = {
    # OpenRouter: https://openrouter.ai/docs/features/model-routing, /provider-routing, /presets, /plugins
    "models": "OpenRouter's fallback models",
    "route": "OpenRouter's routing over `models`",
    "provider": "OpenRouter's choice of the host that serves the model, and of its quantization",
    "preset": "OpenRouter's stored settings, which name models",
    "plugins": "OpenRouter's plugins, of which the auto-router chooses a model",
    # LiteLLM's proxy: https://docs.litellm.ai/docs/proxy/reliability, /proxy/clientside_auth, /proxy/prompt_management
    "fallbacks": "LiteLLM's fallback models",
    "contextwindowfallbacks": "LiteLLM's fallback models",
    "contentpolicyfallbacks": "LiteLLM's fallback models",
    "modellist": "LiteLLM's own routing table",
    "userconfig": "LiteLLM's own routing table",
    "deploymentid": "LiteLLM's name of an Azure deployment, which replaces the model's",
    "promptid": "LiteLLM's stored prompt, which names a model",
    "customllmprovider": "LiteLLM's choice of another vendor",
    "apibase": "LiteLLM's address of another vendor",
    "baseurl": "LiteLLM's address of another vendor",
    # Azure: `data_sources[].parameters.embedding_dependency.deployment_name`.
    "datasources": "Azure's data sources, which name a deployment",
    # Names of `model` in other APIs, which servers that speak several of them read as well.
    "engine": "the name of a model in OpenAI's first API",
    "deployment": "the name of a model on Azure",
    "modelid": "the name of a model in the APIs of watsonx and Bedrock",
    "modelname": "the name of a model in other APIs",
    # Other gateways spell their fallback lists so.
    "modelfallbacks": "a gateway's fallback models",
    "provideroptions": "the fallback models of Vercel's AI Gateway (`providerOptions.gateway.models`)",
    # OpenAI's Responses API: a stored prompt is saved together with a model.
    "prompt": "OpenAI's stored prompt, which names a model",
    # Groq: the models that its compound systems are made of.
    "compoundcustom": "the models inside Groq's compound systems",
    # Vertex AI, in generationConfig: `routingConfig.manualRoutingMode.modelName`.
    "routingconfig": "Vertex AI's model router",
    "modelselectionconfig": "Vertex AI's model router",
    # Servers of one's own that load adapters by request: text-generation-inference and LoRAX, SGLang, llama.cpp.
    "adapterid": "another adapter of the model",
    "adaptersource": "another adapter of the model",
    "lorapath": "another adapter of the model",
    "lora": "another adapter of the model",
}
"""Fields of a request by which a vendor chooses another model than `model` says, and what they are there.

In lower case and without `_` and `-`: servers written in Go read a field in any case.
"""
_HOLDS_FIELDS = frozenset({"extrabody", "generationconfig"})
"""Objects whose fields count as fields of the request: gateways unpack the first, Gemini reads the second."""


def folded(name: str) -> str:
    """Return a field's name as the most tolerant servers compare it: in any case, with or without `_` and `-`.

    >>> folded("Input_File-ID")
    'inputfileid'
    """
    return name.casefold().replace("_", "").replace("-", "")


def requested_models(api: str, data: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """Return the models that a call names, each name checked; further ones are fallbacks.

    Empty where `model` is neither a text nor a list of texts, which the API's decoder reports.

    >>> requested_models("openai-chat", {"model": ["fast", "local"]}, "/v1/chat/completions")
    ('fast', 'local')
    """
    if api == "gemini":
        return (check_name(named_in_path(path), "the path"),)
    model = data.get("model")
    if isinstance(model, str):
        return (check_name(model),)
    if not isinstance(model, list) or not all(isinstance(each, str) for each in model):
        return ()
    if len(model) > _MOST:
        raise RequestError(f"More than {_MOST} models are listed", where="model", hint="List fewer.")
    return tuple(dict.fromkeys([check_name(name, f"model[{at}]") for at, name in enumerate(model)]))


def is_named_plainly(body: bytes) -> bool:
    """Return whether `"model"` occurs exactly once in a body, and nothing else can be the field `model`.

    >>> is_named_plainly(b'{"model": "a"}'), is_named_plainly(b'{"model": "a", "metadata": {"model": "b"}}')
    (True, False)
    """
    return body.count(_KEY) == 1 and is_unescaped(body)


def is_unescaped(body: bytes) -> bool:
    """Return whether a body has no escapes of lower-case letters, which could spell the name of a field."""
    return body.find(_ESCAPED) < 0


def check_named_once(body: bytes) -> None:
    """Raise when a body has the field `model` twice, because servers disagree on which of them counts."""
    if is_named_plainly(body):
        return
    try:
        # Numbers are left as text: they are not used, and numbers of many digits take long to parse.
        fields = json.loads(body, object_pairs_hook=list, parse_int=str, parse_float=str)
    except RecursionError:
        raise RequestError("The request is nested too deeply", hint="Name the model once, in plain letters.") from None
    if sum(name == "model" for name, _ in fields) > 1:
        raise RequestError("The request has the field `model` twice", where="model", hint="Name the model once.")


def check_fields(data: Mapping[str, Any], *, names_model: bool) -> None:
    """Raise `NotAllowed` for a field by which the vendor would choose another model; for keys with model limits.

    `names_model`: whether the field `model` was checked. Where a path names the model, it was not.

    >>> check_fields({"model": "a", "messages": []}, names_model=True)
    """
    allowed = "model" if names_model else None
    pending: list[tuple[str, Mapping[str, Any], str | None]] = [("", data, allowed)]
    while pending:
        where, fields, allowed = pending.pop()
        for name, value in fields.items():
            if value is None or name == allowed:
                continue
            plain = folded(name)
            description = _model_choice(plain, value)
            if description is not None:
                raise _not_allowed(where + name, description)
            if plain in _HOLDS_FIELDS and isinstance(value, Mapping):
                pending.append((f"{where}{name}.", value, None))
            elif plain == "tools" and isinstance(value, list):
                _check_tools(value, where + name)


def _model_choice(plain: str, value: Any) -> str | None:
    """Describe a field that makes a vendor choose a model; None for a field that does not."""
    if plain == "prompt" and _is_text(value):
        return None
    if plain in _CHOOSES_A_MODEL:
        return _CHOOSES_A_MODEL[plain]
    if plain == "model":
        return "a second name of a model"
    if plain.endswith(("model", "models")) and plain.isalnum():
        return "the name of another model"
    return None


def _check_tools(tools: Sequence[Any], where: str) -> None:
    """Raise for tools that the vendor runs with another model: Anthropic's advisor, OpenAI's images."""
    for index, tool in enumerate(tools):
        for field, value in tool.items() if isinstance(tool, Mapping) else ():
            if value is not None and folded(field) == "model":
                raise _not_allowed(f"{where}[{index}].{field}", "the model of a tool that the vendor runs")


def check_only(data: Mapping[str, Any], fields: Collection[str]) -> None:
    """Raise `NotAllowed` for any field other than these, in which another server could find further requests.

    >>> check_only({"custom_id": "1", "body": {}}, {"custom_id", "body"})
    """
    for name in data.keys() - fields:
        raise _not_allowed(name, "not a field of a batch")


def _is_text(prompt: Any) -> bool:
    """Return whether a prompt is text or tokens to continue; OpenAI's stored prompts are objects."""
    parts = prompt if isinstance(prompt, list) else [prompt]
    return not any(isinstance(each, Mapping) for each in parts)


def _not_allowed(field: str, why: str) -> NotAllowed:
    return NotAllowed(
        f"This API key may use certain models only, and may not send {excerpt_of(field)}: it is {why}",
        hint="Leave the field out, or list several models as `model`.",
    )
