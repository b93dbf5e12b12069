"""A loop as Codex runs it against the proxy at argv[1], for each model after it. Prints JSON.

Streamed Responses that are not stored: each request has all items so far, reasoning among them, and a shell tool.
"""

import json
import sys

import openai

SHELL = {
    "type": "function",
    "name": "shell",
    "description": "Run a command.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "array", "items": {"type": "string"}}, "workdir": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
}


def run_loop(client: openai.OpenAI, name: str) -> list:
    """Return how often the model was called, and its last answer."""
    items: list = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files."}]}]
    for step in range(1, 6):
        events = client.responses.create(
            model=name,
            instructions="You are a coding agent.",
            input=items,
            tools=[SHELL],
            tool_choice="auto",
            parallel_tool_calls=False,
            reasoning={"effort": "medium", "summary": "auto"},
            store=False,
            stream=True,
            include=["reasoning.encrypted_content"],
            prompt_cache_key="session",
        )
        output = [event.item for event in events if event.type == "response.output_item.done"]
        items += [item.to_dict(mode="json") for item in output]
        calls = [item for item in output if item.type == "function_call"]
        if not calls:
            texts = [part.text for item in output if item.type == "message" for part in item.content]
            return [step, "".join(texts)]
        for call in calls:
            command = json.loads(call.arguments)["command"]
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": f"ran {len(command)}"})
    return [5, "no end"]


with openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="k", max_retries=0) as client:
    print(json.dumps({name: run_loop(client, name) for name in sys.argv[2:]}))
