"""The scripted suite of the bindings in Python: carries out the steps of one part and prints a line for each.
``bindings/suite/README.md`` says what the steps do.

    suite.py MODEL TABLE SESSIONS PART
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, Dict, List

import haversack
from haversack import Answer, Conversation, Engine

PRESSURE = ("nominal", "warning", "critical")


def escaped(text: str) -> str:
    """Bytes that are not printable ASCII, and backslashes, as ``\\xHH``."""
    return "".join(chr(b) if 0x20 <= b < 0x7F and b != 0x5C else f"\\x{b:02x}" for b in text.encode())


def number(value: Any) -> int:
    """-1 of nothing."""
    return -1 if value is None else value


class Player:
    def __init__(self, model: str, sessions: str) -> None:
        self.model = model
        self.sessions = sessions
        self.engine: Any = None
        self.conversations: Dict[str, Conversation] = {}
        self.answers: Dict[str, Answer] = {}

    def options(self, step: Dict[str, Any]) -> Dict[str, Any]:
        return {name: step[name] for name in ("memory", "kv", "context", "threads") if name in step}

    def open(self, step: Dict[str, Any]) -> Engine:
        return Engine(step.get("model", self.model), sessions_dir=self.sessions, **self.options(step))

    def send(self, step: Dict[str, Any]) -> Answer:
        names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "ignore_end", "json_schema", "regex")
        options = {name: step[name] for name in names if name in step}
        if "name" in step:
            return self.conversations[step["name"]].say(step["text"], **options)
        return self.engine.complete(step["text"], **options)

    def read(self, answer: Answer) -> str:
        text = answer.text()
        r = answer.report
        return (
            f": {escaped(text)}\n  {r.finish} turn={number(r.turn)} tokens={r.tokens} visible={r.visible} hidden={r.hidden}"
            f" spilled={r.spilled} cached={r.cached} recomputed={r.recomputed} evicted={r.evicted}"
            f" recalled={list(r.recalled)} bytes={r.bytes}"
        )

    def play(self, step: Dict[str, Any]) -> str:
        action, name, label = step["do"], step.get("name", ""), step.get("answer", "")
        said = action
        if action == "plan":
            plan = haversack.plan(self.model, **self.options(step))
            said += f" weights={plan.weights_bytes} context={plan.context} token={plan.token_bytes}"
            said += f" whole={plan.context_bytes} max={number(plan.tokens_max)}"
        elif action == "open":
            self.engine = self.open(step)
        elif action == "second":
            with self.open(step) as second:
                second.conversation(name)
        elif action == "conversation":
            self.conversations[name] = self.engine.conversation(name, system=step.get("system", ""))
            said += f" {name}"
        elif action in ("say", "complete"):
            answer = self.send(step)
            said += (f" {name}" if name else "") + self.read(answer)
        elif action == "begin":
            self.answers[label] = self.send(step)
            said += f" {label}"
        elif action == "read":
            said += f" {label}" + self.read(self.answers.pop(label))
        elif action == "pieces":
            said += f" {label}: " + escaped("".join(next(self.answers[label]) for _ in range(step["count"])))
        elif action == "cancel":
            self.answers[label].cancel()
            said += f" {label}"
        elif action == "end":
            answer = self.answers.pop(label)
            answer.text()
            said += f" {label}: {answer.report.finish}"
        elif action == "drop":
            del self.answers[label]
            said += f" {label}"
        elif action == "turns":
            said += f" {name}"
            for t in self.conversations[name].turns():
                said += f"\n  {t.number} {t.place} visible={int(t.is_visible)} tokens={t.tokens}: "
                said += f"{escaped(t.text)} => {escaped(t.answer)}"
        elif action == "facts":
            said += f" {name}"
            for fact in self.conversations[name].facts():
                said += f"\n  {fact.number} found_in={number(fact.found_in)}: {escaped(fact.text)}"
        elif action == "add_fact":
            said += f" {name} {self.conversations[name].add_fact(step['text'])}"
        elif action == "replace_fact":
            said += f" {name} {self.conversations[name].replace_fact(step['number'], step['text'])}"
        elif action == "revoke_fact":
            self.conversations[name].revoke_fact(step["number"])
            said += f" {name} {step['number']}"
        elif action == "recall":
            self.conversations[name].recall(step["number"])
            said += f" {name} {step['number']}"
        elif action == "undo":
            said += f" {name} {number(self.conversations[name].undo())}"
        elif action == "fork":
            self.conversations[step["to"]] = self.conversations[name].fork(step["to"])
            said += f" {name} {step['to']}"
        elif action in ("suspend", "resume", "delete"):
            getattr(self.conversations[name], action)()
            said += f" {name}"
        elif action == "export":
            said += f" {name}: {escaped(self.conversations[name].export())}"
        elif action == "conversations":
            for listed in self.engine.conversations():
                said += f"\n  {listed.name} open={int(listed.is_open)}"
        elif action == "embed":
            said += f" {len(self.engine.embed(step['text']))}"
        elif action == "memory":
            m = self.engine.memory()
            said += f" sequences={len(m.sequences)} active={m.active} waiting={m.waiting} kv={m.kv_bytes}"
        elif action == "suspend_all":
            self.engine.suspend()
        elif action == "trim":
            said += " freed=yes" if self.engine.trim(step["bytes"]) > 0 else " freed=no"
        elif action == "pressure":
            self.engine.pressure(PRESSURE[step["level"]])
            said += f" {step['level']}"
        elif action == "close":
            self.engine.close()
        else:
            raise SystemExit(f"no step {action}")
        return said


def main(model: str, table: str, sessions: str, part: str) -> None:
    parts: List[List[Dict[str, Any]]] = [[]]
    with open(table, encoding="utf-8") as file:
        for step in json.load(file):
            if step["do"] == "kill":
                parts.append([])
            else:
                parts[-1].append(step)
    player = Player(model, sessions)
    for step in parts[int(part)]:
        try:
            print(player.play(step))
        except haversack.Error as error:
            print(f"{step['do']} error {error.kind}")
    if int(part) + 1 < len(parts):
        print("kill", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
