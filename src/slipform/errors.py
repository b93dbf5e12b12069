"""Define the errors of slipform: one tree; each says what happened, where, and what to do next.

::

    SlipformError
    ├── ConfigError                      a setting or an argument of ours is wrong
    ├── RequestError                     the caller's request cannot be served as it stands
    │   ├── UnknownModelError            no provider or model of that name
    │   └── TooLargeError                a body, schema or prompt is over a limit
    ├── SchemaError                      the JSON Schema itself is at fault
    │   ├── StrictSchemaError            it breaks the vendors' strict-mode rules
    │   │   ├── AdditionalPropertiesNotFalse
    │   │   └── RequiredMissingProperties
    │   └── UnsupportedSchemaError       valid, but not expressible where it was sent
    ├── UpstreamError                    the model's side failed
    │   ├── AuthenticationError
    │   ├── RateLimitError
    │   ├── UpstreamTimeout
    │   ├── UpstreamRequestError         the vendor refused the request as malformed or unsupported
    │   └── LocalModelError              the embedded engine or its weights are missing or broken
    └── EnforcementError                 the model answered, and no answer was valid
        ├── JsonEnforcementError         not JSON
        │   ├── EmptyAnswerError         nothing at all
        │   └── WorkLimitError           to find or repair its JSON would take too much work
        ├── SchemaViolationError         JSON, but not valid
        ├── TruncatedError               cut off by a token limit
        ├── PromptCutError               the server cut the prompt, and values were to be found in it
        ├── RunawayError                 it repeated itself without end, and was stopped
        ├── RefusalError                 the model or a filter declined
        ├── ToolLoopError                it went on calling tools until its steps or its budget were spent
        ├── IncompleteExtraction         records of a source are missing or in doubt
        └── InvalidResponseFormat        the prompt-only path failed with `response_format_fail_hard`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class SlipformError(Exception):
    """The root of the tree: catch this to catch everything slipform raises on purpose.

    >>> error = SlipformError("No such file", where="slipform.yaml:3", hint="Create it with `slipform init`.")
    >>> str(error)
    'No such file, at slipform.yaml:3. Create it with `slipform init`.'
    >>> error.to_dict()["code"]
    'slipform_error'
    """

    code: ClassVar[str] = "slipform_error"
    http_status: ClassVar[int] = 500

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        details: Mapping[str, Any] | None = None,
        report: object | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        self.details: dict[str, Any] = dict(details or {})
        self.report: Any = report
        """The `Report` of the failed enforcement, if there was one."""
        self.response: Any = None
        """The `ModelResponse` of what had arrived, where an answer broke off or was not valid."""

    def __str__(self) -> str:
        text = self.message if self.where is None else f"{self.message.rstrip('.')}, at {self.where}"
        if self.hint is None:
            return text
        return f"{text.rstrip('.')}. {self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process boundaries (the local model's worker); keyword arguments would be lost.
        return _rebuild, (type(self), self.message, self.where, self.hint, self.details, dict(vars(self)))

    def to_dict(self) -> dict[str, Any]:
        """Return the error as a JSON object for programs."""
        fields: dict[str, Any] = {"code": self.code, "message": str(self)}
        if self.where is not None:
            fields["where"] = self.where
        if self.hint is not None:
            fields["hint"] = self.hint
        if self.details:
            fields["details"] = self.details
        return fields


def _rebuild(
    kind: type[SlipformError],
    message: str,
    where: str | None,
    hint: str | None,
    details: dict[str, Any],
    state: dict[str, Any],
) -> SlipformError:
    error = kind.__new__(kind)
    SlipformError.__init__(error, message, where=where, hint=hint, details=details)
    error.__dict__.update(state)
    return error


class ConfigError(SlipformError):
    """A setting or an argument of slipform is wrong."""

    code = "config_error"
    http_status = 500


class RequestError(SlipformError):
    """The caller's request cannot be served as it stands."""

    code = "invalid_request"
    http_status = 400


class UnknownModelError(RequestError):
    """No provider or model has that name."""

    code = "model_not_found"
    http_status = 404


class TooLargeError(RequestError):
    """A body, a schema or a prompt is over a limit."""

    code = "too_large"
    http_status = 413


class SchemaError(SlipformError):
    """The JSON Schema itself is at fault; no call was made."""

    code = "invalid_schema"
    http_status = 400


class StrictSchemaError(SchemaError):
    """The schema breaks the rules the vendors share for strict mode; `path` says where."""

    code = "strict_schema"

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StrictSchemaError) or type(other) is not type(self):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def _key(self) -> tuple[object, ...]:
        return (self.path,)


