from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError


class Person(BaseModel):
    name: str
    age: int


app, agent = FastAPI(), Agent("openai-chat:gpt-4o", output_type=Person)


@app.exception_handler(AgentRunError)
async def on_error(request: Request, error: AgentRunError) -> JSONResponse:
    return JSONResponse({"message": error.message}, 502)


@app.get("/person")
async def person(text: str) -> Person:
    return (await agent.run(text)).output


print(TestClient(app).get("/person", params={"text": "Ada is 36"}).json())
