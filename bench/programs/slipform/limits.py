from slipform import Budget, Client, Options, Price, SlipformError

prices = {"openai/*": Price(input=2.5, output=10)}
options = Options(budget=Budget(attempts=2, seconds=30, money=0.05), prices=prices)
with Client(["openai/gpt-5", "openai/gpt-4o"], options=options) as client:
    try:
        result = client.ask_full(int, "How old is Ada?")
        print(result.value, result.report.fallbacks)
    except SlipformError as error:
        print(error.code, error.report)
