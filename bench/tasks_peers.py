"""Try Instructor on the tasks; run by `bench.tasks` with the interpreter that has Instructor, prints JSON.

`python -m bench.tasks_peers http://127.0.0.1:8080/v1`. The mode is MD_JSON: it asks in the prompt only. (JSON mode
would send `response_format`, and the proxy would hold the model to it.)
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.tasks_data import ATTEMPTS, MAX_TOKENS, TASKS, Task


def answered(url: str, task: Task) -> dict[str, Any]:
    """What came of one task: a value or None, and how many calls it took."""
    import instructor
    from openai import OpenAI

    calls = 0

    def count(*_: object, **__: object) -> None:
        nonlocal calls
        calls += 1

    upstream = OpenAI(base_url=url, api_key="any", timeout=600, max_retries=0)
    client: Any = instructor.from_openai(upstream, mode=instructor.Mode.MD_JSON)
    client.on("completion:kwargs", count)
    try:
        found = client.create(
            model="local",
            response_model=task.shape,
            messages=[{"role": "user", "content": task.prompt}],
            max_retries=ATTEMPTS - 1,
            temperature=0,
            max_tokens=MAX_TOKENS,
        )
    except Exception as error:  # whatever it is, there is no answer
        return {"value": None, "error": type(error).__name__, "calls": calls}
    return {"value": found.model_dump(mode="json"), "error": None, "calls": calls}


def main() -> None:
    """Answer all tasks, four at a time."""
    import instructor

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda task: answered(sys.argv[1], task), TASKS))
    print(json.dumps({"version": instructor.__version__, "results": results}))


if __name__ == "__main__":
    main()
