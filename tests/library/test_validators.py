"""The caller's own checks of an answer: what they get, what they may say, and what is refused when they are given."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from slipform import Budget, Client, ConfigError, Options, SchemaViolationError
from slipform.providers.router import Router
from slipform.testing import FakeModel


class Line(BaseModel):
    name: str
    price: float


class Order(BaseModel):
    lines: list[Line]
    total: float


BAD = '{"lines": [{"name": "bolt", "price": 2.0}], "total": 3.0}'
GOOD = '{"lines": [{"name": "bolt", "price": 2.0}], "total": 2.0}'


def adds_up(order: Order) -> str | None:
    return None if sum(line.price for line in order.lines) == order.total else "the total is wrong"


def raises_value_error(order: Order) -> None:
    if adds_up(order):
        raise ValueError("the total is wrong")


def asserts(order: Order) -> None:
    assert not adds_up(order), "the total is wrong"


def names_the_place(order: Order) -> tuple[str, str] | None:
    return ("total", "the total is wrong") if adds_up(order) else None


def names_steps(order: Order) -> tuple[tuple[str, int, str], str] | None:
    return (("lines", 0, "price"), "the total is wrong") if adds_up(order) else None


def names_a_pointer(order: Order) -> tuple[str, str] | None:
    return ("/lines/0/price", "the total is wrong") if adds_up(order) else None


def lists(order: Order) -> list[Any]:
    return [("$.lines[0].price", "the total is wrong"), "look again"] if adds_up(order) else []


@pytest.mark.parametrize(
    ("validator", "says"),
    [
        (adds_up, "- $: the total is wrong"),
        (raises_value_error, "- $: the total is wrong"),
        (asserts, "- $: the total is wrong"),
        (names_the_place, "- $.total: the total is wrong"),
        (names_steps, "- $.lines[0].price: the total is wrong"),
        (names_a_pointer, "- $.lines[0].price: the total is wrong"),
        (lists, "- $.lines[0].price: the total is wrong\n- $: look again"),
    ],
)
def test_a_complaint_is_sent_to_the_model(validator: Any, says: str) -> None:
    model = FakeModel([BAD, GOOD])
    client = Client("fake/m", router=Router({"fake": model}))
    assert client.ask(Order, "Read it.", validators=[validator], max_attempts=2).total == 2.0
    assert says in model.requests[1].messages[-1].text


def test_the_place_is_in_the_error() -> None:
    client = Client("fake/m", router=Router({"fake": FakeModel([BAD])}))
    with pytest.raises(SchemaViolationError) as caught:
        client.ask(Order, "Read it.", validators=[names_steps])
    assert caught.value.where == "$.lines[0].price"
    assert caught.value.details["validation_errors"][0]["found"] == "2.0"


@pytest.mark.parametrize(
    ("validators", "says"),
    [
        (adds_up, "list of functions"),
        (["adds_up"], "must be a function, not 'adds_up'"),
        ([lambda: None], "'<lambda>' cannot be called with the answer alone"),
        ([lambda order, other: None], "cannot be called with the answer alone"),
    ],
)
def test_what_cannot_be_a_validator_is_refused_when_it_is_given(validators: Any, says: str) -> None:
    model = FakeModel([GOOD])
    with pytest.raises(ConfigError, match=says):
        Client("fake/m", router=Router({"fake": model})).ask(Order, "Read it.", validators=validators)
    with pytest.raises(ConfigError, match=says):
        Options(validators=validators)
    assert model.requests == []


def test_an_async_validator_is_refused() -> None:
    async def later(order: Order) -> None: ...

    with pytest.raises(ConfigError, match="'later' is async"):
        Options(validators=(later,))  # type: ignore[arg-type]


def test_a_validator_that_says_nothing_sensible_is_named() -> None:
    client = Client("fake/m", router=Router({"fake": FakeModel([GOOD])}))
    with pytest.raises(TypeError, match="'<lambda>' returned True; return None"):
        client.ask(Order, "Read it.", validators=[lambda order: True])  # type: ignore[list-item, return-value]
    with pytest.raises(TypeError, match="'<lambda>' returned \\(3, 'wrong'\\); return None"):
        client.ask(Order, "Read it.", validators=[lambda order: (3, "wrong")])  # type: ignore[list-item, return-value]
    with pytest.raises(TypeError) as caught:
        client.ask(Order, "Read it.", validators=[lambda order: order["total"]])  # type: ignore[index]
    assert "validator '<lambda>', which gets a Order" in caught.value.__notes__[0]


def test_a_budget_of_money_needs_prices() -> None:
    client = Client("fake/x", router=Router({"fake": FakeModel(['{"prices": [1], "total": 1}'])}))
    with pytest.raises(ConfigError, match="no price for fake/x"):
        client.ask(Order, "Read it.", options=Options(budget=Budget(money=1.0)))
