"""Run Hugging Face models in this process.

Everything but the engine is shared with the embedded model: constraints, bounds, prompts, tools, streaming. The
embedded engine is several times faster on a CPU; this one runs models without a GGUF file, on any torch device.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slipform.addons.local.call import HookFactory
from slipform.addons.local.engine import Cancel, EngineSettings, GenerationEvent, InferenceEngine
from slipform.addons.local.llama import Chunk, EngineSlots, GenerationJob
from slipform.addons.local.provider import LocalProvider
from slipform.codecs import Capabilities
from slipform.errors import LocalModelError
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.ir.request import Guard
from slipform.ir.response import ChunkSink
from slipform.providers.base import ProviderAddOn, push_each

_INSTALL = "Run `pip install 'slipform[transformers]'`."
_DEFAULT_CONTEXT = 4096
_UNFINISHED = "\ufffd"
"""A tokenizer's output for an incomplete character."""
Forward = Callable[[Chunk], bool]


def package(name: str) -> Any:
    """Import a package of the optional extra; raises with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LocalModelError(f"Models of Hugging Face need {name}, which is not installed", hint=_INSTALL) from error


class GrammarLogitsProcessor:
    """Excludes every token that the grammar does not allow next.

    It replaces `ForceJsonStartLogitsProcessor`, given that grammar; with a schema's grammar, it enforces the schema.
    """

    def __init__(self, grammar: str, tokenizer: Any) -> None:
        self._matcher = package("llguidance").LLMatcher(tokenizer, grammar)
        if fault := self._matcher.get_error():
            raise LocalModelError(f"The grammar does not compile: {fault}")
        self._masks = package("llguidance.numpy")
        self._bits = self._masks.allocate_token_bitmask(1, tokenizer.vocab_size)
        self._consumed: int | None = None

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return the scores, with minus infinity for excluded tokens."""
        size = input_ids.shape[1]
        if self._consumed is not None and not self._matcher.is_stopped():
            self._matcher.consume_tokens(input_ids[0, self._consumed :].tolist())
        self._consumed = size
        self._masks.fill_next_token_bitmask(self._matcher, self._bits)
        numpy = package("numpy")
        torch = package("torch")
        allowed = numpy.unpackbits(self._bits.view(numpy.uint8)[0], bitorder="little").astype(bool)
        # Models may have more scores than their tokenizer has tokens, and masks are padded to whole words.
        is_allowed = torch.zeros(scores.shape[-1], dtype=torch.bool)
        count = min(len(allowed), len(is_allowed))
        is_allowed[:count] = torch.from_numpy(allowed[:count])
        return scores.masked_fill(~is_allowed.to(scores.device), float("-inf"))


