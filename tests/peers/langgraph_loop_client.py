"""Streamed tool loops of LangGraph against the proxy at argv[1], for each model after it. Prints JSON."""

import json
import sys

from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


def forecast(city: str) -> str:
    """Return the forecast."""
    return f"rain in {len(city)}"


def run_loop(name: str, **options: object) -> list:
    """Return how often the model was called, and its last answer as the graph streams it."""
    chat = ChatOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="k", model=name, max_retries=0, streaming=True, **options)
    model = chat.bind_tools([forecast])
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode([forecast]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    question = {"messages": [{"role": "user", "content": "Weather?"}]}
    texts: dict[str, str] = {}
    for chunk, place in builder.compile().stream(question, stream_mode="messages"):
        if place["langgraph_node"] == "model":
            texts[place["langgraph_step"]] = texts.get(place["langgraph_step"], "") + chunk.text
    return [len(texts), list(texts.values())[-1]]


results = {}
for name in sys.argv[2:]:
    results[f"{name} chat"] = run_loop(name)
    results[f"{name} responses"] = run_loop(name, use_responses_api=True)
    results[f"{name} previous"] = run_loop(name, use_responses_api=True, use_previous_response_id=True)
print(json.dumps(results))
