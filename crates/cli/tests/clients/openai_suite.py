"""The official `openai` package against a running server: what people's programs do, and what they rely on.

    python3 openai_suite.py http://127.0.0.1:8080 KEY

The server has four places (`--batch 2 --queue 2`) and the key KEY. Ends with 0 if everything held.
"""

import base64
import json
import struct
import sys
import time
from typing import Literal

import openai
from openai import OpenAI
from pydantic import BaseModel

URL, KEY = sys.argv[1], sys.argv[2]
client = OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120)
CHECKS = []
HELLO = [{"role": "user", "content": "Say hello."}]


def check(function):
    CHECKS.append(function)
    return function


def chat(**options):
    return client.chat.completions.create(**{"model": "any", "messages": HELLO, "max_tokens": 12, "temperature": 0, **options})


def refused(kind, call, **wanted):
    try:
        call()
    except kind as error:
        for name, value in wanted.items():
            assert getattr(error, name) == value, (name, getattr(error, name), value)
        return error
    raise AssertionError(f"{kind.__name__} was expected")


@check
def plain():
    answer = chat()
    assert answer.choices[0].message.content and answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.prompt_tokens + usage.completion_tokens == usage.total_tokens
    assert chat().choices[0].message.content == answer.choices[0].message.content


@check
def streaming():
    whole = chat().choices[0].message.content
    pieces, usage, finish = [], None, None
    for chunk in chat(stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            finish = choice.finish_reason or finish
    assert "".join(pieces) == whole and usage.total_tokens > 0 and finish in ("stop", "length")


@check
def several_choices():
    answer = chat(n=3, temperature=1.5, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1


@check
def stop_strings():
    whole = chat(max_tokens=40).choices[0].message.content
    mark = whole[len(whole) // 2]
    cut = chat(max_tokens=40, stop=[mark])
    assert cut.choices[0].message.content == whole[: whole.index(mark)]
    assert cut.choices[0].finish_reason == "stop"


@check
def log_probabilities():
    answer = chat(logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert b"".join(bytes(t.bytes) for t in content).decode(errors="ignore").startswith(answer.choices[0].message.content)
    assert all(len(t.top_logprobs) == 3 and t.logprob <= 0 for t in content)
    old = client.completions.create(model="any", prompt="One, two,", max_tokens=4, temperature=0, logprobs=2)
    assert len(old.choices[0].logprobs.tokens) == len(old.choices[0].logprobs.token_logprobs) == old.usage.completion_tokens
    assert all(len(top) == 2 for top in old.choices[0].logprobs.top_logprobs)


@check
def text_completions():
    answer = client.completions.create(model="any", prompt="The capital of France is", max_tokens=3, temperature=0)
    assert "Paris" in answer.choices[0].text
    pieces = client.completions.create(model="any", prompt="The capital of France is", max_tokens=3, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in pieces) == answer.choices[0].text


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 24}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]


@check
def tools_that_must_be_called():
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        answer = chat(messages=ASKED, tools=[WEATHER], tool_choice=choice, max_tokens=120)
        assert answer.choices[0].finish_reason == "tool_calls", answer
        call = answer.choices[0].message.tool_calls[0]
        arguments = json.loads(call.function.arguments)
        assert call.function.name == "get_weather" and arguments["unit"] in ("celsius", "fahrenheit")
        assert answer.choices[0].message.content is None
    # The result goes back, and text comes.
    messages = ASKED + [answer.choices[0].message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}]
    after = chat(messages=messages, tools=[WEATHER], tool_choice="none")
    assert after.choices[0].message.content and not after.choices[0].message.tool_calls


@check
def tools_in_a_stream():
    calls, finish = {}, None
    for chunk in chat(messages=ASKED, tools=[WEATHER], tool_choice="required", max_tokens=120, stream=True, parallel_tool_calls=False):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                had = calls.setdefault(call.index, {"name": "", "arguments": ""})
                had["name"] += call.function.name or ""
                had["arguments"] += call.function.arguments or ""
    assert finish == "tool_calls" and list(calls) == [0], (finish, calls)
    assert calls[0]["name"] == "get_weather" and "city" in json.loads(calls[0]["arguments"])


@check
def tools_that_may_be_called():
    answer = chat(messages=ASKED, tools=[WEATHER], max_tokens=60)
    message = answer.choices[0].message
    assert message.content or message.tool_calls


class Pet(BaseModel):
    name: str
    kind: Literal["cat", "dog"]


class Person(BaseModel):
    name: str
    age: int
    pets: list[Pet]


@check
def json_schemas():
    schema = {"name": "person", "strict": True, "schema": Person.model_json_schema()}
    answer = chat(response_format={"type": "json_schema", "json_schema": schema}, max_tokens=400, seed=3)
    if answer.choices[0].finish_reason == "stop":
        Person.model_validate_json(answer.choices[0].message.content)
    answer = chat(response_format={"type": "json_object"}, max_tokens=80)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


class Mood(BaseModel):
    mood: Literal["happy", "sad"]
    score: int


@check
def parsed_into_classes():
    parse = getattr(client.chat.completions, "parse", None) or client.beta.chat.completions.parse
    answer = parse(model="any", messages=[{"role": "user", "content": "How are you? As JSON."}], response_format=Mood, max_tokens=100, temperature=0)
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Mood) and parsed.mood in ("happy", "sad")


