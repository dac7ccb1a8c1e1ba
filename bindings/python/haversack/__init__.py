"""Language models inside a memory limit.

    from haversack import Engine

    with Engine("model.gguf", memory="1500M", sessions_dir="sessions") as engine:
        anna = engine.conversation("anna", system="You answer in one sentence.")
        for piece in anna.say("My cat is called Miso."):
            print(piece, end="", flush=True)

An engine has one model, one memory limit and one thread of its own; it may be used from any thread. Calls wait without the GIL, and
Ctrl-C ends the wait. Errors are ``haversack.Error``, one class for each thing that a caller can do about them.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any, AsyncIterator, Dict, Iterator, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple, Union

from . import _native
from ._errors import (
    Busy,
    Cancelled,
    Closed,
    Conflict,
    Error,
    Internal,
    InvalidInput,
    Io,
    NotFound,
    OutOfMemory,
    TooLarge,
    Unsupported,
)

__version__ = _native.version

__all__ = [
    "Answer", "Busy", "Cancelled", "Closed", "Conflict", "Conversation", "Engine", "Error", "Fact", "Held", "Internal", "InvalidInput",
    "Io", "Listed", "Memory", "NotFound", "OutOfMemory", "Plan", "Report", "TooLarge", "Turn", "Unsupported", "plan",
]  # fmt: skip

_PathLike = Union[str, "os.PathLike[str]"]

_COUNT_MAX = 2**31 - 1
_NUMBER_MAX = 2**64 - 1
_TEXT_BYTES_MAX = 64 << 20
_PRESSURE = ("nominal", "warning", "critical")
_THERMAL = ("nominal", "fair", "serious", "critical")


class Report(NamedTuple):
    """What an answer saw, what left memory for it, and what it cost; in tokens where nothing else is said."""

    finish: Optional[str]
    """``stop``, ``repetition``, ``length`` or ``cancelled``; ``None`` while it goes on."""
    turn: Optional[int]
    """The number of its turn in the conversation."""
    tokens: int
    """Sampled."""
    visible: int
    """The answer saw these."""
    hidden: int
    """In memory and hidden from it."""
    spilled: int
    """On disk only."""
    cached: int
    """Of the visible ones, not computed again."""
    recomputed: int
    """Computed again."""
    evicted: int
    """Forgotten since the conversation began, or evicted from the completion."""
    recalled: Tuple[int, ...]
    """Turns that came back for it."""
    bytes: int
    """Of keys and values that the conversation or completion ended with."""
    first_token: Optional[float]
    """Seconds to its first token."""
    time: float
    """Seconds to its end."""


class Fact(NamedTuple):
    """A fact that holds."""

    number: int
    text: str
    found_in: Optional[int]
    """The turn in which it was found; ``None``: it was told as a fact."""


class Turn(NamedTuple):
    """A question and its answer."""

    number: int
    text: str
    answer: str
    time_ms: int
    tokens: int
    place: str
    """``memory``, ``disk``, or ``tokens``: on disk, to be computed again."""
    is_visible: bool
    is_state: bool


class Listed(NamedTuple):
    """A conversation that has a file."""

    name: str
    bytes: int
    saved_ms: int
    is_open: bool


class Held(NamedTuple):
    """A conversation or a completion in memory."""

    name: Optional[str]
    """``None`` of a completion."""
    position: int
    """Tokens read or sampled."""
    bytes: int
    is_active: bool


class Memory(NamedTuple):
    """Where the bytes of the memory limit are."""

    limit_bytes: Optional[int]
    total_bytes: int
    peak_bytes: int
    kv_bytes: int
    kv_peak_bytes: int
    tables_bytes: int
    scratch_bytes: int
    side_bytes: int
    heap_bytes: int
    promised_bytes: int
    idle_bytes: int
    weights_bytes: int
    """Mapped from the model file, beside the limit."""
    active: int
    waiting: int
    sequences: Tuple[Held, ...]


class Plan(NamedTuple):
    """What a model takes, from its file's metadata alone."""

    weights_bytes: int
    context: int
    token_bytes: int
    context_bytes: int
    tokens_max: Optional[int]
    """Tokens of one conversation that the memory limit holds; ``None`` without one."""


