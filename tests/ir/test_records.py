"""The records that every call makes: how they are made, compared, shown, copied, pickled, and that they stay frozen."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import msgspec
import pytest

from slipform.addons.batch.call import FinishedRow
from slipform.addons.batch.journal import JournalEntry
from slipform.codecs import EncodedRequest, ServedRequest
from slipform.enforce import Verdict
from slipform.enforce.patching import Patched
from slipform.enforce.plan import Attempt, Outcome, Report
from slipform.errors import RefusalError
from slipform.ir import Message, ModelRequest, ModelResponse, Usage
from slipform.ir.messages import Text
from slipform.ir.request import CallCount
from slipform.ir.response import Lift
from slipform.providers.auth import Authorised, Secret
from slipform.schema import OutputStrategy

ENTRY = JournalEntry(1, "k", True, b"{}")
RECORDS = [
    ModelRequest("m", (Message.user("hi"),), max_tokens=3, metadata={"a": 1}),
    ModelResponse("hi", usage=Usage(1, 2), extra={"a": 1}),
    Message.system("be brief"),
    Text("a"),
    Usage(1, 2),
    EncodedRequest("/v1", b"{}"),
    ServedRequest(ModelRequest("m", ()), stream=True),
    Attempt("ok", OutputStrategy.NATIVE, usage=Usage(1, 2)),
    Report((Attempt("ok", OutputStrategy.NATIVE),)),
    Patched({"a": 1}),
    Verdict(3, "3", typed=3),
    Outcome(3, "3", ModelResponse("3"), Report(), typed=3),
    Authorised("https://a.example", {"a": "b"}),
    ENTRY,
    FinishedRow(ENTRY, Usage(1, 2), 0.5),
]
KINDS = sorted({type(record) for record in RECORDS}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_copy_pickle_and_compare(record: msgspec.Struct) -> None:
    assert pickle.loads(pickle.dumps(record)) == record
    assert copy.deepcopy(record) == record
    assert copy.copy(record) == record
    assert msgspec.structs.replace(record) == record
    assert record != object()


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_take_their_fields_by_position_and_by_name(record: Any) -> None:
    names = record.__struct_fields__
    values = [getattr(record, name) for name in names]
    assert type(record)(*values) == record == type(record)(**dict(zip(names, values, strict=True)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_records_can_be_looked_into_and_refuse_fields_that_they_have_not(kind: Any) -> None:
    assert tuple(inspect.signature(kind).parameters) == kind.__struct_fields__ == kind.__match_args__
    with pytest.raises(TypeError, match="colour"):
        kind(*[None] * len(kind.__struct_fields__[:1]), colour="red")


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_stay_frozen(record: msgspec.Struct) -> None:
    name = record.__struct_fields__[0]
    with pytest.raises(AttributeError):
        setattr(record, name, None)
    with pytest.raises(AttributeError):
        delattr(record, name)
    with pytest.raises(AttributeError):
        record.colour = "red"  # type: ignore[attr-defined]


def test_a_missing_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="messages"):
        ModelRequest("m")  # type: ignore[call-arg]


def test_defaults_are_made_anew_for_each_record() -> None:
    assert ModelRequest("m", ()).extra is not ModelRequest("m", ()).extra
    assert Message.user("a").extra is not Message.user("a").extra
    assert EncodedRequest("/", b"").headers is not EncodedRequest("/", b"").headers


def test_lists_become_tuples_in_records_and_their_copies() -> None:
    hi = Message.user("hi")
    assert ModelRequest("m", [hi], tools=[]).messages == (hi,)  # type: ignore[arg-type]
    assert ModelRequest("m", ()).replace(messages=[hi]).messages == (hi,)
    assert Message("user", [Text("hi")]) == hi  # type: ignore[arg-type]
    assert hi.replace(parts=[Text("ho")]).parts == (Text("ho"),)


def test_a_copy_shares_what_is_not_changed() -> None:
    old = ModelRequest("m", (Message.user("hi"),), extra={"a": 1}, calls=CallCount(2))
    new = old.replace(model="n")
    assert (new.model, old.model) == ("n", "m")
    assert new.extra is old.extra
    assert new.calls is old.calls
    assert ModelResponse("a", id="1").replace(text="b") == ModelResponse("b", id="1")
    assert Usage(1).replace(output=2) == Usage(1, 2)
    assert Report().replace(attempts=()) == Report()


@pytest.mark.parametrize("record", [ModelRequest("m", ()), ModelResponse(), Message.user("a"), Usage(), Report()])
def test_a_copy_with_a_field_that_there_is_not_is_refused(record: Any) -> None:
    with pytest.raises(TypeError, match="colour"):
        record.replace(colour="red")


def test_what_is_not_said_is_neither_compared_nor_shown() -> None:
    counted = ModelRequest("m", (), calls=CallCount(2))
    assert counted == ModelRequest("m", ())
    assert "calls" not in repr(counted).replace("tool_calls", "")
    assert ModelRequest("m", ()) != ModelRequest("n", ())
    plain = ModelResponse("1")
    told = plain.replace(content_resolved=1, lift=Lift({}, lambda value: value), stopped=RefusalError("no"))
    assert told == plain
    assert repr(told) == repr(plain)
    assert repr(plain).startswith("ModelResponse(text='1', tool_calls=(), reasoning='', refusal=None, finish='stop'")
    assert repr(plain).endswith("parts=(), others=())")
    assert plain != ModelResponse("2")


def test_secrets_do_not_show() -> None:
    authorised = Authorised("https://a.example?key=abc", {"authorization": "Bearer abc"}, (Secret("abc"),))
    assert "abc" not in repr(authorised)


def test_records_without_mappings_can_be_hashed_and_those_with_one_cannot() -> None:
    assert hash(Usage(1, 2)) == hash(Usage(1, 2))
    assert hash(ENTRY) == hash(JournalEntry(1, "k", True, b"{}"))
    for record in (ModelRequest("m", ()), ModelResponse(), Message.user("a")):
        with pytest.raises(TypeError, match="unhashable"):
            hash(record)
