from pydantic_ai import Agent, UsageLimits
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.models.fallback import FallbackModel

model = FallbackModel("openai-chat:gpt-5", "openai-chat:gpt-4o")
agent = Agent(model, output_type=int, model_settings={"timeout": 30})
try:
    result = agent.run_sync("How old is Ada?", usage_limits=UsageLimits(total_tokens_limit=5000))
    print(result.output, len(result.all_messages()))
except AgentRunError as error:
    print(error)