class Answer:
    """An answer on its way: an iterator, also an asynchronous one, over pieces of text. As a context manager it is cancelled at the
    end of the block; so it is when it is forgotten before its end."""

    __slots__ = ("_native",)

    def __init__(self, native: _native.Answer) -> None:
        self._native = native

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        piece = self._native.next()
        if piece is None:
            raise StopIteration
        return piece

    async def __aiter__(self) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        try:
            while True:
                piece = await loop.run_in_executor(None, self._native.next)
                if piece is None:
                    break
                yield piece
        finally:
            # The loop was left, or its task was cancelled.
            self._native.cancel()

    def __enter__(self) -> "Answer":
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Answer is on its way in this process and cannot be pickled; pickle its text()")

    def text(self) -> str:
        """Waits for the end; what is left of the text."""
        return "".join(self)

    def json(self) -> Any:
        """Waits for the end of an answer that was asked for with ``json_schema``; the value that it says."""
        return json.loads(self.text())

    def cancel(self) -> None:
        """Ends the answer where it is, from any thread. What is left of it can be read, and a conversation keeps it so far."""
        self._native.cancel()

    @property
    def report(self) -> Report:
        """What it saw and cost; complete once it has ended."""
        turn, (tokens, visible, hidden, spilled, cached, recomputed, evicted), recalled, held, first, time = self._native.report()
        finish = self._native.finish()
        seen = (tokens, visible, hidden, spilled, cached, recomputed, evicted)
        return Report(finish, turn, *seen, tuple(recalled), held, first, time)


class Conversation:
    """Facts that always hold, turns that come and go, a file that outlives the engine. ``Engine.conversation`` opens one."""

    __slots__ = ("_native", "name")

    def __init__(self, native: _native.Conversation, name: str) -> None:
        self._native = native
        self.name = name

    def __repr__(self) -> str:
        return f"<haversack.Conversation {self.name!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Conversation belongs to an engine of this process and cannot be pickled; open it there by its name")

    def say(self, text: str, **options: Any) -> Answer:
        """Sends a message. Options are those of ``Engine.complete``."""
        return Answer(self._native.say(_text("text", text), _prompt(**options)))

    def facts(self) -> List[Fact]:
        """Facts that hold."""
        return [Fact(*fact) for fact in self._native.facts()]

    def add_fact(self, text: str) -> int:
        """Adds a fact that every answer sees; its number."""
        return self._native.add_fact(_text("text", text))

    def replace_fact(self, number: int, text: str) -> int:
        """Replaces a fact that no longer holds; the new one's number."""
        return self._native.replace_fact(_number("number", number), _text("text", text))

    def revoke_fact(self, number: int) -> None:
        """Answers do not see this fact any more."""
        self._native.revoke_fact(_number("number", number))

    def turns(self) -> List[Turn]:
        """The last turns, at most 256, the oldest first."""
        return [Turn(*turn) for turn in self._native.turns()]

    def recall(self, turn: int) -> None:
        """The next answer sees this turn, wherever it is."""
        self._native.recall(_number("turn", turn))

    def undo(self) -> Optional[int]:
        """Deletes the last turn; its number, ``None`` where there was none."""
        return self._native.undo()

    def fork(self, name: str) -> "Conversation":
        """A second conversation that goes on from here under another name."""
        return Conversation(self._native.fork(_text("name", name)), name)

    def suspend(self) -> None:
        """Saves the conversation and frees its memory; its next message opens it again."""
        self._native.suspend()

    def resume(self) -> None:
        """Opens a suspended conversation before its next message does."""
        self._native.resume()

    def export(self) -> str:
        """Facts, states and turns as a page of Markdown."""
        return self._native.export()

    def delete(self) -> None:
        """Deletes the conversation and its file."""
        self._native.delete()