class PenaltyLogitsProcessor:
    """Makes tokens that occur in the answer less likely, like OpenAI's two penalties."""

    def __init__(self, frequency: float, presence: float) -> None:
        self._frequency = frequency
        self._presence = presence
        self._prompt: int | None = None

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return the scores, less the penalty of each token."""
        if self._prompt is None:
            self._prompt = input_ids.shape[1]
        counts = package("torch").bincount(input_ids[0, self._prompt :], minlength=scores.shape[-1])
        return scores - self._frequency * counts - self._presence * (counts > 0)


class Pieces:
    """Converts tokens into complete characters: the streamer of `generate`."""

    def __init__(
        self, tokenizer: Any, stop: tuple[str, ...], forward: Forward, timed_prompt: int | None = None
    ) -> None:
        """Take `timed_prompt`, the size of the prompt, where every piece should report the tokens so far."""
        self.count = 0
        self.is_finished = False
        """Return whether generation ends here: it is cancelled, or at a stop sequence."""
        self.stopped = False
        self._tokenizer = tokenizer
        self._stop = stop
        self._forward = forward
        self._timed_prompt = timed_prompt
        self._tokens: list[int] = []
        self._sent = 0
        self._prompt = True

    def put(self, tokens: Any) -> None:
        """Take the prompt first, then one token at a time."""
        if self._prompt:
            self._prompt = False
            return
        self._tokens += tokens.reshape(-1).tolist()
        self.count = len(self._tokens)
        self._send(max((len(stop) for stop in self._stop), default=1) - 1)

    def end(self) -> None:
        """Send the remaining text."""
        if not self.is_finished:
            self._send(0)

    def _send(self, held_back: int) -> None:
        text = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        at = min((start for stop in self._stop if (start := text.find(stop)) >= 0), default=-1)
        if at >= 0:
            text = text[:at]
            held_back = 0
            self.stopped = True
            self.is_finished = True
        piece = text[self._sent : len(text) - held_back] if held_back else text[self._sent :]
        if piece and not piece.endswith(_UNFINISHED):
            self._sent += len(piece)
            self.is_finished = self._forward(self._chunk(piece)) or self.is_finished

    def _chunk(self, piece: str) -> dict[str, Any]:
        chunk: dict[str, Any] = {"choices": [{"delta": {"content": piece}}]}
        if self._timed_prompt is not None:
            chunk["timings"] = {"prompt_n": self._timed_prompt, "predicted_n": self.count}
        return chunk


class TransformersModel:
    """A loaded model; answers one chat at a time."""

    def __init__(self, name: str, context: int | None = None, *, fetch: bool = True) -> None:
        """Load a model from a path, or by its name from the hub's cache, else `fetch` it from the hub."""
        transformers = package("transformers")
        path = Path(os.path.expanduser(name))  # noqa: PTH111 — pathlib's raises for an unknown user
        where, more = (str(path.parent), {"gguf_file": path.name}) if path.suffix == ".gguf" else (name, {})
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(where, local_files_only=not fetch, **more)
            self._model = transformers.AutoModelForCausalLM.from_pretrained(
                where, local_files_only=not fetch, **more
            ).eval()
        except (OSError, ValueError, ImportError) as error:
            raise LocalModelError(
                f"The model could not be loaded: {str(error).splitlines()[0]}",
                where=name,
                hint="Give a name on the Hugging Face hub, a folder, or a GGUF file that transformers can read."
                if fetch
                else "The server fetches nothing for a request: run `hf download` there for a model of the hub.",
            ) from error
        own = getattr(self._model.config, "max_position_embeddings", None) or _DEFAULT_CONTEXT
        self._context = min(own, context or _DEFAULT_CONTEXT)
        self._masking = package("llguidance.hf").from_tokenizer(self._tokenizer)
        self._lock = threading.Lock()

    def handle_chat_completions(self, body: Mapping[str, Any], forward: Forward) -> None:
        """Answer a chat; `forward` is called with each chunk, and returns whether to stop there."""
        goes_on = bool(body.get("continue_final_message"))
        prompt = self._tokenizer.apply_chat_template(
            list(body["messages"]),
            add_generation_prompt=not goes_on,
            continue_final_message=goes_on,
            return_tensors="pt",
            return_dict=True,
        )
        size = prompt["input_ids"].shape[1]
        if size >= self._context:
            message = f"request ({size} tokens) exceeds the available context size ({self._context} tokens)"
            forward({"error": {"code": 400, "type": "exceed_context_size_error", "message": message}})
            return
        room = min(int(body["max_tokens"]), self._context - size)
        timed_prompt = size if body.get("timings_per_token") else None
        pieces = Pieces(self._tokenizer, tuple(body.get("stop") or ()), forward, timed_prompt)
        with self._lock:
            ended = self._generate(prompt, body, room, pieces)
        if pieces.is_finished and not pieces.stopped:
            return  # cancelled: no reader is left
        finish = "stop" if pieces.stopped or ended else "length"
        forward({"choices": [{"delta": {}, "finish_reason": finish}]})
        usage = {"prompt_tokens": size, "completion_tokens": pieces.count, "total_tokens": size + pieces.count}
        forward({"choices": [], "usage": usage})

    def _generate(self, prompt: Any, body: Mapping[str, Any], room: int, pieces: Pieces) -> bool:
        """Generate the answer; return whether the model itself ended it."""
        torch = package("torch")
        transformers = package("transformers")
        temperature = body.get("temperature")
        drawn = temperature is None or temperature > 0
        how: dict[str, Any] = {"do_sample": drawn}
        if drawn:
            how |= {
                "temperature": temperature or 1.0,
                "top_p": body.get("top_p") or 1.0,
                "top_k": body.get("top_k") or 0,
            }
            how |= {"min_p": body["min_p"]} if body.get("min_p") else {}
        if body.get("repeat_penalty"):
            how["repetition_penalty"] = float(body["repeat_penalty"])
        seed = body.get("seed")
        with torch.random.fork_rng(enabled=seed is not None), torch.inference_mode():
            if seed is not None:
                torch.manual_seed(seed)
            made = self._model.generate(
                **prompt,
                **how,
                max_new_tokens=room,
                streamer=pieces,
                logits_processor=transformers.LogitsProcessorList(self._processors(body)),
                stopping_criteria=transformers.StoppingCriteriaList(
                    [lambda ids, *_, **__: _all(ids, pieces.is_finished)]
                ),
                pad_token_id=self._tokenizer.pad_token_id or self._tokenizer.eos_token_id,
            )
        ends = self._model.generation_config.eos_token_id or self._tokenizer.eos_token_id
        return int(made[0, -1]) in (ends if isinstance(ends, list) else [ends, self._tokenizer.eos_token_id])

    def _processors(self, body: Mapping[str, Any]) -> list[Any]:
        processors: list[Any] = []
        frequency = body.get("frequency_penalty") or 0.0
        presence = body.get("presence_penalty") or 0.0
        if frequency or presence:
            processors.append(PenaltyLogitsProcessor(frequency, presence))
        if grammar := body.get("grammar"):
            processors.append(GrammarLogitsProcessor(grammar, self._masking))
        return processors


