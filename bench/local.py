"""Measure the embedded model: the cost and the benefit of its grammar, beside peers.

    python -m bench.local                        # tasks and speed with the default model
    python -m bench.local --model qwen2.5-coder-1.5b --only tasks

Speeds are tokens per CPU-second of this process, all its threads, with one decoding thread: of each token of an answer
the fastest of several passes, taken in turn, so that a busy machine counts little. All answers have the same prompt
and the same number of tokens (the free one may not end before). The prompt is read once and kept; compiling the grammar
is part of the first token, and shown apart. `numpy` is needed for our own decoding loop. Outlines is measured in the
same loop, if the environment of the Python at `$SLIPFORM_OUTLINES` has it (`pip install outlines-core`).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from slipform import Client, Schema
from slipform.addons.local import LocalProvider
from slipform.addons.local.decoding.constrain import constrain
from slipform.addons.local.engine import engine_folder, locate
from slipform.addons.local.llama import load_model
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.errors import SlipformError
from slipform.providers.router import Router


def of(**kinds: Any) -> dict[str, Any]:
    properties = {name: kind if isinstance(kind, dict) else {"type": kind} for name, kind in kinds.items()}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def one(*values: str) -> dict[str, Any]:
    return {"enum": list(values)}


TASKS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Ada is 36", of(name="string", age="integer"), {"name": "Ada", "age": 36}),
    ("Tom lives in Oslo.", of(name="string", city="string"), {"name": "Tom", "city": "Oslo"}),
    ("The kettle costs 29 euros.", of(item="string", price="integer"), {"item": "kettle", "price": 29}),
    ("I love this film!", of(sentiment=one("positive", "negative")), {"sentiment": "positive"}),
    ("This is the worst soup ever.", of(sentiment=one("positive", "negative")), {"sentiment": "negative"}),
    ("The meeting is on 2024-05-17.", of(date={"type": "string", "format": "date"}), {"date": "2024-05-17"}),
    ("Bob has two dogs and one cat.", of(dogs="integer", cats="integer"), {"dogs": 2, "cats": 1}),
    ("Write to mia@example.com.", of(email={"type": "string", "format": "email"}), {"email": "mia@example.com"}),
    ("The train leaves platform 9.", of(platform="integer"), {"platform": 9}),
    ("Paris is the capital of France.", of(city="string", country="string"), {"city": "Paris", "country": "France"}),
    ("Lena, 28, works as a nurse.", of(name="string", age="integer"), {"name": "Lena", "age": 28}),
    ("The sky is blue.", of(color=one("red", "green", "blue")), {"color": "blue"}),
    ("Order 4711 was shipped.", of(order="integer", shipped="boolean"), {"order": 4711, "shipped": True}),
    ("The room is 21 degrees.", of(temperature="integer"), {"temperature": 21}),
    ("Max and Eva are coming.", of(names={"type": "array", "items": {"type": "string"}}), {"names": ["Max", "Eva"]}),
    ("The book has 320 pages.", of(pages="integer"), {"pages": 320}),
    ("Call me at 555-1234.", of(phone="string"), {"phone": "555-1234"}),
    ("The shop opens at 9 and closes at 18.", of(opens="integer", closes="integer"), {"opens": 9, "closes": 18}),
    ("Marie Curie was born in 1867.", of(name="string", born="integer"), {"name": "Marie Curie", "born": 1867}),
    ("The cat is asleep.", of(animal=one("dog", "cat", "bird")), {"animal": "cat"}),
]

SHAPE = of(title="string", summary="string", tags={"type": "array", "items": {"type": "string"}, "minItems": 12})
WORDS = "Describe a lighthouse at length. Reply in JSON with the keys: title, summary, tags."
TOKENS = 96
PASSES = 8


def tasks(model: str) -> None:
    valid = correct = 0
    started = time.monotonic()
    with contextlib.closing(LocalProvider()) as provider:
        client = Client(
            f"local/{model}", router=Router({"local": provider}), options=Options(budget=Budget(attempts=2))
        )
        for words, shape, expected in TASKS:
            try:
                value = client.ask(shape, words, max_tokens=160)
            except SlipformError as error:
                print(f"  {words!r}: {error.code}")
                continue
            valid += Schema[object]("task", shape).validate(value) == []
            correct += value == expected
            if value != expected:
                print(f"  {words!r}: {json.dumps(value)}")
    print(f"{model}: valid {valid}/{len(TASKS)}, correct {correct}/{len(TASKS)}, {time.monotonic() - started:.0f} s")


def fastest(passes: list[list[float]]) -> list[float]:
    """The CPU-seconds of each token, the least of all passes."""
    return [min(times) for times in zip(*passes, strict=False)]


def rate(times: list[float]) -> float:
    """Tokens per CPU-second."""
    return len(times) / sum(times)


def engine_speed(path: Path) -> None:
    model = load_model({"path": str(path), "context": 1024, "slots": 1, "threads": 1})
    body = {
        "messages": [{"role": "user", "content": WORDS}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
    }
    kinds: dict[str, dict[str, Any]] = {
        "free": {},
        "llguidance": {"grammar": constrain(SHAPE, 2000).grammar},
        "its own GBNF": {"response_format": {"type": "json_schema", "json_schema": {"schema": SHAPE}}},
    }

    def run(more: dict[str, Any]) -> list[float]:
        marks = [time.process_time()]

        def mark(chunk: Any) -> bool:
            if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                marks.append(time.process_time())
            return False

        model.handle_chat_completions({**body, **more}, mark)
        return [after - before for before, after in itertools.pairwise(marks)]

    for more in kinds.values():
        run(more)  # the prompt and the vocabulary are read once, and kept
    seen: dict[str, list[list[float]]] = {name: [] for name in kinds}
    for _ in range(PASSES):
        for name, more in kinds.items():
            seen[name].append(run(more))
    free = fastest(seen["free"])
    for name, passes in seen.items():
        times = fastest(passes)
        print(
            f"engine, {name:<15} {rate(times):6.1f} tokens per CPU-second, {rate(times) / rate(free):.3f} of free; "
            f"without the first token {rate(times[1:]) / rate(free[1:]):.3f}; "
            f"the first took {(times[0] - free[0]) * 1e3:.1f} ms more"
        )


class Opaque(ctypes.Structure):
    """A parameter struct of the engine's, never looked into but for its first two fields; larger than the real one."""

    _fields_ = (("first", ctypes.c_uint32), ("second", ctypes.c_uint32), ("rest", ctypes.c_byte * 1016))