class Engine:
    """One model, one memory limit, one thread that computes for every conversation. As a context manager it is closed at the end of
    the block: conversations are saved."""

    __slots__ = ("_native",)

    def __init__(
        self,
        model: _PathLike,
        *,
        memory: Union[str, int, None] = None,
        sessions_dir: Optional[_PathLike] = None,
        encoder_dir: Optional[_PathLike] = None,
        cache_dir: Optional[_PathLike] = None,
        kv: Optional[str] = None,
        context: Optional[int] = None,
        threads: Optional[int] = None,
        batch: Optional[int] = None,
        queue: Optional[int] = None,
    ) -> None:
        """Loads a model. What is not set follows from the model and the device.

        :param memory: ceiling of everything the engine allocates beyond its baseline, as bytes or such as ``"1500M"``.
        :param sessions_dir: folder of the conversations' files; without it conversations end with the engine.
        :param encoder_dir: folder of a sentence encoder, for ``embed`` and for recall by meaning.
        :param cache_dir: folder for what is computed once for each model.
        :param kv: how keys and values are stored: f16, int8, int5, int4 (the default), int3 or int2.
        :param context: tokens of context, at most what the model was trained for.
        :param threads: threads that compute.
        :param batch: answers that are computed at the same time (8).
        :param queue: answers that may wait (64); beyond that they are refused as ``Busy``.
        """
        options = _engine(memory, sessions_dir, encoder_dir, cache_dir, kv, context, threads, batch, queue)
        self._native = _native.Engine(Path(model), options)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Engine is a running thread and cannot be pickled; open one in each process")

    def conversation(self, name: str, system: str = "") -> Conversation:
        """Goes on with the conversation of this name, or begins it with the system text."""
        return Conversation(self._native.conversation(_text("name", name), _text("system", system)), name)

    def conversations(self) -> List[Listed]:
        """The conversations that have a file."""
        return [Listed(*listed) for listed in self._native.conversations()]

    def complete(self, text: str, **options: Any) -> Answer:
        """Goes on with a text, outside of any conversation.

        :param max_tokens: tokens of the answer (1024).
        :param temperature: 0, the default, takes the likeliest token.
        :param top_k, top_p, min_p, seed: how it is sampled.
        :param stop: a text or several at which the answer ends.
        :param json_schema: the answer is JSON of this schema: a mapping or its text.
        :param regex, gbnf, lark: the answer is text of this form.
        :param timeout: seconds after which the answer ends.
        :param ignore_end: goes on where the model would end the answer.
        :param stop_repetition: ends an answer that repeats itself over and over.
        """
        return Answer(self._native.complete(_text("text", text), _prompt(**options)))

    def embed(self, text: str) -> List[float]:
        """The direction of a text as the sentence encoder sees it: similar texts have a large scalar product."""
        return self._native.embed(_text("text", text))

    def memory(self) -> Memory:
        """Where the bytes of the memory limit are."""
        fields, sequences = self._native.memory()
        named: Dict[str, Any] = dict(fields)
        return Memory(**named, sequences=tuple(Held(*held) for held in sequences))

    def pressure(self, level: str) -> None:
        """Says how short of memory the system is: ``nominal``, ``warning`` or ``critical``."""
        self._native.pressure(_level(level, _PRESSURE))

    def thermal(self, level: str) -> None:
        """Says how hot the device is: ``nominal``, ``fair``, ``serious`` or ``critical``. Heat changes no token."""
        self._native.thermal(_level(level, _THERMAL))

    def suspend(self) -> None:
        """Saves every conversation that is not being answered and frees its memory."""
        self._native.suspend()

    def trim(self, bytes: int) -> int:
        """Gives up caches, then idle conversations, until this many bytes are free; how many are."""
        return self._native.trim(_number("bytes", bytes))

    def close(self) -> None:
        """Waits for answers that run and saves every conversation. Later calls raise ``Closed``."""
        self._native.close()