def _all(ids: Any, value: bool) -> Any:
    torch = package("torch")
    return torch.full((ids.shape[0],), value, dtype=torch.bool, device=ids.device)


class TransformersEngine:
    """A model of transformers in this process; loaded at construction, answers one request at a time."""

    def __init__(self, name: str, settings: EngineSettings | None = None, *, fetch: bool = True) -> None:
        self._slots = EngineSlots(TransformersModel(name, settings.context if settings else None, fetch=fetch), 1)

    def start(self, body: Mapping[str, Any], put: Callable[[GenerationEvent], None]) -> Cancel:
        """Start a chat."""
        job = GenerationJob(body, put)
        self._slots.start(job)
        return job.cancelled.set

    def warm(self) -> None:
        """Do nothing: the model is loaded."""

    def close(self) -> None:
        """Release the model once current calls have ended."""
        self._slots.close()


class TransformersProvider:
    """Answers with any causal language model that transformers loads: `transformers/NAME_OR_PATH`.

    >>> TransformersProvider().serves("HuggingFaceTB/SmolLM2-135M-Instruct")
    True
    """

    name = "transformers"

    def __init__(
        self,
        load: Callable[[str], InferenceEngine] | None = None,
        *,
        settings: EngineSettings | None = None,
        options: Guard | None = None,
        stop_hook: HookFactory | None = None,
        models: Collection[str] | None = None,
    ) -> None:
        """Take `models`, the only ones to serve, without downloads; None serves any, downloaded if needed."""
        self._load_arguments = (load, settings, options, stop_hook)
        self._models = models
        self._local = LocalProvider(
            load or (lambda name: TransformersEngine(name, settings, fetch=models is None)),
            options=options,
            stop_hook=stop_hook,
        )
        self.guard = self._local.guard

    def for_callers(self, models: Collection[str]) -> TransformersProvider:
        """Return a provider for callers from outside: these models, and no path or download of the callers' choice."""
        load, settings, options, stop_hook = self._load_arguments
        return TransformersProvider(load, settings=settings, options=options, stop_hook=stop_hook, models=models)

    def capabilities(self, model: str) -> Capabilities:
        """Return native output for every schema, as with the embedded model."""
        return self._local.capabilities(model)

    def models(self) -> list[str]:
        """Return no models by name; see `serves`."""
        return []

    def serves(self, model: str) -> bool:
        """Return whether a name is allowed: any, unless some are listed; loading it shows whether it exists."""
        if self._models is None:
            return bool(model)
        return model in self._models

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Answer, blocking."""
        return self._local.complete(request)

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """Answer piece by piece; closing the iterator stops the model within a token."""
        return self._local.stream(request)

    async def complete_async(self, request: ModelRequest) -> ModelResponse:
        """Answer, without blocking the event loop."""
        return await self._local.complete_async(request)

    def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """Answer piece by piece, without blocking the event loop."""
        return self._local.stream_async(request)

    def batches_async(self, request: ModelRequest, sink: ChunkSink) -> AsyncGenerator[Sequence[CompletionChunk], None]:
        """Stream the answer into a sink, like `stream_async`."""
        return push_each(self.stream_async(request), sink)

    def close(self) -> None:
        """Release the models and their memory."""
        self._local.close()


ADD_ON: Final = ProviderAddOn(TransformersProvider)