class Batch(ctypes.Structure):
    """What the engine is to decode; never looked into."""

    _fields_ = (("count", ctypes.c_int32), ("pointers", ctypes.c_void_p * 6))


class Loop:
    """Our own decoding loop over the engine's C functions: logits out, a mask over them, the best token in."""

    def __init__(self, path: Path) -> None:
        (library,) = Path(engine_folder(), "xllamacpp").glob("*.so")
        self.lib = lib = ctypes.CDLL(str(library))
        pointer, integer = ctypes.c_void_p, ctypes.c_int32
        for name, gives, takes in [
            ("llama_model_default_params", Opaque, []),
            ("llama_model_load_from_file", pointer, [ctypes.c_char_p, Opaque]),
            ("llama_context_default_params", Opaque, []),
            ("llama_init_from_model", pointer, [pointer, Opaque]),
            ("llama_set_n_threads", None, [pointer, integer, integer]),
            ("llama_model_get_vocab", pointer, [pointer]),
            ("llama_vocab_n_tokens", integer, [pointer]),
            ("llama_vocab_eos", integer, [pointer]),
            ("llama_vocab_is_eog", ctypes.c_bool, [pointer, integer]),
            ("llama_vocab_is_control", ctypes.c_bool, [pointer, integer]),
            (
                "llama_tokenize",
                integer,
                [pointer, ctypes.c_char_p, integer, pointer, integer, ctypes.c_bool, ctypes.c_bool],
            ),
            ("llama_token_to_piece", integer, [pointer, integer, ctypes.c_char_p, integer, integer, ctypes.c_bool]),
            ("llama_batch_get_one", Batch, [pointer, integer]),
            ("llama_decode", integer, [pointer, Batch]),
            ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), [pointer, integer]),
            ("llama_get_memory", pointer, [pointer]),
            ("llama_memory_clear", None, [pointer, ctypes.c_bool]),
        ]:
            getattr(lib, name).restype, getattr(lib, name).argtypes = gives, takes
        model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        settings = lib.llama_context_default_params()
        settings.first, settings.second = 1024, 512
        self.context = lib.llama_init_from_model(model, settings)
        lib.llama_set_n_threads(self.context, 1, 1)
        self.vocab = lib.llama_model_get_vocab(model)
        self.size = lib.llama_vocab_n_tokens(self.vocab)
        self.end = lib.llama_vocab_eos(self.vocab)

    def pieces(self) -> Iterator[bytes]:
        """The bytes of every token, in order."""
        buffer = ctypes.create_string_buffer(512)
        for token in range(self.size):
            length = self.lib.llama_token_to_piece(self.vocab, token, buffer, 512, 0, True)
            control = self.lib.llama_vocab_is_control(self.vocab, token)
            yield b"\xff" * control + buffer.raw[: max(0, length)]

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a text."""
        data = text.encode()
        found = (ctypes.c_int32 * 512)()
        return list(found[: self.lib.llama_tokenize(self.vocab, data, len(data), found, 512, False, True)])

    def logits(self, tokens: list[int]) -> Any:
        """Decode these tokens; the logits after the last."""
        import numpy as np

        held = (ctypes.c_int32 * len(tokens))(*tokens)
        self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(held, len(tokens)))
        return np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.context, -1), (self.size,))

    def clear(self) -> None:
        """Forget all that was decoded."""
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)


class Holder(Protocol):
    """What says which tokens may come next in one answer."""

    def fill(self, bits: Any) -> None:
        """Write the mask, one bit for each token."""

    def take(self, token: int) -> list[int]:
        """Note what was drawn; the tokens that must follow."""

    def is_over(self) -> bool:
        """Whether the answer is complete."""


class Guidance:
    """llguidance, with or without fast-forwarded tokens."""

    def __init__(self, tokenizer: Any, grammar: str, *, forward: bool) -> None:
        import llguidance

        self.matcher = llguidance.LLMatcher(tokenizer, grammar)
        self.forward = forward
        self.is_over = self.matcher.is_stopped

    def fill(self, bits: Any) -> None:
        """Write the mask."""
        import llguidance.numpy

        llguidance.numpy.fill_next_token_bitmask(self.matcher, bits)

    def take(self, token: int) -> list[int]:
        """Note what was drawn."""
        self.matcher.consume_token(token)
        sure = self.matcher.compute_ff_tokens() if self.forward else []
        if sure:
            self.matcher.consume_tokens(sure)
        return list(sure)


class Outlines:
    """Outlines' own core: an index over the whole vocabulary, made from a regular expression before the first token."""

    def __init__(self, index: Any) -> None:
        from outlines_core import Guide

        self.guide = Guide(index)
        self.is_over = self.guide.is_finished

    def fill(self, bits: Any) -> None:
        """Write the mask."""
        self.guide.write_mask_into(bits.ctypes.data, bits.size, bits.itemsize)

    def take(self, token: int) -> list[int]:
        """Note what was drawn."""
        self.guide.advance(token, return_tokens=False)
        return []


