"""Define the hundred tasks of `bench.tasks`: the prompt, the shape of the answer, and the right one.

They were written once, before anything was tuned to them. Every other task is for development (even places), the rest
is held out. Needs pydantic only, so that another interpreter with other libraries can load the same tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, create_model

MAX_TOKENS = 128
ATTEMPTS = 3


@dataclass(frozen=True)
class Task:
    """One question; `right` is None where there is no single right answer."""

    kind: str
    prompt: str
    shape: type[BaseModel]
    right: dict[str, Any] | None = None


def of(model: str, /, **fields: Any) -> type[BaseModel]:
    """A model with these required fields; a pair is a type and its default, which makes the field optional."""
    made: Any = {name: kind if isinstance(kind, tuple) else (kind, ...) for name, kind in fields.items()}
    shape: type[BaseModel] = create_model(model, **made)
    return shape


Sentiment = of("Review", sentiment=Literal["positive", "neutral", "negative"])
Topic = of("Article", topic=Literal["sports", "politics", "science", "business", "weather"])
Urgency = of("Ticket", urgency=Literal["low", "medium", "high"], team=Literal["billing", "technical", "sales"])
Spam = of("Mail", is_spam=bool)
Person = of("Person", name=str, age=int)
Place = of("Place", city=str, country=str)
Contact = of("Contact", name=str, email=str, phone=str | None)
Product = of("Product", name=str, price=float, currency=Literal["USD", "EUR", "GBP"])
Meeting = of("Meeting", title=str, day=str, hour=int)
Names = of("Names", names=list[str])
Tags = of("Tags", tags=list[str])
Numbers = of("Numbers", numbers=list[int])
Line = of("Line", item=str, quantity=int)
Order = of("Order", lines=list[Line])
Address = of("Address", street=str, city=str, zip_code=str)
Customer = of("Customer", name=str, address=Address)
Ingredient = of("Ingredient", name=str, grams=int)
Recipe = of("Recipe", title=str, minutes=int, ingredients=list[Ingredient])
Book = of("Book", title=str, author=str, year=int)
Books = of("Books", books=list[Book])
Flight = of("Flight", number=str, origin=str, destination=str, delayed=bool)
Weather = of("Weather", city=str, celsius=float, raining=bool)
Sum = of("Sum", result=int)
Game = of("Game", home=str, away=str, home_goals=int, away_goals=int)
Pet = of("Pet", kind=Literal["cat", "dog", "bird"], name=str)
Pets = of("Pets", pets=list[Pet])
Language = of("Text", language=Literal["English", "French", "German", "Spanish"])
Card = of("Card", kind=Literal["card"], last_digits=str)
Transfer = of("Transfer", kind=Literal["transfer"], iban=str)
Payment = of("Payment", payment=Card | Transfer, amount=float)
Event = of("Event", name=str, city=(str | None, None), attendees=(int | None, None))
Step = of("Step", number=int, action=str)
Steps = of("Steps", steps=list[Step])
Company = of("Company", name=str, founded=int, employees=int | None)
Vehicle = of("Vehicle", make=str, year=int, electric=bool)
Score = of("Score", student=str, points=float, passed=bool)
Rating = of("Rating", stars=Literal[1, 2, 3, 4, 5])
Question = of("Question", answer=Literal["yes", "no"])
Room = of("Room", name=str, square_metres=float)
Flat = of("Flat", rooms=list[Room], rent=int)

TASKS = (
    Task("extract", "Extract the person: Ada Lovelace is 36 years old.", Person, {"name": "Ada Lovelace", "age": 36}),
    Task("extract", "Who is this? My name is Tom and I just turned 19.", Person, {"name": "Tom", "age": 19}),
    Task("extract", "Extract the person: Lena, 28, works as a nurse.", Person, {"name": "Lena", "age": 28}),
    Task("extract", "Grandfather Otto celebrated his 91st birthday. Who and how old?",
         Person, {"name": "Otto", "age": 91}),
    Task("extract", "Where is it? The Eiffel Tower stands in Paris, France.",
         Place, {"city": "Paris", "country": "France"}),
    Task("extract", "Where was the conference? We met in Kyoto, Japan, last spring.",
         Place, {"city": "Kyoto", "country": "Japan"}),
    Task("extract", "Extract the place: She moved to Oslo in Norway.", Place, {"city": "Oslo", "country": "Norway"}),
    Task("extract", "Extract the place: The museum in Cairo, Egypt, is closed today.",
         Place, {"city": "Cairo", "country": "Egypt"}),
    Task("extract", "Extract the contact: Mia Wong, mia@example.com, phone 555-1234.", Contact,
         {"name": "Mia Wong", "email": "mia@example.com", "phone": "555-1234"}),
    Task("extract", "Extract the contact: Write to Paul at paul@mail.org. He has no phone.", Contact,
         {"name": "Paul", "email": "paul@mail.org", "phone": None}),
    Task("extract", "Extract the contact: call Ines on +34 600 100 200 or ines@web.es.", Contact,
         {"name": "Ines", "email": "ines@web.es", "phone": "+34 600 100 200"}),
    Task("extract", "Extract the product: The kettle costs 29.90 euros.", Product,
         {"name": "kettle", "price": 29.9, "currency": "EUR"}),
    Task("extract", "Extract the product: A new laptop for only $1,299.", Product,
         {"name": "laptop", "price": 1299.0, "currency": "USD"}),
    Task("extract", "Extract the product: Tea mug, 8 pounds sterling.", Product,
         {"name": "Tea mug", "price": 8.0, "currency": "GBP"}),
    Task("extract", "Extract the meeting: Budget review on Tuesday at 14:00.", Meeting,
         {"title": "Budget review", "day": "Tuesday", "hour": 14}),
    Task("extract", "Extract the meeting: Let us have the sales call on Friday, 9 am.", Meeting,
         {"title": "sales call", "day": "Friday", "hour": 9}),
    Task("extract", "Extract the flight: LH400 from Frankfurt to New York is delayed.", Flight,
         {"number": "LH400", "origin": "Frankfurt", "destination": "New York", "delayed": True}),
    Task("extract", "Extract the flight: BA12 from London to Singapore left on time.", Flight,
         {"number": "BA12", "origin": "London", "destination": "Singapore", "delayed": False}),
    Task("extract", "Extract the book: Dune was written by Frank Herbert in 1965.", Book,
         {"title": "Dune", "author": "Frank Herbert", "year": 1965}),
    Task("extract", "Extract the book: In 1813 Jane Austen published Pride and Prejudice.", Book,
         {"title": "Pride and Prejudice", "author": "Jane Austen", "year": 1813}),
    Task("extract", "Extract the vehicle: a 2021 Tesla, fully electric.", Vehicle,
         {"make": "Tesla", "year": 2021, "electric": True}),
    Task("extract", "Extract the vehicle: my old Volvo from 1998 runs on diesel.", Vehicle,
         {"make": "Volvo", "year": 1998, "electric": False}),
    Task("extract", "Extract the company: Acme was founded in 1950 and has 1200 employees.", Company,
         {"name": "Acme", "founded": 1950, "employees": 1200}),
    Task("extract", "Extract the company: Nordlys started in 2015; nobody knows how many work there.", Company,
         {"name": "Nordlys", "founded": 2015, "employees": None}),
    Task("classify", "Classify the review: I love this film, best evening in years!",
         Sentiment, {"sentiment": "positive"}),
    Task("classify", "Classify the review: This is the worst soup I ever had.", Sentiment, {"sentiment": "negative"}),
    Task("classify", "Classify the review: It is a chair. It arrived on Monday.", Sentiment, {"sentiment": "neutral"}),
    Task("classify", "Classify the review: Broken on arrival, and no refund.", Sentiment, {"sentiment": "negative"}),
    Task("classify", "Which topic? The striker scored twice in the final.", Topic, {"topic": "sports"}),
    Task("classify", "Which topic? Parliament votes on the new law tomorrow.", Topic, {"topic": "politics"}),
    Task("classify", "Which topic? Astronomers found water on a distant planet.", Topic, {"topic": "science"}),
    Task("classify", "Which topic? Heavy rain and storms are expected in the north.", Topic, {"topic": "weather"}),
    Task("classify", "Which topic? Shares fell after the bank reported a loss.", Topic, {"topic": "business"}),
    Task("classify", "Triage: The whole site is down and we lose money every minute!", Urgency,
         {"urgency": "high", "team": "technical"}),
    Task("classify", "Triage: When you have time, please send me a copy of my last invoice.", Urgency,
         {"urgency": "low", "team": "billing"}),
    Task("classify", "Triage: Could someone tell me what the premium plan costs?", Urgency),
    Task("classify", "Is it spam? WIN A FREE PHONE!!! Click here now!!!", Spam, {"is_spam": True}),
    Task("classify", "Is it spam? Hi Anna, lunch at noon tomorrow? Best, Joe", Spam, {"is_spam": False}),
    Task("classify", "Which language? Je voudrais un café, s'il vous plaît.", Language, {"language": "French"}),
    Task("classify", "Which language? Wo ist der Bahnhof?", Language, {"language": "German"}),
    Task("classify", "Which language? Buenos días, ¿cómo estás?", Language, {"language": "Spanish"}),
    Task("classify", "How many stars does this deserve? Perfect in every way, five out of five.", Rating, {"stars": 5}),
    Task("classify", "How many stars does this deserve? Just one star, it fell apart.", Rating, {"stars": 1}),
    Task("classify", "Is a whale a fish?", Question, {"answer": "no"}),
    Task("classify", "Is water wet when it rains?", Question, {"answer": "yes"}),
    Task("number", "What is 7 plus 5?", Sum, {"result": 12}),
    Task("number", "What is 9 times 3?", Sum, {"result": 27}),
    Task("number", "What is 100 minus 1?", Sum, {"result": 99}),
    Task("number", "There are two dogs and three cats. How many animals?", Sum, {"result": 5}),
    Task("number", "Weather report: Rome, 31.5 degrees Celsius, dry and sunny.", Weather,
         {"city": "Rome", "celsius": 31.5, "raining": False}),
    Task("number", "Weather report: It pours in Bergen at 8 degrees Celsius.", Weather,
         {"city": "Bergen", "celsius": 8.0, "raining": True}),
    Task("number", "Weather report: minus 12 degrees Celsius and clear skies in Moscow.", Weather,
         {"city": "Moscow", "celsius": -12.0, "raining": False}),
    Task("number", "The result: Arsenal 3, Chelsea 1, played at Arsenal.", Game,
         {"home": "Arsenal", "away": "Chelsea", "home_goals": 3, "away_goals": 1}),
    Task("number", "Final score: hosts Lyon drew 2-2 with Nice.", Game,
         {"home": "Lyon", "away": "Nice", "home_goals": 2, "away_goals": 2}),
    Task("number", "Exam: Eva got 87.5 points and passed.", Score, {"student": "Eva", "points": 87.5, "passed": True}),
    Task("number", "Exam: Max failed with 31 points.", Score, {"student": "Max", "points": 31.0, "passed": False}),
    Task("number", "List all numbers in: 4 apples, 12 pears and 7 plums.", Numbers, {"numbers": [4, 12, 7]}),
    Task("number", "List the first five even numbers, starting with 2.", Numbers, {"numbers": [2, 4, 6, 8, 10]}),
    Task("number", "List the lottery numbers: 3, 11, 19, 27, 42.", Numbers, {"numbers": [3, 11, 19, 27, 42]}),
    Task("list", "Who is coming? Max, Eva and Tom said yes.", Names, {"names": ["Max", "Eva", "Tom"]}),
    Task("list", "List the names: Dear Anna, Ben says hello to Carla.", Names, {"names": ["Anna", "Ben", "Carla"]}),
    Task("list", "Name three colours of the rainbow.", Tags),
    Task("list", "Give three tags for: A slow train ride through the Alps.", Tags),
    Task("list", "Give two tags for: How to bake bread at home.", Tags),
    Task("list", "Which animals are named? The fox and the crow met a wolf.",
         Names, {"names": ["fox", "crow", "wolf"]}),
    Task("list", "List the cities: From Rome we went to Milan and then to Turin.",
         Names, {"names": ["Rome", "Milan", "Turin"]}),
    Task("list", "List the fruits: bread, apples, milk, pears.", Names, {"names": ["apples", "pears"]}),
    Task("list", "List the days on which the shop is open: open on Monday and Thursday.",
         Names, {"names": ["Monday", "Thursday"]}),
    Task("list", "How do you make tea? Give three short steps.", Steps),
    Task("list", "How do you post a letter? Give two short steps.", Steps),
    Task("list", "How do you plant a tree? Give three short steps.", Steps),
    Task("objects", "Extract the order: 2 pizzas and 3 colas, please.", Order,
         {"lines": [{"item": "pizzas", "quantity": 2}, {"item": "colas", "quantity": 3}]}),
    Task("objects", "Extract the order: I take 10 screws and 1 hammer.", Order,
         {"lines": [{"item": "screws", "quantity": 10}, {"item": "hammer", "quantity": 1}]}),
    Task("objects", "Extract the order: Send 5 chairs, 1 table and 2 lamps.", Order,
         {"lines": [{"item": "chairs", "quantity": 5}, {"item": "table", "quantity": 1},
                    {"item": "lamps", "quantity": 2}]}),
    Task("objects", "Extract the order: one coffee.", Order, {"lines": [{"item": "coffee", "quantity": 1}]}),
    Task("objects", "Which pets? We have a cat called Mimi and a dog called Rex.", Pets,
         {"pets": [{"kind": "cat", "name": "Mimi"}, {"kind": "dog", "name": "Rex"}]}),
    Task("objects", "Which pets? Tweety is my bird.", Pets, {"pets": [{"kind": "bird", "name": "Tweety"}]}),
    Task("objects", "Which pets? Two dogs live here, Bella and Bruno.", Pets,
         {"pets": [{"kind": "dog", "name": "Bella"}, {"kind": "dog", "name": "Bruno"}]}),
    Task("objects", "List the books: Emma by Jane Austen (1815) and Ulysses by James Joyce (1922).", Books,
         {"books": [{"title": "Emma", "author": "Jane Austen", "year": 1815},
                    {"title": "Ulysses", "author": "James Joyce", "year": 1922}]}),
    Task("objects", "List the books: 1984 by George Orwell, from 1949.", Books,
         {"books": [{"title": "1984", "author": "George Orwell", "year": 1949}]}),
    Task("objects", "Describe the flat: a kitchen of 12 square metres and a bedroom of 15.5, rent 900.", Flat,
         {"rooms": [{"name": "kitchen", "square_metres": 12.0}, {"name": "bedroom", "square_metres": 15.5}],
          "rent": 900}),
    Task("objects", "Describe the flat: one room, the studio, 30 square metres, rent 650.", Flat,
         {"rooms": [{"name": "studio", "square_metres": 30.0}], "rent": 650}),
    Task("nested", "Extract the customer: John Smith, 12 High Street, Leeds, LS1 4AB.", Customer,
         {"name": "John Smith", "address": {"street": "12 High Street", "city": "Leeds", "zip_code": "LS1 4AB"}}),
    Task("nested", "Extract the customer: Marie Dubois lives at 5 Rue Verte, 75001 Paris.", Customer,
         {"name": "Marie Dubois", "address": {"street": "5 Rue Verte", "city": "Paris", "zip_code": "75001"}}),
    Task("nested", "Extract the customer: Deliver to Ali Khan, 9 Lake Road, Boston, 02108.", Customer,
         {"name": "Ali Khan", "address": {"street": "9 Lake Road", "city": "Boston", "zip_code": "02108"}}),
    Task("nested", "Extract the customer: Petra Novak, Hlavni 3, Brno, postcode 60200.", Customer,
         {"name": "Petra Novak", "address": {"street": "Hlavni 3", "city": "Brno", "zip_code": "60200"}}),
    Task("nested", "Extract the recipe: Pancakes take 20 minutes; you need 200 grams of flour and 50 grams of sugar.",
         Recipe,
         {"title": "Pancakes", "minutes": 20,
          "ingredients": [{"name": "flour", "grams": 200}, {"name": "sugar", "grams": 50}]}),
    Task("nested", "Extract the recipe: Tomato soup, ready in 30 minutes, made of 500 g tomatoes.", Recipe,
         {"title": "Tomato soup", "minutes": 30, "ingredients": [{"name": "tomatoes", "grams": 500}]}),
    Task("nested", "Extract the recipe: For rice pudding boil 100 grams of rice for 40 minutes.", Recipe,
         {"title": "rice pudding", "minutes": 40, "ingredients": [{"name": "rice", "grams": 100}]}),
    Task("union", "Extract the payment: 49.90 paid by card ending in 4242.", Payment,
         {"payment": {"kind": "card", "last_digits": "4242"}, "amount": 49.9}),
    Task("union", "Extract the payment: bank transfer of 1200 from IBAN DE89370400440532013000.", Payment,
         {"payment": {"kind": "transfer", "iban": "DE89370400440532013000"}, "amount": 1200.0}),
    Task("union", "Extract the payment: The guest used a card, last digits 0007, for 15 euros.", Payment,
         {"payment": {"kind": "card", "last_digits": "0007"}, "amount": 15.0}),
    Task("union", "Extract the payment: 300 was sent by transfer, IBAN FR7630006000011234567890189.", Payment,
         {"payment": {"kind": "transfer", "iban": "FR7630006000011234567890189"}, "amount": 300.0}),
    Task("optional", "Extract the event: PyCon in Berlin had 1500 attendees.", Event,
         {"name": "PyCon", "city": "Berlin", "attendees": 1500}),
    Task("optional", "Extract the event: The summer party was fun.", Event),
    Task("optional", "Extract the event: The book fair takes place in Leipzig.", Event),
    Task("optional", "Extract the event: 80 people came to the chess open.", Event),
    Task("extract", "Extract the person: the runner Kofi, aged 24, won the race.", Person, {"name": "Kofi", "age": 24}),
    Task("extract", "Extract the place: Greetings from Lima, the capital of Peru!",
         Place, {"city": "Lima", "country": "Peru"}),
    Task("objects", "Extract the order: four bags of rice and six eggs.", Order),
)  # fmt: skip
