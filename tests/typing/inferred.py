"""What a type checker must infer of the Python face; `make lint` runs mypy over this file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional, TypedDict, Union, assert_type

from pydantic import BaseModel, Field

import slipform
from slipform import (
    AsyncClient,
    AsyncStream,
    CallDelta,
    Client,
    JsonSchemaSpec,
    Partial,
    Restart,
    Result,
    Stream,
    TextDelta,
    ToolRun,
)
from slipform.library.partial import Unset
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router


class Person(BaseModel):
    name: str


@dataclass
class Point:
    x: int


class Movie(TypedDict):
    title: str


SCHEMA: dict[str, Any] = {"type": "object"}


def ask(client: Client) -> None:
    assert_type(client.ask(Person, "x"), Person)
    assert_type(client.ask(list[Person], "x"), list[Person])
    assert_type(client.ask(Person | Point, "x"), Person | Point)
    assert_type(client.ask(Union[int, str], "x"), int | str)  # noqa: UP007
    assert_type(client.ask(Optional[Person], "x"), Person | None)  # noqa: UP045
    assert_type(client.ask(Literal["a", "b"], "x"), Literal["a", "b"])
    assert_type(client.ask(Movie, "x"), Movie)
    assert_type(client.ask(Point, "x"), Point)
    assert_type(client.ask(dict[str, Point], "x"), dict[str, Point])
    assert_type(client.ask(Annotated[int, Field(gt=0)], "x"), int)
    assert_type(client.ask(int, "x"), int)
    assert_type(client.ask(SCHEMA, "x"), Any)
    assert_type(client.ask('{"type": "object"}', "x"), Any)
    assert_type(client.ask(JsonSchemaSpec("a", {}), "x"), Any)


def ask_full(client: Client) -> None:
    assert_type(client.ask_full(Person, "x"), Result[Person])
    assert_type(client.ask_full(list[Person], "x"), Result[list[Person]])
    assert_type(client.ask_full(Person | Point, "x"), Result[Person | Point])
    assert_type(client.ask_full(Optional[Person], "x"), Result[Person | None])  # noqa: UP045
    assert_type(client.ask_full(Literal["a", "b"], "x"), Result[Literal["a", "b"]])
    assert_type(client.ask_full(Movie, "x"), Result[Movie])
    assert_type(client.ask_full(Point, "x"), Result[Point])
    assert_type(client.ask_full(dict[str, Point], "x"), Result[dict[str, Point]])
    assert_type(client.ask_full(Annotated[int, Field(gt=0)], "x"), Result[int])
    assert_type(client.ask_full(SCHEMA, "x"), Result[Any])
    assert_type(client.ask_full(Person, "x").value, Person)


def stream(client: Client) -> None:
    assert_type(client.stream(Person, "x"), Stream[Person])
    assert_type(client.stream(list[Person], "x"), Stream[list[Person]])
    assert_type(client.stream(Person | Point, "x"), Stream[Person | Point])
    assert_type(client.stream(Optional[Person], "x"), Stream[Person | None])  # noqa: UP045
    assert_type(client.stream(Literal["a", "b"], "x"), Stream[Literal["a", "b"]])
    assert_type(client.stream(Movie, "x"), Stream[Movie])
    assert_type(client.stream(Point, "x"), Stream[Point])
    assert_type(client.stream(dict[str, Point], "x"), Stream[dict[str, Point]])
    assert_type(client.stream(Annotated[int, Field(gt=0)], "x"), Stream[int])
    assert_type(client.stream(SCHEMA, "x"), Stream[Any])
    with client.stream(list[Person], "x") as opened:
        assert_type(opened, Stream[list[Person]])
        assert_type(opened.items(), Iterator[Person])
        assert_type(opened.result.value, list[Person])
        for partial in opened:
            assert_type(partial, Partial[list[Person]])
            assert_type(partial[0], Person | Partial[Person] | Unset)
            for person in partial:
                assert_type(person, Person | Partial[Person] | Unset)
                if isinstance(person, Person):
                    assert_type(person.name, str)


def shortcuts() -> None:
    assert_type(slipform.ask(Person, "x"), Person)
    assert_type(slipform.ask(Person | Point, "x"), Person | Point)
    assert_type(slipform.ask(SCHEMA, "x"), Any)
    assert_type(slipform.stream(Person, "x"), Stream[Person])
    assert_type(slipform.stream_async(Literal["a"], "x"), AsyncStream[Literal["a"]])
    assert_type(slipform.loads("{}", Person), Person)
    assert_type(slipform.loads("{}", Person | None), Person | None)


async def event_loops(client: AsyncClient) -> None:
    assert_type(await client.ask(Person, "x"), Person)
    assert_type(await client.ask(Person | Point, "x"), Person | Point)
    assert_type(await client.ask_full(Literal["a"], "x"), Result[Literal["a"]])
    assert_type(await client.ask(SCHEMA, "x"), Any)
    assert_type(await slipform.ask_async(list[Person], "x"), list[Person])
    assert_type(client.stream(Movie, "x"), AsyncStream[Movie])
    async with client.stream(list[Person], "x") as opened:
        assert_type((await opened.result()).value, list[Person])
        async for person in opened.items():
            assert_type(person, Person)
        async for partial in opened:
            assert_type(partial, Partial[list[Person]])


def check_person(person: Person) -> str | None:
    return None if person.name else "no name"


def check_point(point: Point) -> str | None:
    return None if point.x else "no x"


def validators(client: Client) -> None:
    assert_type(client.ask(Person, "x", validators=[check_person]), Person)
    assert_type(client.ask(Person, "x", validators=[lambda person: ("name", "?") if person.name else None]), Person)
    client.ask(Person, "x", validators=[check_point])  # type: ignore[list-item]  # pyright: ignore[reportCallIssue, reportArgumentType]


def tools(client: Client) -> None:
    with client.stream(Person, "x", tools=[check_person]) as stream:
        for event in stream.events():
            match event:
                case TextDelta(text=text):
                    assert_type(text, str)
                case CallDelta(name=name):
                    assert_type(name, str)
                case ToolRun(error=error):
                    assert_type(error, Exception | None)
                case Restart(attempt=attempt):
                    assert_type(attempt, int)
                case Result(value=value):
                    assert_type(value, Person)
                case partial:
                    assert_type(partial, Partial[Person])


async def overrides(client: Client, twin: AsyncClient) -> None:
    assert_type(client.ask(Person, "x", temperature=0, max_attempts=2, strategy="tool"), Person)
    assert_type(await twin.ask(Person | None, "x", timeout=3, system="s"), Person | None)
    assert_type(slipform.ask_text("x", seed=1), str)
    client.ask(Person, "x", temprature=1)  # type: ignore[call-overload]
    client.text("x", max_attempts=1)  # type: ignore[call-arg]


def route() -> Router:
    return Router({"first": HttpProvider("openai"), "second": HttpProvider("anthropic")})
