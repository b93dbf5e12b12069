from slipform import Parser
from slipform.text.resolve import Match, ResolveCache, resolve

schema = {"type": "object", "properties": {"mood": {"enum": ["happy", "sad"]}, "why": {"type": "string"}}}
parser, cache = Parser(), ResolveCache()
for piece in ('{"mood": "hap', 'py", "why": "It is s', 'unny."}'):
    parser = parser.feed(piece)
    match resolve(schema, parser, cache):
        case Match(value):
            print(value)
        case other:
            print(other)
