from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from pydantic import BaseModel

from slipform import AsyncClient, SlipformError

app, client = FastAPI(), AsyncClient("openai/gpt-4o")


class Person(BaseModel):
    name: str
    age: int


@app.exception_handler(SlipformError)
async def on_error(request: Request, error: SlipformError) -> JSONResponse:
    return JSONResponse(error.to_dict(), error.http_status)


@app.get("/person")
async def person(text: str) -> Person:
    return await client.ask(Person, text)


print(TestClient(app).get("/person", params={"text": "Ada is 36"}).json())