def answer_times(loop: Loop, prompt: list[int], holder: Holder | None, masks: list[float]) -> list[float]:
    """The CPU-seconds of each token of one answer in our own loop; those of its masks are added to `masks`."""
    import numpy as np

    loop.clear()
    bits = np.zeros((1, (loop.size + 31) // 32), dtype=np.int32)
    logits = loop.logits(prompt)
    times: list[float] = []
    while len(times) < TOKENS and not (holder and holder.is_over()):
        started = time.process_time()
        if holder:
            holder.fill(bits)
            masks.append(time.process_time() - started)
            allowed = np.unpackbits(bits.view(np.uint8)[0], bitorder="little")[: loop.size].view(bool)
            logits = np.where(allowed, logits, -np.inf)
        token = int(logits.argmax())
        new = [token, *(holder.take(token) if holder else [])]
        logits = loop.logits(new)
        times += [(time.process_time() - started) / len(new)] * len(new)
    return times


def loop_speed(path: Path) -> None:
    import llguidance

    loop = Loop(path)
    prompt = loop.tokenize(f"<|im_start|>user\n{WORDS}<|im_end|>\n<|im_start|>assistant\n")
    tokenizer = llguidance.LLTokenizer.from_llamacpp(
        tokens=list(loop.pieces()),
        vocab_ptr=loop.vocab,
        eos_token=loop.end,
        slices=None,
        tokenize_fptr=ctypes.cast(loop.lib.llama_tokenize, ctypes.c_void_p).value,
    )
    grammar = constrain(SHAPE, 2000).grammar
    kinds: dict[str, Callable[[], Holder | None]] = {
        "free": lambda: None,
        "llguidance": lambda: Guidance(tokenizer, grammar, forward=False),
        "fast-forward": lambda: Guidance(tokenizer, grammar, forward=True),
    }
    if index := outlines_index(loop):
        kinds["Outlines"] = lambda: Outlines(index)
    seen: dict[str, list[list[float]]] = {name: [] for name in kinds}
    masks: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(PASSES):
        for name, held in kinds.items():
            seen[name].append(answer_times(loop, prompt, held(), masks[name]))
    free = rate(fastest(seen["free"]))
    for name, passes in seen.items():
        print(f"own loop, {name:<13} {rate(fastest(passes)):6.1f}  ({rate(fastest(passes)) / free:.3f} of free)")
    for name, each in masks.items():
        if spent := sorted(each):
            middle, late = spent[len(spent) // 2] * 1e3, spent[int(len(spent) * 0.99)] * 1e3
            print(f"mask, {name:<17} {middle:.2f} CPU-ms in the middle, {late:.2f} CPU-ms at p99")


def outlines_index(loop: Loop) -> Any:
    """Outlines' index for the shape, with bounds, without which it does not end; None, and why, if it is not there."""
    python = Path(os.environ.get("SLIPFORM_OUTLINES") or Path(sys.prefix, "outlines", "bin", "python"))
    sys.path.extend(map(str, sorted(python.parent.parent.glob("lib/python*/site-packages"))))
    try:
        from outlines_core import Index, Vocabulary
        from outlines_core.json_schema import build_regex_from_schema
    except ImportError as error:
        print(f"own loop, Outlines: not measured, {error}; name a Python that has outlines-core in $SLIPFORM_OUTLINES")
        return None
    pieces: dict[bytes, list[int]] = {}
    for token, piece in enumerate(loop.pieces()):
        if piece and not piece.startswith(b"\xff"):
            pieces.setdefault(piece, []).append(token)
    bounded = json.loads(json.dumps(SHAPE).replace('"type": "string"', '"type": "string", "maxLength": 60'))
    bounded["properties"]["tags"]["maxItems"] = 12
    started = time.process_time()
    index = Index(build_regex_from_schema(json.dumps(bounded)), Vocabulary(loop.end, pieces))
    print(f"Outlines makes its index in {time.process_time() - started:.1f} CPU-s, not counted below")
    return index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--only", choices=["tasks", "speed"])
    arguments = parser.parse_args()
    path = locate(arguments.model)
    if arguments.only != "speed":
        tasks(arguments.model)
    if arguments.only != "tasks":
        engine_speed(path)
        if importlib.util.find_spec("numpy"):
            loop_speed(path)


if __name__ == "__main__":
    main()