class AdditionalPropertiesNotFalse(StrictSchemaError):  # noqa: N818 — the name is the design document's
    """An object schema lacks `additionalProperties: false`.

    >>> str(AdditionalPropertiesNotFalse("$.properties.user"))
    'strict-mode schema requires `additionalProperties: false` at $.properties.user'
    """

    code = "strict_additional_properties"

    def __init__(self, path: str) -> None:
        super().__init__(f"strict-mode schema requires `additionalProperties: false` at {path}", path=path)


class RequiredMissingProperties(StrictSchemaError):  # noqa: N818 — the name is the design document's
    """An object schema declares properties that its `required` does not list.

    >>> str(RequiredMissingProperties("$", ["age", "city"]))
    'strict-mode schema at $ declares properties not in `required`: age, city'
    """

    code = "strict_required"

    def __init__(self, path: str, missing: Sequence[str]) -> None:
        names = ", ".join(missing)
        super().__init__(f"strict-mode schema at {path} declares properties not in `required`: {names}", path=path)
        self.missing = tuple(missing)

    def _key(self) -> tuple[object, ...]:
        return (self.path, self.missing)


class UnsupportedSchemaError(SchemaError):
    """The schema is valid but cannot be expressed on the channel that would carry it."""

    code = "unsupported_schema"
    http_status = 422


class UpstreamError(SlipformError):
    """The model's side failed: its server, its network, or its engine."""

    code = "upstream_error"
    http_status = 502

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        details: Mapping[str, Any] | None = None,
        report: object | None = None,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint, details=details, report=report)
        self.status = status
        """The vendor's HTTP status; None if it did not answer."""
        self.retry_after = retry_after
        """Seconds to wait that the vendor named."""


class AuthenticationError(UpstreamError):
    """The vendor did not accept the key, or there is none."""

    code = "authentication_error"
    http_status = 401


class RateLimitError(UpstreamError):
    """The vendor's rate limit is reached."""

    code = "rate_limited"
    http_status = 429


class UpstreamTimeout(UpstreamError):  # noqa: N818 — the name is DESIGN.md's
    """The model did not answer in time."""

    code = "upstream_timeout"
    http_status = 504


class UpstreamRequestError(UpstreamError):
    """The vendor refused the request as malformed, too long or unsupported."""

    code = "upstream_rejected_request"
    http_status = 400


class LocalModelError(UpstreamError):
    """The embedded engine or its weights are missing or broken."""

    code = "local_model_unavailable"
    http_status = 503


class EnforcementError(SlipformError):
    """The model answered, and no answer was valid or could be made so.

    >>> EnforcementError("No JSON").to_dict()["details"]["validation_errors"][0]["message"]
    'No JSON'
    """

    code = "structured_output_failed"
    http_status = 422

    def to_dict(self) -> dict[str, Any]:
        """Return the error as a JSON object; its `details` always have a list of `validation_errors`."""
        fields = super().to_dict()
        whole = {"path": "$", "keyword": self.code, "message": self.message, "pointer": "", "schema_path": ""}
        fields["details"] = {"validation_errors": [whole], **self.details}
        return fields


StructuredOutputFailed = EnforcementError
"""The name that some of the design documents have for it."""


class JsonEnforcementError(EnforcementError):
    """The answer holds no JSON."""

    code = "not_json"


class EmptyAnswerError(JsonEnforcementError):
    """The model returned nothing at all."""

    code = "empty_answer"


class WorkLimitError(JsonEnforcementError):
    """To find, repair or patch the JSON of the answer would take too much work; `details` says how long it is."""

    code = "work_limit"


class SchemaViolationError(EnforcementError):
    """The answer is JSON, but not valid against the schema; `details` lists the violations."""

    code = "schema_violation"


class TruncatedError(EnforcementError):
    """The answer was cut off by a token limit, or it ends in the middle of a value."""

    code = "truncated"
    partial: Any = None
    """What is complete of the answer: an object of the type that was asked for where it is valid, else plain JSON."""


class PromptCutError(EnforcementError):
    """The server cut the prompt without an error, and the values of the answer were to be found in it."""

    code = "prompt_cut"


class RunawayError(EnforcementError):
    """The answer repeated itself without end (blanks, digits, one phrase) and was stopped; `details` says where."""

    code = "runaway"


class RefusalError(EnforcementError):
    """The model, or a safety filter, declined to answer."""

    code = "refusal"


class ToolLoopError(EnforcementError):
    """The model went on calling tools until the steps or the budget of the conversation were spent."""

    code = "tool_loop"


class IncompleteExtraction(EnforcementError):  # noqa: N818 — named for what it reports
    """Records of a source are missing or in doubt; `extraction` has everything that was extracted."""

    code = "incomplete_extraction"
    extraction: Any = None


class InvalidResponseFormat(EnforcementError):  # noqa: N818 — the name is the design document's
    """The prompt-only path found no valid JSON, with `response_format_fail_hard`."""

    code = "invalid_response_format"
