import instructor
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from instructor.core.exceptions import InstructorError
from pydantic import BaseModel

app, client = FastAPI(), instructor.from_provider("openai/gpt-4o", async_client=True)


class Person(BaseModel):
    name: str
    age: int


@app.exception_handler(InstructorError)
async def on_error(request: Request, error: InstructorError) -> JSONResponse:
    return JSONResponse({"message": str(error)}, 502)


@app.get("/person")
async def person(text: str) -> Person:
    return await client.create(messages=[{"role": "user", "content": text}], response_model=Person)


print(TestClient(app).get("/person", params={"text": "Ada is 36"}).json())