def plan(
    model: _PathLike,
    *,
    memory: Union[str, int, None] = None,
    kv: Optional[str] = None,
    context: Optional[int] = None,
    threads: Optional[int] = None,
) -> Plan:
    """What a model takes of the memory limit, from its file's metadata alone. Loads nothing."""
    return Plan(*_native.plan(Path(model), _engine(memory, None, None, None, kv, context, threads, None, None)))


def _engine(
    memory: Union[str, int, None],
    sessions_dir: Optional[_PathLike],
    encoder_dir: Optional[_PathLike],
    cache_dir: Optional[_PathLike],
    kv: Optional[str],
    context: Optional[int],
    threads: Optional[int],
    batch: Optional[int],
    queue: Optional[int],
) -> Dict[str, Any]:
    if isinstance(memory, int):
        memory = str(_number("memory", memory))
    return {
        "memory": memory if memory is None else _text("memory", memory),
        "sessions_dir": sessions_dir,
        "encoder_dir": encoder_dir,
        "cache_dir": cache_dir,
        "kv": kv if kv is None else _text("kv", kv),
        "context": _count("context", context, _COUNT_MAX),
        "threads": _count("threads", threads, 256),
        "batch": _count("batch", batch, 65536),
        "queue": _count("queue", queue, 65536),
    }


def _prompt(
    *,
    max_tokens: Optional[int] = None,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    stop: Union[str, Sequence[str]] = (),
    json_schema: Union[str, Mapping[str, Any], None] = None,
    regex: Optional[str] = None,
    gbnf: Optional[str] = None,
    lark: Optional[str] = None,
    timeout: Optional[float] = None,
    ignore_end: bool = False,
    stop_repetition: bool = False,
) -> Dict[str, Any]:
    if json_schema is not None and not isinstance(json_schema, str):
        json_schema = json.dumps(json_schema)
    forms = {"json_schema": json_schema, "regex": regex, "gbnf": gbnf, "lark": lark}
    given = [(name, _text(name, form)) for name, form in forms.items() if form is not None]
    if len(given) > 1:
        raise InvalidInput(f"{given[0][0]}: there is also {given[1][0]}; accepted: one form")
    if timeout is not None and not 0 < timeout <= _COUNT_MAX:
        raise InvalidInput(f"timeout: {timeout}; accepted: more than 0 seconds")
    return {
        "max_tokens": _count("max_tokens", max_tokens, _COUNT_MAX),
        "temperature": float(temperature),
        "top_k": _number("top_k", top_k, _COUNT_MAX),
        "top_p": float(top_p),
        "min_p": float(min_p),
        "seed": _number("seed", seed),
        "stop": [_text("stop", text) for text in ([stop] if isinstance(stop, str) else stop)],
        "form": given[0] if given else None,
        "timeout_ms": None if timeout is None else max(1, int(timeout * 1000)),
        "ignore_end": bool(ignore_end),
        "stop_repetition": bool(stop_repetition),
    }


def _text(name: str, text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{name}: {type(text).__name__}; accepted: str")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{name}: not UTF-8: {error}") from None
    if size > _TEXT_BYTES_MAX:
        raise InvalidInput(f"{name}: {size} bytes; accepted: at most {_TEXT_BYTES_MAX}")
    return text


def _number(name: str, number: int, max: int = _NUMBER_MAX) -> int:
    if not isinstance(number, int):
        raise TypeError(f"{name}: {type(number).__name__}; accepted: int")
    if not 0 <= number <= max:
        raise InvalidInput(f"{name}: {number}; accepted: 0 to {max}")
    return number


def _count(name: str, count: Optional[int], max: int) -> Optional[int]:
    if count is None:
        return None
    if _number(name, count, max) == 0:
        raise InvalidInput(f"{name}: 0; accepted: 1 to {max}")
    return count


def _level(level: str, levels: Tuple[str, ...]) -> int:
    if level not in levels:
        raise InvalidInput(f"level: {level!r}; accepted: {', '.join(levels)}")
    return levels.index(level)