@check
def sessions():
    name = f"suite-{KEY[:5]}-{time.time_ns()}"
    ask = lambda text: chat(messages=[{"role": "user", "content": text}], extra_body={"session_id": name})
    first = ask("My cat is called Minka.")
    assert first.model_extra["context"]["turn"] is not None, first.model_extra
    second = ask("What is my cat called?")
    assert second.usage.prompt_tokens_details.cached_tokens > 0, second.usage
    pieces = chat(messages=[{"role": "user", "content": "And my dog?"}], stream=True, extra_body={"session_id": name})
    assert "".join(choice.delta.content or "" for chunk in pieces for choice in chunk.choices)
    refused(openai.BadRequestError, lambda: chat(n=2, extra_body={"session_id": name}), param="n")


@check
def one_call_at_most():
    message = chat(messages=ASKED, tools=[WEATHER], max_tokens=60, parallel_tool_calls=False).choices[0].message
    assert len(message.tool_calls or []) <= 1 and (message.content or message.tool_calls)


@check
def responses():
    answer = client.responses.create(model="any", input="Say hello.", instructions="Be brief.", max_output_tokens=12, temperature=0)
    assert answer.output_text and answer.status in ("completed", "incomplete")
    assert answer.usage.input_tokens + answer.usage.output_tokens == answer.usage.total_tokens
    names, text = [], ""
    for event in client.responses.create(model="any", input=[{"role": "user", "content": "Say hello."}], instructions="Be brief.", max_output_tokens=12, temperature=0, stream=True):
        names.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
    assert text == answer.output_text, (text, answer.output_text)
    assert names[0] == "response.created" and names[-1] in ("response.completed", "response.incomplete"), names
    for name in ("response.output_item.added", "response.content_part.added", "response.output_text.done", "response.content_part.done", "response.output_item.done"):
        assert names.count(name) == 1, names
    parsed = client.responses.parse(model="any", input="How are you? As JSON.", text_format=Mood, max_output_tokens=100, temperature=0)
    assert isinstance(parsed.output_parsed, Mood)
    error = refused(openai.BadRequestError, lambda: client.responses.create(model="any", input="x", previous_response_id="resp_1"))
    assert error.param == "previous_response_id"


@check
def embeddings():
    texts = ["My cat is called Minka.", "What is my cat's name?", "Interest rates rose."]
    answer = client.embeddings.create(model="minilm", input=texts)  # base64 unless told otherwise
    vectors = [item.embedding for item in answer.data]
    assert [len(vector) for vector in vectors] == [384] * 3 and answer.usage.prompt_tokens > 10
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    assert abs(dot(vectors[0], vectors[0]) - 1) < 1e-3
    assert dot(vectors[0], vectors[1]) > dot(vectors[0], vectors[2]) + 0.2
    plain = client.embeddings.create(model="minilm", input=texts[0], encoding_format="float").data[0].embedding
    assert max(abs(a - b) for a, b in zip(plain, vectors[0])) < 1e-6
    raw = client.embeddings.with_raw_response.create(model="minilm", input=texts[0], encoding_format="base64")
    packed = json.loads(raw.content)["data"][0]["embedding"]
    assert len(struct.unpack("<384f", base64.b64decode(packed))) == 384
    refused(openai.BadRequestError, lambda: client.embeddings.create(model="minilm", input=[1, 2, 3]), param="input")
    refused(openai.BadRequestError, lambda: client.embeddings.create(model="minilm", input="x", dimensions=100), param="dimensions")


@check
def models():
    listed = [model.id for model in client.models.list()]
    assert len(listed) == 1
    assert client.models.retrieve(listed[0]).id == listed[0]
    refused(openai.NotFoundError, lambda: client.models.retrieve("another"))


@check
def errors():
    refused(openai.BadRequestError, lambda: chat(n=0), param="n")
    refused(openai.BadRequestError, lambda: chat(temperature=-1))
    refused(openai.BadRequestError, lambda: chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "wat"}}}), param="response_format")
    refused(openai.BadRequestError, lambda: chat(tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "other"}}), param="tool_choice")
    refused(openai.BadRequestError, lambda: chat(messages=[]), param="messages")
    stranger = OpenAI(base_url=f"{URL}/v1", api_key="wrong", max_retries=0)
    refused(openai.AuthenticationError, lambda: stranger.models.list())
    refused(openai.AuthenticationError, lambda: stranger.chat.completions.create(model="any", messages=HELLO))


@check
def no_place():
    endless = {"max_tokens": 1500, "stream": True, "logit_bias": {"0": -100, "2": -100}}
    streams = [chat(**endless) for _ in range(4)]
    error = refused(openai.RateLimitError, lambda: chat(max_tokens=1))
    assert error.response.headers["retry-after"] == "1"
    for stream in streams:
        stream.close()
    # A client that left has freed its place: the next one gets it.
    again = client.with_options(max_retries=5)
    assert again.chat.completions.create(model="any", messages=HELLO, max_tokens=2).choices


def main():
    for number, function in enumerate(CHECKS, 1):
        function()
        print(f"{number:2} {function.__name__}", flush=True)
    print(f"{len(CHECKS)} checks held with openai {openai.__version__}")


main()
